// Kernels by handle: those of the program's own fat binaries and those of loaded modules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernel_signature.h"
#include "runtime.h"

namespace maya {

struct Kernel {
  const char* mangled_name = nullptr;
  KernelSignature signature;             // valid once name_id is set
  int64_t name_id = 0;                   // interned name, 0 before the first launch
  int64_t max_dynamic_shared_bytes = 0;  // what the program opted in to; 0: the default limit
  int num_registers = 0;                 // of the device code where it was read
  int static_shared_bytes = 0;
  bool has_read_signature = false;
  uint64_t code_hash = 0;  // of the loaded module it comes from
};

// A runtime launch names a kernel by the address of its host stub, or by handle; the driver by handle.
Kernel* find_kernel(const void* host_function_or_handle);
Kernel* new_kernel(const std::string& name);

// Registers per thread answered for kernels whose device code was not read: with 32 any block size
// reaches full occupancy, so occupancy follows from threads and shared memory alone.
inline constexpr int kAssumedRegisters = 32;
int registers_of(const Kernel& kernel);
int64_t dynamic_shared_limit(const Kernel& kernel);
inline constexpr int kMaxBlockThreads = 1024;
inline constexpr int kReservedSharedBytes = 1024;  // per block, from compute capability 8.0 on
int max_block_threads(const Kernel& kernel);       // as its registers allow
size_t available_dynamic_shared_bytes(const Kernel& kernel, int num_blocks, int block_threads);
int max_blocks_per_sm(const Kernel& kernel, int block_threads, size_t dynamic_shared_bytes);

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes;
  bool is_cooperative = false;
};
// `arguments`: one pointer for each parameter, or null when they are packed in another way.
cudaError_t launch_kernel(Kernel* kernel, const LaunchShape& shape, void** arguments, CUstream stream);

}  // namespace maya
