#include "reduce.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "small_float.h"

namespace maya {
namespace {

// A type of the C++ language with the interface of SmallFloat.
template <typename T>
struct Plain {
  using Storage = T;
  using Accumulator = T;
  static T load(T value) { return value; }
  static T store(T value) { return value; }
};

template <typename Function>
void dispatch(ncclDataType_t dtype, Function&& function) {
  switch (dtype) {
    case ncclInt8:
      return function(Plain<int8_t>{});
    case ncclUint8:
      return function(Plain<uint8_t>{});
    case ncclInt32:
      return function(Plain<int32_t>{});
    case ncclUint32:
      return function(Plain<uint32_t>{});
    case ncclInt64:
      return function(Plain<int64_t>{});
    case ncclUint64:
      return function(Plain<uint64_t>{});
    case ncclFloat16:
      return function(Float16{});
    case ncclFloat32:
      return function(Plain<float>{});
    case ncclFloat64:
      return function(Plain<double>{});
    case ncclBfloat16:
      return function(Bfloat16{});
    case ncclFloat8e4m3:
      return function(Float8E4m3{});
    case ncclFloat8e5m2:
      return function(Float8E5m2{});
    case ncclNumTypes:
      break;
  }
}

// Signed overflow is undefined in C++ and wraps on the device.
template <typename A>
A add(A left, A right) {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<uint64_t>(left) + static_cast<uint64_t>(right));
  } else {
    return left + right;
  }
}

template <typename A>
A multiply(A left, A right) {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<uint64_t>(left) * static_cast<uint64_t>(right));
  } else {
    return left * right;
  }
}

template <typename A>
A combine(ncclRedOp_t op, A left, A right) {
  switch (op) {
    case ncclProd:
      return multiply(left, right);
    case ncclMax:
      return std::max(left, right);
    case ncclMin:
      return std::min(left, right);
    default:
      return add(left, right);
  }
}

// The wrapping sum of an average must not be taken in 8 bits before it is divided.
template <typename A>
using Sum =
    std::conditional_t<std::is_integral_v<A>, std::conditional_t<std::is_signed_v<A>, int64_t, uint64_t>, A>;

template <typename A>
A power(A base, int exponent) {
  A result{1};
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = multiply(result, base);
    base = multiply(base, base);
  }
  return result;
}

}  // namespace

bool is_integer_type(ncclDataType_t dtype) {
  bool is_integer = false;
  dispatch(dtype, [&]<typename Type>(Type) {
    is_integer = std::is_integral_v<typename Type::Storage> && std::is_integral_v<typename Type::Accumulator>;
  });
  return is_integer;
}

size_t element_bytes(ncclDataType_t dtype) {
  size_t bytes = 0;
  dispatch(dtype, [&](auto type) { bytes = sizeof(typename decltype(type)::Storage); });
  return bytes;
}

void reduce(ncclRedOp_t op, ncclDataType_t dtype, size_t count, std::span<const void* const> inputs,
            void* output) {
  dispatch(dtype, [&](auto type) {
    using Type = decltype(type);
    using Storage = typename Type::Storage;
    using Accumulator = Sum<typename Type::Accumulator>;
    auto* out = static_cast<Storage*>(output);
    for (size_t i = 0; i < count; ++i) {
      auto input = [&](size_t j) {
        return Accumulator(Type::load(static_cast<const Storage*>(inputs[j])[i]));
      };
      Accumulator value = input(0);
      for (size_t j = 1; j < inputs.size(); ++j) value = combine(op, value, input(j));
      if (op == ncclAvg) value /= static_cast<Accumulator>(inputs.size());
      out[i] = Type::store(static_cast<typename Type::Accumulator>(value));
    }
  });
}

void reduce_copies(ncclRedOp_t op, ncclDataType_t dtype, size_t count, const void* input, int num_copies,
                   void* output) {
  dispatch(dtype, [&](auto type) {
    using Type = decltype(type);
    using Storage = typename Type::Storage;
    using Accumulator = Sum<typename Type::Accumulator>;
    const auto* in = static_cast<const Storage*>(input);
    auto* out = static_cast<Storage*>(output);
    for (size_t i = 0; i < count; ++i) {
      Accumulator value = Accumulator(Type::load(in[i]));
      if (op == ncclSum) value = multiply(value, static_cast<Accumulator>(num_copies));
      if (op == ncclProd) value = power(value, num_copies);
      out[i] = Type::store(static_cast<typename Type::Accumulator>(value));
    }
  });
}

void scale(ncclDataType_t dtype, size_t count, const void* input, double factor, void* output) {
  dispatch(dtype, [&](auto type) {
    using Type = decltype(type);
    const auto* in = static_cast<const typename Type::Storage*>(input);
    auto* out = static_cast<typename Type::Storage*>(output);
    for (size_t i = 0; i < count; ++i) {
      out[i] = Type::store(static_cast<typename Type::Accumulator>(Type::load(in[i]) * factor));
    }
  });
}

double load_scalar(ncclDataType_t dtype, const void* element) {
  double value = 0;
  dispatch(dtype, [&](auto type) {
    using Type = decltype(type);
    value = static_cast<double>(Type::load(*static_cast<const typename Type::Storage*>(element)));
  });
  return value;
}

}  // namespace maya
