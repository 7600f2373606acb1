#include "computed_kernels.h"

#include <string.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "allocations.h"
#include "device.h"
#include "kernel_outputs.h"
#include "known_bytes.h"

namespace maya {
namespace {

struct ElementType {
  std::string_view name;
  int bytes;
};
constexpr ElementType kElementTypes[] = {
    {"float", 4},        {"double", 8}, {"int", 4},          {"long", 8},          {"short", 2},
    {"signed char", 1},  {"bool", 1},   {"c10::Half", 2},    {"c10::BFloat16", 2}, {"unsigned char", 1},
    {"unsigned int", 4}, {"char", 1},   {"unsigned long", 8}};

constexpr std::string_view kFill = "at::native::FillFunctor<";

// FillFunctor<T> is T by value (ATen/native/cuda/FillKernel.cu).
int fill_element_bytes(std::string_view type) {
  if (!type.starts_with(kFill)) return 0;
  std::string_view element = type.substr(kFill.size());
  for (const ElementType& known : kElementTypes) {
    if (element.starts_with(known.name) && element.substr(known.name.size()) == ">") return known.bytes;
  }
  return 0;
}

bool is_contiguous_elementwise(std::string_view name) {
  return name.starts_with("void at::native::vectorized_elementwise_kernel<") ||
         (name.starts_with("void at::native::unrolled_elementwise_kernel<") &&
          name.find("::StoreWithoutCast") != std::string_view::npos);
}

struct Value {
  std::array<char, 8> bytes{};
};

void fill(char* target, int64_t num_elements, int element_bytes, const Value& value) {
  const size_t bytes = static_cast<size_t>(num_elements * element_bytes);
  if (value.bytes == Value{}.bytes) {
    overwrite_known_bytes(target, bytes);  // touches only what is not zero
  } else {
    for (int64_t i = 0; i < num_elements; ++i)
      memcpy(target + i * element_bytes, value.bytes.data(), element_bytes);
  }
  keep_known_bytes(target, bytes);
}

// As amp_update_scale_cuda_kernel does (ATen/native/cuda/AmpKernels.cu).
struct LossScaleUpdate {
  float* scale;
  int* growth_tracker;
  const float* found_inf;
  double growth_factor, backoff_factor;
  int growth_interval;

