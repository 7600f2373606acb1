#include "kernel_signature.h"

#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <string_view>

namespace maya {
namespace {

std::string demangle(const char* mangled) {
  int status = 0;
  char* text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  if (status != 0 || text == nullptr) return mangled;
  std::string name = text;
  free(text);
  return name;
}

// The parameter list is the last parenthesised group: brackets of template arguments and lambdas
// before it are balanced.
std::string_view parameter_list(std::string_view name) {
  size_t close = name.rfind(')');
  if (close == std::string_view::npos) return {};
  int depth = 0;
  for (size_t i = close + 1; i-- > 0;) {
    if (name[i] == ')') ++depth;
    if (name[i] == '(' && --depth == 0) return name.substr(i + 1, close - i - 1);
  }
  return {};
}

std::vector<std::string_view> split_parameters(std::string_view list) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= list.size(); ++i) {
    char c = i < list.size() ? list[i] : ',';
    if (c == '(' || c == '<' || c == '[' || c == '{') ++depth;
    if ((c == ')' || c == '>' || c == ']' || c == '}') && !(c == '>' && i > 0 && list[i - 1] == '-')) --depth;
    if (c == ',' && (depth == 0 || i == list.size())) {
      std::string_view part = list.substr(begin, i - begin);
      part.remove_prefix(std::min(part.find_first_not_of(' '), part.size()));
      if (!part.empty()) parts.push_back(part);
      begin = i + 1;
    }
  }
  return parts;
}

struct IntegerType {
  std::string_view name;
  int bytes;
  bool is_signed;
};
constexpr IntegerType kIntegerTypes[] = {
    {"int", 4, true},         {"unsigned int", 4, false},
    {"long", 8, true},        {"unsigned long", 8, false},
    {"long long", 8, true},   {"unsigned long long", 8, false},
    {"short", 2, true},       {"unsigned short", 2, false},
    {"bool", 1, false},       {"char", 1, true},
    {"signed char", 1, true}, {"unsigned char", 1, false},
};

std::vector<ScalarParameter> integer_parameters(const std::vector<std::string_view>& parameters) {
  std::vector<ScalarParameter> scalars;
  for (size_t i = 0; i < parameters.size() && scalars.size() < kMaxScalars; ++i) {
    std::string_view type = parameters[i];
    if (type.ends_with(" const")) type.remove_suffix(6);
    for (const IntegerType& known : kIntegerTypes) {
      if (type == known.name) scalars.push_back({static_cast<int>(i), known.bytes, known.is_signed});
    }
  }
  return scalars;
}

// Sizes of ATen/native/cuda/MultiTensorApply.cuh, which depend on the CUDA version PyTorch is built with.
#if CUDART_VERSION >= 13000
constexpr int kMaxTensors[5] = {770, 448, 336, 252, 210};
constexpr int kMaxTensorsWithScalars[5] = {672, 448, 336, 252, 210};
constexpr int kMaxTensorsWithComplexDouble[2] = {504, 420};
constexpr size_t kMaxBlocks = 2240;
using BlockIndex = uint16_t;
#else
constexpr int kMaxTensors[5] = {110, 64, 48, 36, 30};
constexpr int kMaxTensorsWithScalars[5] = {96, 64, 48, 36, 30};
constexpr int kMaxTensorsWithComplexDouble[2] = {72, 60};
constexpr size_t kMaxBlocks = 320;
using BlockIndex = uint8_t;
#endif
constexpr int64_t kChunkElements = 65536;

size_t align(size_t offset, size_t bytes) { return (offset + bytes - 1) / bytes * bytes; }

