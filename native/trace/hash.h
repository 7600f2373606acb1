// FNV-1a, 64 bits (http://www.isthe.com/chongo/tech/comp/fnv/): names communicators and device code across
// runs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace maya {

inline uint64_t fnv1a(const void* data, size_t bytes, uint64_t hash = 0xcbf29ce484222325u) {
  const auto* byte = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ byte[i]) * 0x100000001b3u;
  return hash;
}

}  // namespace maya
