#include "kernel_outputs.h"

#include <string.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "allocations.h"

namespace maya {
namespace {

using Form = OutputParameter::Form;

// Bytes of OffsetCalculator<num_operands, uint32_t>: the number of dimensions, 25 divisors of 12 bytes, 25
// strides of each operand (ATen/cuda/detail/OffsetCalculator.cuh). Entries of dimensions that do not exist
// hold what was on the stack before, so addresses are looked for at their places only.
constexpr size_t offset_calculator_bytes(size_t num_operands) { return 4 + 25 * 12 + 25 * 4 * num_operands; }
constexpr size_t align_to_word(size_t offset) { return (offset + 7) / 8 * 8; }
constexpr size_t kMaxOperands = 8;

// ReduceOp (ATen/native/cuda/Reduce.cuh): operator and identity, ReduceConfig, two offset calculators, then
// src, dst[2], acc_buf, cta_buf, semaphores.
constexpr size_t kReduceConfigBytes = 64;
constexpr size_t kMinSourceOffset =
    align_to_word(kReduceConfigBytes + offset_calculator_bytes(1) + offset_calculator_bytes(2));
constexpr size_t kMaxSourceOffset = kMinSourceOffset + 96;

// "elementwise_kernel" of "void at::native::elementwise_kernel<128, ...>(int, ...)".
std::string_view function_name(std::string_view name) {
  constexpr std::string_view kAnonymous = "(anonymous namespace)";
  size_t begin = 0, end = 0;
  for (; end < name.size() && name[end] != '<'; ++end) {
    if (name[end] == '(') {
      if (name.substr(end, kAnonymous.size()) != kAnonymous) break;
      end += kAnonymous.size() - 1;
    } else if (name[end] == ':' || name[end] == ' ') {
      begin = end + 1;
    }
  }
  return name.substr(begin, end - begin);
}

bool is_pointer(std::string_view type) { return type.ends_with('*'); }
bool is_pointer_to_const(std::string_view type) { return type.ends_with(" const*"); }

bool is_array_of_pointers(std::string_view type) {
  return type.starts_with("std::array<char*") || type.starts_with("at::detail::Array<char*");
}

// A view of a tensor that begins with the pointer to its data; the type of its elements comes first.
bool is_writable_view(std::string_view type) {
  size_t open = type.find('<');
  if (open == std::string_view::npos) return false;
  std::string_view head = type.substr(0, open);
  if (!head.ends_with("::TensorInfo") && !head.ends_with("PackedTensorAccessor") &&
      !head.ends_with("::TensorAccessor")) {
    return false;
  }
  int depth = 0;
  size_t end = open + 1;
  for (; end < type.size() && (depth > 0 || (type[end] != ',' && type[end] != '>')); ++end) {
    if (type[end] == '<') ++depth;
    if (type[end] == '>') --depth;
  }
  return !type.substr(open + 1, end - open - 1).ends_with(" const");
}

// Elementwise kernels have their outputs first among the operands; most have one.
int num_outputs(std::string_view name) {
  constexpr std::string_view kMarker = "_for_multi_outputs<";
  size_t at = name.find(kMarker);
  int count = 1;
  if (at != std::string_view::npos) {
    std::from_chars(name.data() + at + kMarker.size(), name.data() + name.size(), count);
  }
  return count;
}

int tensor_list_depth(std::string_view metadata) {
  size_t close = metadata.rfind('>');
  if (close == std::string_view::npos || close == 0) return 0;
  int depth = metadata[close - 1] - '0';
  return depth >= 1 && depth <= 5 ? depth : 0;
}

// Kernels whose last parameter captures an offset calculator and then the operands of a TensorIterator, the
// output first (CUDALoops.cuh, IndexKernel.cu, DistributionTemplates.h).
void add_captured_output(std::string_view name, std::string_view function, int index,
                         std::vector<OutputParameter>& outputs) {
  if (name.find("::gpu_index_kernel<") != std::string_view::npos) {
    outputs.push_back({Form::words, index, 1, int(align_to_word(offset_calculator_bytes(3)))});
  } else if (function == "elementwise_kernel" || function == "index_elementwise_kernel") {
    outputs.push_back({Form::operands, index});
  } else if (function == "distribution_elementwise_grid_stride_kernel") {
    outputs.push_back({Form::random_operand, index});
  }
}

// Inputs that are passed by pointers to writable memory: all behind the first pointer of an index or gather
// kernel, the first parameter of what CUB and Thrust launch.
bool writes_first_pointer_only(std::string_view function) { return function == "vectorized_gather_kernel"; }
bool reads_first_parameter(std::string_view name) {
  return name.find("cub::") != std::string_view::npos || name.find("thrust::") != std::string_view::npos;
}

uintptr_t word_at(const void* base, size_t offset) {
  uintptr_t word;
  memcpy(&word, static_cast<const char*>(base) + offset, sizeof(word));
  return word;
}

bool are_addresses(const void* argument, size_t offset, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (!is_emulated_address(word_at(argument, offset + i * sizeof(uintptr_t)))) return false;
  }
  return true;
}

uintptr_t first_address(const void* argument, size_t num_words) {
  for (size_t i = 0; i < num_words; ++i) {
    const uintptr_t word = word_at(argument, i * sizeof(uintptr_t));
    if (is_emulated_address(word)) return word;
  }
  return 0;
}

// The operands stand behind the offset calculator, whose size tells how many there are.
uintptr_t first_operand(const void* argument) {
  for (size_t count = kMaxOperands; count > 0; --count) {
    const size_t offset = align_to_word(offset_calculator_bytes(count));
    if (are_addresses(argument, offset, count)) return word_at(argument, offset);
  }
  return 0;
}

// Offset of src, where it is followed by one or two results and by buffers or null pointers.
size_t find_reduction_source(const void* argument) {
  constexpr size_t kWord = sizeof(uintptr_t);
  for (size_t offset = kMinSourceOffset; offset <= kMaxSourceOffset; offset += kWord) {
    bool matches = are_addresses(argument, offset, 2);
    for (size_t i = 2; i < 6; ++i) {
      const uintptr_t word = word_at(argument, offset + i * kWord);
      matches = matches && (word == 0 || is_emulated_address(word));
    }
    if (matches) return offset;
  }
  return 0;
}

}  // namespace

