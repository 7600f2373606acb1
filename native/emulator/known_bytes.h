// Which bytes of device memory hold values that a real device would hold too.
//
// Kernels compute nothing. What the host, a memset, a small copy or a small collective has put somewhere is
// known until a kernel or a math library may have written there; all other device memory reads as zero. Known
// bytes are set to zero once they are overwritten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace maya {

// Where the value of some bytes comes from. Of several parts the greatest counts.
enum class Origin : uint8_t {
  program,  // a real device would hold the same
  rule,     // the configuration gave the answer, or it was computed from one
  absent,   // ranks that are not there would have sent it, and what they hold cannot be made up
  kernel,   // a kernel that was not computed had a part in it
};

// The bytes that stand at `address` now are known. Of addresses outside of device memory nothing is kept.
void keep_known_bytes(const void* address, size_t bytes, Origin origin = Origin::program);

// The origin of bytes in device memory; of others `program`. Includes settle_known_bytes.
Origin origin_of_bytes(const void* address, size_t bytes);

// A computation has written exactly these bytes: they read as zero from now on.
void overwrite_known_bytes(const void* address, size_t bytes);

// A kernel was launched that may write a tensor that begins here, of unknown size. The known bytes around the
// address read as zero from now on, and what follows them will when it is read together with the address.
void overwrite_known_bytes_from(uintptr_t address);

// To be called before bytes are read: brings them up to date with the kernels so far.
void settle_known_bytes(const void* address, size_t bytes);

// Calls `visit` with begin and length of what is known in [address, address + bytes).
void visit_known_bytes(uintptr_t address, size_t bytes, const std::function<void(uintptr_t, size_t)>& visit);

// Forgets memory that was freed.
void forget_known_bytes(const void* address, size_t bytes);

}  // namespace maya
