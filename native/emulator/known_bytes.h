// Which bytes of device memory hold values that a real device would hold too.
//
// Kernels compute nothing. What the host, a memset, a small copy or a small collective has put somewhere is
// known until a kernel or a math library may have written there; all other device memory reads as zero. Known
// bytes that are zero need no entry: only the rest is kept, and is set to zero once it is overwritten.
#pragma once

#include <cstddef>
#include <cstdint>

namespace maya {

// The bytes that stand at `address` now are known. Of addresses outside of device memory nothing is kept.
void keep_known_bytes(const void* address, size_t bytes);

// A computation has written exactly these bytes: they read as zero from now on.
void overwrite_known_bytes(const void* address, size_t bytes);

// A kernel was launched that may write a tensor that begins here, of unknown size. The known bytes around the
// address read as zero from now on, and what follows them will when it is read together with the address.
void overwrite_known_bytes_from(uintptr_t address);

// To be called before bytes are read: brings them up to date with the kernels so far.
void settle_known_bytes(const void* address, size_t bytes);

// Forgets memory that was freed.
void forget_known_bytes(const void* address, size_t bytes);

}  // namespace maya
