// Kernels whose results the host reads back and that are simple enough to be computed: fills of small
// tensors, the update of the loss scale, and what torch.isfinite and tests with all() are made of. What is
// not known is finite, equal to itself, and true for all().
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace maya {

enum class ScalarType : uint8_t { other, float16, bfloat16, float32, float64 };

struct Computation {
  enum class Kind : uint8_t {
    none,
    fill,
    update_loss_scale,
    compare,  // two tensors
    compare_with_scalar,
    both,  // product or conjunction of two tensors of bools
    all,   // of bools
  };
  Kind kind = Kind::none;
  int element_bytes = 0;                       // of a fill
  ScalarType scalar_type = ScalarType::other;  // of a comparison
};

// From the demangled name of a kernel and its parameter list.
Computation find_computation(std::string_view name, const std::vector<std::string_view>& parameters);

// What a launch with these arguments computes; empty when the result is too large to be written.
std::function<void()> computation_of_launch(const Computation& computation, void** arguments);

}  // namespace maya
