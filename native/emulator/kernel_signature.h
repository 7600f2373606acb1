// What the name of a kernel says about its arguments.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "computed_kernels.h"
#include "kernel_outputs.h"

namespace maya {

// An integer parameter of a kernel that is passed by value.
struct ScalarParameter {
  int index;  // position in the argument array of the launch
  int bytes;  // 1, 2, 4 or 8
  bool is_signed;
};

// How the number of elements follows from the arguments.
enum class ElementCount : uint8_t { unknown, first_integer, multi_tensor };

// Where a list of tensor chunks stands in the first argument of a multi_tensor_apply_kernel.
struct MultiTensorLayout {
  int max_tensors = 0;
  size_t sizes_offset = 0;  // int64_t numel_for_tensor[max_tensors]
  size_t block_to_tensor_offset = 0;
  size_t block_to_chunk_offset = 0;  // int32_t each
};

struct KernelSignature {
  std::string name;                      // demangled where the name is mangled
  std::vector<ScalarParameter> scalars;  // the first ones, at most kMaxScalars
  ElementCount element_count = ElementCount::unknown;
  MultiTensorLayout multi_tensor;
  std::vector<OutputParameter> outputs;  // where a launch may write
  Computation computation;
};
inline constexpr int kMaxScalars = 6;

KernelSignature read_signature(const char* mangled_name);

// Tensors in the lists of one launch.
TensorListSizes tensor_list_sizes(const MultiTensorLayout& layout, const void* first_argument,
                                  unsigned num_blocks);

// The exact number of elements of one launch of a multi_tensor_apply_kernel.
int64_t count_multi_tensor_elements(const MultiTensorLayout& layout, const void* first_argument,
                                    unsigned num_blocks);

}  // namespace maya