std::vector<OutputParameter> find_outputs(std::string_view name,
                                          const std::vector<std::string_view>& parameters) {
  std::string_view function = function_name(name);
  if (function == "reduce_kernel") return {{Form::reduction_results, 0}};
  std::vector<OutputParameter> outputs;
  const bool reads_first = reads_first_parameter(name);
  const int last = static_cast<int>(parameters.size()) - 1;
  for (int i = 0; i <= last; ++i) {
    std::string_view type = parameters[static_cast<size_t>(i)];
    if (is_pointer(type)) {
      if (!(i == 0 && reads_first) && !is_pointer_to_const(type)) {
        outputs.push_back({Form::words, i});
        if (writes_first_pointer_only(function)) return outputs;
      }
    } else if (is_array_of_pointers(type)) {
      outputs.push_back({Form::words, i, num_outputs(name)});
    } else if (is_writable_view(type)) {
      outputs.push_back({Form::words, i});
    } else if (type.ends_with("::TensorListAddresses")) {
      outputs.push_back({Form::one_each_block, i});
    } else if (i == 0 && function == "multi_tensor_apply_kernel" &&
               name.find("LpNormFunctor") == std::string_view::npos) {  // a norm only reads its lists
      if (int depth = tensor_list_depth(type); depth > 0) outputs.push_back({Form::tensor_lists, i, depth});
    } else if (i == last) {
      add_captured_output(name, function, i, outputs);
    }
  }
  return outputs;
}

std::vector<OutputParameter> find_outputs(const std::vector<int>& parameter_bytes) {
  std::vector<OutputParameter> outputs;
  for (size_t i = 0; i < parameter_bytes.size(); ++i) {
    const int bytes = parameter_bytes[i], index = static_cast<int>(i);
    if (bytes == sizeof(uintptr_t)) outputs.push_back({Form::words, index});
    if (bytes > int(sizeof(uintptr_t))) {
      outputs.push_back({Form::first_inside, index, bytes / int(sizeof(uintptr_t))});
    }
  }
  return outputs;
}

void append_outputs(const OutputParameter& output, const void* argument, unsigned num_blocks,
                    const TensorListSizes& lists, std::vector<uintptr_t>& addresses) {
  auto add = [&](uintptr_t address) {
    if (is_emulated_address(address)) addresses.push_back(address);
  };
  auto add_words = [&](size_t offset, size_t num_words) {
    for (size_t i = 0; i < num_words; ++i) add(word_at(argument, offset + i * sizeof(uintptr_t)));
  };
  const auto count = static_cast<size_t>(output.count);
  switch (output.form) {
    case Form::words:
      return add_words(static_cast<size_t>(output.offset), count);
    case Form::operands:
      return add(first_operand(argument));
    case Form::random_operand:  // without an offset calculator where the tensor is contiguous
      return add_words(are_addresses(argument, 0, 1) ? 0 : align_to_word(offset_calculator_bytes(1)), 1);
    case Form::reduction_results:
      if (const size_t source = find_reduction_source(argument)) add_words(source + sizeof(uintptr_t), 5);
      return;
    case Form::first_inside:
      return add(first_address(argument, count));
    case Form::one_each_block:
      return add_words(0, std::min<size_t>(num_blocks, lists.max_tensors));
    case Form::tensor_lists:
      for (size_t list = 0; list < count; ++list) {
        add_words(list * lists.max_tensors * sizeof(uintptr_t), lists.num_tensors);
      }
      return;
  }
}

ReductionOperands find_reduction_operands(const void* argument) {
  const size_t offset = find_reduction_source(argument);
  if (offset == 0) return {};
  return {word_at(argument, offset), word_at(argument, offset + sizeof(uintptr_t))};
}

}  // namespace maya