  void operator()() const {
    settle_known_bytes(scale, sizeof(*scale));
    settle_known_bytes(growth_tracker, sizeof(*growth_tracker));
    settle_known_bytes(found_inf, sizeof(*found_inf));
    if (*found_inf != 0) {
      *scale = static_cast<float>(*scale * backoff_factor);
      *growth_tracker = 0;
    } else if (*growth_tracker + 1 == growth_interval) {
      const auto grown = static_cast<float>(*scale * growth_factor);
      if (std::isfinite(grown)) *scale = grown;
      *growth_tracker = 0;
    } else {
      ++*growth_tracker;
    }
    keep_known_bytes(scale, sizeof(*scale));
    keep_known_bytes(growth_tracker, sizeof(*growth_tracker));
  }
};

template <class Type>
Type read(const void* argument) {
  Type value;
  memcpy(&value, argument, sizeof(value));
  return value;
}

// Results of a size that may be written, else nothing.
char* small_result(const void* argument, int64_t bytes) {
  auto* target = read<char*>(argument);
  const bool is_small = bytes > 0 && bytes <= int64_t{kPayloadLimitBytes};
  return is_small && find_allocation(target).space == Space::device ? target : nullptr;
}

// CompareEqFunctor begins with EqOpType: equal, not equal (ATen/native/cuda/CompareEQKernel.cu).
bool asks_for_difference(const void* functor) { return read<int>(functor) == 1; }

// AUnaryFunctor<.., CompareEqFunctor> has the scalar after the functor.
bool compares_with_infinity(const void* functor, ScalarType type) {
  auto* value = static_cast<const char*>(functor);
  switch (type) {
    case ScalarType::float16:
      return read<uint16_t>(value + sizeof(int)) == 0x7c00;
    case ScalarType::bfloat16:
      return read<uint16_t>(value + sizeof(int)) == 0x7f80;
    case ScalarType::float32:
      return std::isinf(read<float>(value + sizeof(int)));
    case ScalarType::float64:
      return std::isinf(read<double>(value + sizeof(double)));
    case ScalarType::other:
      break;
  }
  return false;
}

ScalarType compared_scalar_type(std::string_view functor) {
  constexpr std::string_view kUnary = "at::native::AUnaryFunctor<";
  if (!functor.starts_with(kUnary)) return ScalarType::other;
  const std::string_view type = functor.substr(kUnary.size());
  if (type.starts_with("float,")) return ScalarType::float32;
  if (type.starts_with("double,")) return ScalarType::float64;
  if (type.starts_with("c10::Half,")) return ScalarType::float16;
  return type.starts_with("c10::BFloat16,") ? ScalarType::bfloat16 : ScalarType::other;
}

std::function<void()> ones(char* target, int64_t count) {
  return [=] {
    memset(target, 1, static_cast<size_t>(count));
    keep_known_bytes(target, static_cast<size_t>(count), Origin::rule);
  };
}

// The conjunction of two tensors of bools where both are known; else nothing is.
void conjoin(char* target, const char* left, const char* right, size_t count) {
  const Origin origin = std::max(origin_of_bytes(left, count), origin_of_bytes(right, count));
  if (origin == Origin::kernel) return overwrite_known_bytes(target, count);
  for (size_t i = 0; i < count; ++i) target[i] = left[i] != 0 && right[i] != 0;
  keep_known_bytes(target, count, origin);
}

// ReduceOp<bool, ..>: operator and identity in one byte each, then ReduceConfig: element size, numbers of
// inputs and outputs (ATen/native/cuda/Reduce.cuh).
std::function<void()> reduce_all(const void* argument) {
  const auto* config = static_cast<const char*>(argument) + sizeof(int);
  const int64_t num_inputs = read<int>(config + sizeof(int)),
                num_outputs = read<int>(config + 2 * sizeof(int));
  const ReductionOperands operands = find_reduction_operands(argument);
  char* target = small_result(&operands.result, num_outputs);
  if (target == nullptr || num_inputs < 0) return {};
  auto* source = reinterpret_cast<const char*>(operands.source);
  const auto bytes = static_cast<size_t>(num_inputs * num_outputs);
  return [=] {
    const Origin origin = bytes <= kPayloadLimitBytes ? origin_of_bytes(source, bytes) : Origin::kernel;
    const bool is_true = origin == Origin::kernel || memchr(source, 0, bytes) == nullptr;
    memset(target, is_true, static_cast<size_t>(num_outputs));
    keep_known_bytes(target, static_cast<size_t>(num_outputs), std::min(origin, Origin::rule));
  };
}

bool is_device_memory(const void* address) { return find_allocation(address).space == Space::device; }

}  // namespace

Computation find_computation(std::string_view name, const std::vector<std::string_view>& parameters) {
  if (name.starts_with("at::native::amp_update_scale_cuda_kernel(") && parameters.size() == 6) {
    return {Computation::Kind::update_loss_scale};
  }
  if (name.starts_with("void at::native::reduce_kernel<") && parameters.size() == 1) {
    const bool is_all = parameters[0].starts_with("at::native::ReduceOp<bool,") &&
                        parameters[0].find("::and_kernel_cuda(") != std::string_view::npos;
    return {is_all ? Computation::Kind::all : Computation::Kind::none};
  }
  if (parameters.size() < 3 || !is_contiguous_elementwise(name)) return {};
  const std::string_view functor = parameters[1];
  if (functor.find("::CompareEqFunctor<") != std::string_view::npos) {
    if (functor.starts_with("at::native::BinaryFunctor<")) return {Computation::Kind::compare};
    const ScalarType type = compared_scalar_type(functor);
    if (type != ScalarType::other) return {Computation::Kind::compare_with_scalar, 0, type};
  }
  if (functor.starts_with("at::native::BinaryFunctor<bool, bool, bool,") &&
      (functor.find("::MulFunctor<") != std::string_view::npos ||
       functor.find("::BitwiseAndFunctor<") != std::string_view::npos ||
       functor.find("::logical_and_kernel_cuda") != std::string_view::npos)) {
    return {Computation::Kind::both};
  }
  if (const int bytes = fill_element_bytes(parameters[1]); bytes > 0) return {Computation::Kind::fill, bytes};
  return {};
}

std::function<void()> computation_of_launch(const Computation& computation, void** arguments) {
  switch (computation.kind) {
    case Computation::Kind::none:
      return {};
    case Computation::Kind::fill: {
      const int64_t num_elements = read<int>(arguments[0]);
      const int element_bytes = computation.element_bytes;
      auto* target = read<char*>(arguments[2]);
      if (num_elements * element_bytes > int64_t(kPayloadLimitBytes) || !is_device_memory(target)) return {};
      Value value;
      memcpy(value.bytes.data(), arguments[1], element_bytes);
      return [=] { fill(target, num_elements, element_bytes, value); };
    }
    case Computation::Kind::compare: {
      const auto operands = read<std::array<char*, 3>>(arguments[2]);
      const int64_t count = read<int>(arguments[0]);
      char* target = small_result(arguments[2], count);
      if (target == nullptr || operands[1] != operands[2] || asks_for_difference(arguments[1])) return {};
      return ones(target, count);
    }
    case Computation::Kind::compare_with_scalar: {
      const int64_t count = read<int>(arguments[0]);
      char* target = small_result(arguments[2], count);
      const bool is_always_true =
          asks_for_difference(arguments[1]) && compares_with_infinity(arguments[1], computation.scalar_type);
      if (target == nullptr || !is_always_true) return {};
      return ones(target, count);
    }
    case Computation::Kind::both: {
      const auto operands = read<std::array<char*, 3>>(arguments[2]);
      const int64_t count = read<int>(arguments[0]);
      char* target = small_result(arguments[2], count);
      if (target == nullptr) return {};
      return [=] { conjoin(target, operands[1], operands[2], static_cast<size_t>(count)); };
    }
    case Computation::Kind::all:
      return reduce_all(arguments[0]);
    case Computation::Kind::update_loss_scale: {
      const LossScaleUpdate update{read<float*>(arguments[0]),       read<int*>(arguments[1]),
                                   read<const float*>(arguments[2]), read<double>(arguments[3]),
                                   read<double>(arguments[4]),       read<int>(arguments[5])};
      for (const void* address :
           {static_cast<const void*>(update.scale), static_cast<const void*>(update.growth_tracker),
            static_cast<const void*>(update.found_inf)}) {
        if (!is_device_memory(address)) return {};
      }
      return update;
    }
  }
  return {};
}

}  // namespace maya