// Layouts of that header: addresses[depth][max_tensors], numel[max_tensors], then per-tensor values or
// addresses of steps, then block_to_tensor and block_to_chunk.
bool multi_tensor_layout(std::string_view type, MultiTensorLayout* layout) {
  size_t close = type.rfind('>');
  if (close == std::string_view::npos || close == 0) return false;
  int depth = type[close - 1] - '0';
  if (depth < 1 || depth > 5) return false;
  auto is = [&](std::string_view name) { return type.find(name) != std::string_view::npos; };
  size_t extra_bytes = 0, extra_alignment = 8;
  layout->max_tensors = kMaxTensors[depth - 1];
  if (is("::TensorListScalarListMetadata<")) {
    layout->max_tensors = kMaxTensorsWithScalars[depth - 1];
    if (is("<c10::complex<double>")) {
      extra_bytes = extra_alignment = 16;
      if (depth <= 2) layout->max_tensors = kMaxTensorsWithComplexDouble[depth - 1];
    } else {
      extra_bytes = is("<double") || is("<long") || is("<c10::complex<float>") ? 8
                    : is("<float") || is("<int")                               ? 4
                                                                               : 0;
      extra_alignment = std::max<size_t>(extra_bytes, 1);
      if (extra_bytes == 0) return false;  // a scalar type whose size is not known here
    }
  } else if (is("::FusedOptimizerTensorListMetadata<")) {
    extra_bytes = 8;
  } else if (!is("::TensorListMetadata<")) {
    return false;
  }
  size_t tensors = static_cast<size_t>(layout->max_tensors);
  layout->sizes_offset = 8 * tensors * static_cast<size_t>(depth);
  size_t offset = align(layout->sizes_offset + 8 * tensors, extra_alignment) + extra_bytes * tensors;
  layout->block_to_tensor_offset = align(offset, sizeof(BlockIndex));
  layout->block_to_chunk_offset = align(layout->block_to_tensor_offset + sizeof(BlockIndex) * kMaxBlocks, 4);
  return true;
}

bool has_function(std::string_view name, std::string_view function) {
  return name.find("at::native::" + std::string(function) + "<") != std::string_view::npos;
}

}  // namespace

KernelSignature read_signature(const char* mangled_name) {
  KernelSignature signature;
  signature.name = demangle(mangled_name);
  std::string_view name = signature.name;
  std::vector<std::string_view> parameters = split_parameters(parameter_list(name));
  signature.scalars = integer_parameters(parameters);
  signature.outputs = find_outputs(name, parameters);
  signature.computation = find_computation(name, parameters);
  if (name.find("multi_tensor_apply_kernel<") != std::string_view::npos && !parameters.empty()) {
    if (multi_tensor_layout(parameters[0], &signature.multi_tensor)) {
      signature.element_count = ElementCount::multi_tensor;
    }
  } else if (!signature.scalars.empty() &&
             (has_function(name, "vectorized_elementwise_kernel") ||
              has_function(name, "elementwise_kernel") || has_function(name, "unrolled_elementwise_kernel") ||
              has_function(name, "elementwise_kernel_with_index") ||
              name.find("vectorized_templated_elementwise_kernel<") != std::string_view::npos)) {
    signature.element_count = ElementCount::first_integer;
  }
  return signature;
}

TensorListSizes tensor_list_sizes(const MultiTensorLayout& layout, const void* first_argument,
                                  unsigned num_blocks) {
  if (layout.max_tensors == 0) return {0, kMaxTensors[0]};
  auto* block_to_tensor = reinterpret_cast<const BlockIndex*>(static_cast<const char*>(first_argument) +
                                                              layout.block_to_tensor_offset);
  int last = -1;
  for (size_t block = 0; block < std::min<size_t>(num_blocks, kMaxBlocks); ++block) {
    last = std::max<int>(last, block_to_tensor[block]);
  }
  return {std::min(last + 1, layout.max_tensors), layout.max_tensors};
}

int64_t count_multi_tensor_elements(const MultiTensorLayout& layout, const void* first_argument,
                                    unsigned num_blocks) {
  auto* base = static_cast<const char*>(first_argument);
  auto* sizes = reinterpret_cast<const int64_t*>(base + layout.sizes_offset);
  auto* block_to_tensor = reinterpret_cast<const BlockIndex*>(base + layout.block_to_tensor_offset);
  auto* block_to_chunk = reinterpret_cast<const int32_t*>(base + layout.block_to_chunk_offset);
  int64_t elements = 0;
  for (size_t block = 0; block < std::min<size_t>(num_blocks, kMaxBlocks); ++block) {
    if (block_to_tensor[block] >= layout.max_tensors) return INT64_MIN;
    int64_t left = sizes[block_to_tensor[block]] - kChunkElements * block_to_chunk[block];
    elements += std::clamp<int64_t>(left, 0, kChunkElements);
  }
  return elements;
}

}  // namespace maya
