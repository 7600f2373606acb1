// Floating-point types of 16 and 8 bits on the CPU.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace maya {

// What a type of less than 32 bits does at the top of its range.
enum class Overflow {
  infinity,    // as IEEE 754: the highest exponent is infinity and NaN
  saturate,    // the same layout; conversions stop at the largest finite value (fp8 E5M2)
  no_infinity  // no infinity, NaN is all ones; conversions saturate (fp8 E4M3FN)
};

// A float of one sign bit, `exponent_bits` and `mantissa_bits`; conversions round to nearest, ties to even.
template <typename Bits, int exponent_bits, int mantissa_bits, Overflow overflow>
struct SmallFloat {
  using Storage = Bits;
  using Accumulator = float;

  static float load(Bits bits) {
    const uint32_t sign = uint32_t(bits >> kSignShift) << 31;
    const uint32_t exponent = (bits >> mantissa_bits) & kMaxExponent;
    const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
    if (overflow == Overflow::no_infinity ? (bits & kMagnitude) == kMagnitude : exponent == kMaxExponent) {
      const bool is_infinity = overflow != Overflow::no_infinity && mantissa == 0;
      return std::bit_cast<float>(sign | (is_infinity ? 0x7f800000u : 0x7fc00000u));
    }
    if (exponent == 0) {
      const float value = float(mantissa) * std::ldexp(1.0f, 1 - kBias - mantissa_bits);
      return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
    }
    return std::bit_cast<float>(sign | ((exponent + 127 - kBias) << 23) | (mantissa << (23 - mantissa_bits)));
  }

  static Bits store(float value) {
    const Bits sign = Bits((std::bit_cast<uint32_t>(value) >> 31) << kSignShift);
    if (std::isnan(value)) return Bits(sign | kNan);
    const float magnitude = std::fabs(value);
    uint32_t bits;
    if (magnitude < std::ldexp(1.0f, 1 - kBias)) {
      // Subnormal: a whole number of the smallest steps. One that rounds up becomes the smallest normal
      // number.
      bits = uint32_t(std::nearbyint(std::ldexp(magnitude, kBias - 1 + mantissa_bits)));
    } else {
      constexpr int shift = 23 - mantissa_bits;
      bits = std::bit_cast<uint32_t>(magnitude);
      bits += (1u << (shift - 1)) - 1 + ((bits >> shift) & 1);
      bits = (bits >> shift) - (uint32_t(127 - kBias) << mantissa_bits);
      if (bits > kMaxFinite) bits = overflow == Overflow::infinity ? kMaxFinite + 1 : kMaxFinite;
    }
    return Bits(sign | bits);
  }

 private:
  static constexpr int kSignShift = exponent_bits + mantissa_bits;
  static constexpr int kBias = (1 << (exponent_bits - 1)) - 1;
  static constexpr uint32_t kMaxExponent = (1u << exponent_bits) - 1;
  static constexpr uint32_t kMagnitude = (1u << kSignShift) - 1;
  static constexpr uint32_t kMaxFinite =
      overflow == Overflow::no_infinity ? kMagnitude - 1 : (kMaxExponent << mantissa_bits) - 1;
  static constexpr uint32_t kNan = kMagnitude;
};

using Float16 = SmallFloat<uint16_t, 5, 10, Overflow::infinity>;
using Bfloat16 = SmallFloat<uint16_t, 8, 7, Overflow::infinity>;
using Float8E4m3 = SmallFloat<uint8_t, 4, 3, Overflow::no_infinity>;
using Float8E5m2 = SmallFloat<uint8_t, 5, 2, Overflow::saturate>;

}  // namespace maya
