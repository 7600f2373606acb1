// How many blocks of a kernel fit on a multiprocessor, by NVIDIA's own calculator, which comes with the
// CUDA headers.
#include <cuda_occupancy.h>

#include <algorithm>

#include "device.h"
#include "kernel.h"

namespace maya {
namespace {

constexpr int kWarpThreads = 32;
constexpr int kRegistersPerSm = 65536;  // all compute capabilities from 5.0 on (CUDA Programming Guide)

cudaOccDeviceProp device_limits() {
  const GpuProperties& g = gpu();
  cudaOccDeviceProp limits;
  limits.computeMajor = g.compute_major;
  limits.computeMinor = g.compute_minor;
  limits.maxThreadsPerBlock = kMaxBlockThreads;
  limits.maxThreadsPerMultiprocessor = g.max_threads_per_sm;
  limits.regsPerBlock = limits.regsPerMultiprocessor = kRegistersPerSm;
  limits.warpSize = kWarpThreads;
  limits.sharedMemPerBlock = static_cast<size_t>(g.shared_bytes_per_block);
  limits.sharedMemPerMultiprocessor = static_cast<size_t>(g.shared_bytes_per_sm);
  limits.numSms = g.num_sms;
  limits.sharedMemPerBlockOptin = static_cast<size_t>(g.shared_bytes_per_block_optin);
  limits.reservedSharedMemPerBlock = g.compute_major >= 8 ? kReservedSharedBytes : 0;
  return limits;
}

cudaOccFuncAttributes needs_of(const Kernel& kernel) {
  cudaOccFuncAttributes needs;
  needs.maxThreadsPerBlock = max_block_threads(kernel);
  needs.numRegs = registers_of(kernel);
  needs.sharedSizeBytes = static_cast<size_t>(kernel.static_shared_bytes);
  needs.partitionedGCConfig = PARTITIONED_GC_OFF;
  needs.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  needs.maxDynamicSharedSizeBytes = static_cast<size_t>(dynamic_shared_limit(kernel));
  return needs;
}

}  // namespace

int registers_of(const Kernel& kernel) {
  return kernel.num_registers > 0 ? kernel.num_registers : kAssumedRegisters;
}

int64_t dynamic_shared_limit(const Kernel& kernel) {
  return std::max(kernel.max_dynamic_shared_bytes, gpu().shared_bytes_per_block - kernel.static_shared_bytes);
}

// Registers are allocated to warps in units of 256, alike in the four parts of a multiprocessor.
int max_block_threads(const Kernel& kernel) {
  constexpr int kUnit = 256, kParts = 4;
  const int per_warp = (registers_of(kernel) * kWarpThreads + kUnit - 1) / kUnit * kUnit;
  const int warps = kRegistersPerSm / per_warp / kParts * kParts;
  return std::min(kMaxBlockThreads, warps * kWarpThreads);
}

int max_blocks_per_sm(const Kernel& kernel, int block_threads, size_t dynamic_shared_bytes) {
  if (block_threads <= 0) return 0;
  const cudaOccDeviceProp limits = device_limits();
  const cudaOccFuncAttributes needs = needs_of(kernel);
  const cudaOccDeviceState state;
  cudaOccResult result;
  cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &limits, &needs, &state,
                                                               block_threads, dynamic_shared_bytes);
  // The calculator knows the number of blocks by the architecture, MAYA_GPU by the part.
  if (error != CUDA_OCC_SUCCESS) return 0;
  return std::min(result.activeBlocksPerMultiprocessor, gpu().max_blocks_per_sm);
}

size_t available_dynamic_shared_bytes(const Kernel& kernel, int num_blocks, int block_threads) {
  const cudaOccDeviceProp limits = device_limits();
  const cudaOccFuncAttributes needs = needs_of(kernel);
  const cudaOccDeviceState state;
  size_t bytes = 0;
  cudaOccAvailableDynamicSMemPerBlock(&bytes, &limits, &needs, &state, num_blocks, block_threads);
  // The calculator leaves out here what the system takes for each block.
  const int64_t share = gpu().shared_bytes_per_sm / num_blocks - kernel.static_shared_bytes -
                        static_cast<int64_t>(limits.reservedSharedMemPerBlock);
  return std::min(bytes, static_cast<size_t>(std::max<int64_t>(share, 0)));
}

}  // namespace maya
