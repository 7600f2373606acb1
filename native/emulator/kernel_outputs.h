// Where a launch of a kernel may write.
//
// The constness of pointer parameters tells, and for pointers inside of structures the layouts of PyTorch's
// kernels. Pointers in structures that are not known here count as read: so a payload that a kernel only
// reads is kept, and what such a kernel writes may read as what stood there before.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace maya {

// Pointers to outputs in one parameter of a kernel.
struct OutputParameter {
  enum class Form : uint8_t {
    words,              // `count` words at `offset`
    operands,           // the first operand in the capture of an elementwise kernel
    random_operand,     // the one operand in the capture of a kernel of random numbers
    reduction_results,  // in the ReduceOp of a reduction
    first_inside,       // the first word that is an address, in a parameter of `count` words
    one_each_block,     // as many leading words as the grid has blocks
    tensor_lists,  // `count` lists of tensors at the begin of a multi_tensor_apply_kernel's first argument
  };
  Form form;
  int index;  // position in the argument array of the launch
  int count = 1;
  int offset = 0;  // in bytes
};

// From the demangled name of a kernel and its parameter list.
std::vector<OutputParameter> find_outputs(std::string_view name,
                                          const std::vector<std::string_view>& parameters);

// For a kernel whose name tells nothing of its parameters (Triton, extern "C"): every one of the size of a
// pointer, and the first address in larger ones.
std::vector<OutputParameter> find_outputs(const std::vector<int>& parameter_bytes);

// Addresses in device memory that a launch with `num_blocks` blocks may write, appended to `addresses`.
// `num_tensors`: length of the lists of a multi_tensor_apply_kernel, of which each has room for
// `max_tensors`.
struct TensorListSizes {
  int num_tensors, max_tensors;
};
void append_outputs(const OutputParameter& output, const void* argument, unsigned num_blocks,
                    const TensorListSizes& lists, std::vector<uintptr_t>& addresses);

// Input and result of a reduction, from the argument of reduce_kernel; zeros where they are not found.
struct ReductionOperands {
  uintptr_t source, result;
};
ReductionOperands find_reduction_operands(const void* argument);

}  // namespace maya
