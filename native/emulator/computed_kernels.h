// Kernels whose results the host reads back and that are simple enough to be computed: fills of small
// tensors, and the update of the loss scale.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace maya {

struct Computation {
  enum class Kind : uint8_t { none, fill, update_loss_scale };
  Kind kind = Kind::none;
  int element_bytes = 0;  // of a fill
};

// From the demangled name of a kernel and its parameter list.
Computation find_computation(std::string_view name, const std::vector<std::string_view>& parameters);

// What a launch with these arguments computes; empty when the result is too large to be written.
std::function<void()> computation_of_launch(const Computation& computation, void** arguments);

}  // namespace maya
