#include "computed_kernels.h"

#include <string.h>

#include <array>
#include <cmath>

#include "allocations.h"
#include "device.h"
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
  if (value.bytes == Value{}.bytes) return overwrite_known_bytes(target, bytes);
  for (int64_t i = 0; i < num_elements; ++i)
    memcpy(target + i * element_bytes, value.bytes.data(), element_bytes);
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

bool is_device_memory(const void* address) { return find_allocation(address).space == Space::device; }

}  // namespace

Computation find_computation(std::string_view name, const std::vector<std::string_view>& parameters) {
  if (name.starts_with("at::native::amp_update_scale_cuda_kernel(") && parameters.size() == 6) {
    return {Computation::Kind::update_loss_scale};
  }
  if (parameters.size() < 3 || !is_contiguous_elementwise(name)) return {};
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
