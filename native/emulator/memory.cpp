// Allocation and release of device, pinned and managed memory through the runtime.
#include <string.h>

#include <algorithm>

#include "allocations.h"
#include "device_table.h"
#include "known_bytes.h"
#include "recorder.h"
#include "runtime.h"

struct CUmemPoolHandle_st {
  int device;
  uint64_t release_threshold = 0;
};

namespace maya {
namespace {

using trace::Memory;

// More than any device or host has; sizes up to it can be rounded and added.
constexpr size_t kMaxBytes = size_t{1} << 46;

bool uses_device(Memory memory) { return memory != Memory::pinned_host; }

Space space_of(Memory memory) {
  switch (memory) {
    case Memory::pinned_host:
      return Space::pinned_host;
    case Memory::managed:
      return Space::managed;
    default:
      return Space::device;
  }
}

cudaError_t out_of_memory(Call& call, int device, size_t bytes) {
  call.record(Kind::out_of_memory, {static_cast<int64_t>(std::min<size_t>(bytes, INT64_MAX)),
                                    device_bytes_used(device), device_bytes_capacity(device)});
  return cudaErrorMemoryAllocation;
}

cudaError_t allocate(void** address, size_t bytes, Memory memory, CUstream stream) {
  if (address == nullptr) return cudaErrorInvalidValue;
  *address = nullptr;
  if (memory == Memory::stream_ordered) {
    if (cudaError_t result = check_stream(stream); result != cudaSuccess) return result;
  } else if (is_unsafe_in_capture()) {
    return cudaErrorStreamCaptureUnsupported;
  }
  int device = current_device();
  use_context(device);
  if (bytes == 0) return cudaSuccess;
  Call call;
  if (bytes > kMaxBytes) return out_of_memory(call, device, bytes);
  int64_t device_bytes = uses_device(memory) ? static_cast<int64_t>(round_to_pages(bytes)) : 0;
  if (!take_device_bytes(device, device_bytes)) {
    // Managed memory of which the device has no room for all stays with the host.
    if (memory != Memory::managed) return out_of_memory(call, device, bytes);
    device_bytes = 0;
  }
  *address = map_pages(bytes, true);
  if (*address == nullptr) {
    warn("the process has no address space for %zu bytes of emulated memory; raise the limit (ulimit -v)",
         bytes);
    give_device_bytes(device, device_bytes);
    return out_of_memory(call, device, bytes);
  }
  AllocationEntry entry;
  entry.allocation = {reinterpret_cast<uintptr_t>(*address), bytes, space_of(memory), device};
  entry.memory = memory;
  entry.device_bytes = static_cast<size_t>(device_bytes);
  if (memory == Memory::pinned_host) entry.released_by = ReleasedBy::free_host;
  add_allocation(entry);
  call.record(Kind::malloc, {static_cast<int64_t>(entry.allocation.address), static_cast<int64_t>(bytes),
                             static_cast<int64_t>(memory), stream_id(stream)});
  return cudaSuccess;
}

CUmemPoolHandle_st* default_pool(int device) {
  static CUmemPoolHandle_st pools[kMaxDevices];
  pools[device].device = device;
  return &pools[device];
}

}  // namespace

cudaError_t allocate_device(void** address, size_t bytes, Memory memory, CUstream stream) {
  return allocate(address, bytes, memory, stream);
}

cudaError_t allocate_host(void** address, size_t bytes) {
  return allocate(address, bytes, Memory::pinned_host, nullptr);
}

namespace {

cudaError_t release(void* address, ReleasedBy released_by, CUstream stream) {
  if (address == nullptr) return cudaSuccess;
  Call call;
  AllocationEntry entry;
  if (!remove_allocation(address, released_by, &entry)) return cudaErrorInvalidValue;
  forget_known_bytes(address, entry.allocation.bytes);
  unmap_pages(address, entry.allocation.bytes);
  withdraw_ipc_handle(address);
  give_device_bytes(entry.allocation.device, static_cast<int64_t>(entry.device_bytes));
  call.record(Kind::free,
              {static_cast<int64_t>(entry.allocation.address), static_cast<int64_t>(entry.allocation.bytes),
               static_cast<int64_t>(entry.memory), stream_id(stream)});
  return cudaSuccess;
}

}  // namespace

cudaError_t free_memory(void* address) { return release(address, ReleasedBy::free, nullptr); }

cudaError_t free_async(void* address, CUstream stream) {
  if (cudaError_t result = check_stream(stream); result != cudaSuccess) return result;
  return release(address, ReleasedBy::free, stream);
}

cudaError_t free_host(void* address) { return release(address, ReleasedBy::free_host, nullptr); }

cudaError_t register_host(void* address, size_t bytes) {
  if (address == nullptr || bytes == 0 || bytes > kMaxBytes) return cudaErrorInvalidValue;
  if (overlaps_allocation(reinterpret_cast<uintptr_t>(address), bytes))
    return cudaErrorHostMemoryAlreadyRegistered;
  use_context(current_device());
  Call call;
  AllocationEntry entry;
  entry.allocation = {reinterpret_cast<uintptr_t>(address), bytes, Space::pinned_host, current_device()};
  entry.memory = Memory::pinned_host;
  entry.released_by = ReleasedBy::unregister;
  add_allocation(entry);
  call.record(Kind::malloc, {static_cast<int64_t>(entry.allocation.address), static_cast<int64_t>(bytes),
                             static_cast<int64_t>(Memory::pinned_host), 0});
  return cudaSuccess;
}

cudaError_t unregister_host(void* address) {
  Call call;
  AllocationEntry entry;
  if (!remove_allocation(address, ReleasedBy::unregister, &entry)) return cudaErrorHostMemoryNotRegistered;
  call.record(Kind::free,
              {static_cast<int64_t>(entry.allocation.address), static_cast<int64_t>(entry.allocation.bytes),
               static_cast<int64_t>(Memory::pinned_host), 0});
  return cudaSuccess;
}

void memory_info(size_t* free_bytes, size_t* total_bytes) {
  int device = current_device();
  use_context(device);
  if (free_bytes != nullptr) {
    *free_bytes = static_cast<size_t>(device_bytes_capacity(device) - device_bytes_used(device));
  }
  if (total_bytes != nullptr) *total_bytes = static_cast<size_t>(gpu().memory_bytes);
}

}  // namespace maya

using maya::runtime_result;
using maya::trace::Memory;

extern "C" {

cudaError_t cudaMalloc(void** address, size_t bytes) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::allocate_device(address, bytes, Memory::device, nullptr));
}
cudaError_t cudaMallocManaged(void** address, size_t bytes, unsigned flags) {
  MAYA_COUNT_CALL();
  if (bytes == 0 || (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost)) {
    return runtime_result(cudaErrorInvalidValue);
  }
  return runtime_result(maya::allocate_device(address, bytes, Memory::managed, nullptr));
}
cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::allocate_device(address, bytes, Memory::stream_ordered, stream));
}
cudaError_t cudaMallocFromPoolAsync(void** address, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  if (pool == nullptr) return runtime_result(cudaErrorInvalidValue);
  return runtime_result(maya::allocate_device(address, bytes, Memory::stream_ordered, stream));
}
cudaError_t cudaMallocPitch(void** address, size_t* pitch_bytes, size_t width_bytes, size_t height) {
  MAYA_COUNT_CALL();
  constexpr size_t kPitchAlignmentBytes = 512;
  if (pitch_bytes == nullptr || width_bytes > maya::kMaxBytes) return runtime_result(cudaErrorInvalidValue);
  *pitch_bytes = (width_bytes + kPitchAlignmentBytes - 1) / kPitchAlignmentBytes * kPitchAlignmentBytes;
  size_t bytes;
  if (__builtin_mul_overflow(*pitch_bytes, height, &bytes)) return runtime_result(cudaErrorInvalidValue);
  return runtime_result(maya::allocate_device(address, bytes, Memory::device, nullptr));
}
cudaError_t cudaFree(void* address) {
  MAYA_COUNT_CALL();
  if (address == nullptr) maya::use_context(maya::current_device());  // the customary way to make a context
  return runtime_result(maya::free_memory(address));
}
cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::free_async(address, stream));
}
cudaError_t cudaMallocHost(void** address, size_t bytes) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::allocate_host(address, bytes));
}
cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned /*flags*/) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::allocate_host(address, bytes));
}
cudaError_t cudaFreeHost(void* address) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::free_host(address));
}
cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned /*flags*/) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::register_host(address, bytes));
}
cudaError_t cudaHostUnregister(void* address) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::unregister_host(address));
}
cudaError_t cudaHostGetDevicePointer(void** device_address, void* host_address, unsigned /*flags*/) {
  MAYA_COUNT_CALL();
  if (maya::find_allocation(host_address).space != maya::Space::pinned_host) {
    return runtime_result(cudaErrorInvalidValue);
  }
  *device_address = host_address;
  return cudaSuccess;
}
cudaError_t cudaHostGetFlags(unsigned* flags, void* /*host_address*/) {
  MAYA_COUNT_CALL();
  *flags = cudaHostAllocMapped;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  MAYA_COUNT_CALL();
  if (maya::num_devices() == 0) return runtime_result(cudaErrorNoDevice);
  maya::memory_info(free_bytes, total_bytes);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  MAYA_COUNT_CALL();
  if (attributes == nullptr) return runtime_result(cudaErrorInvalidValue);
  maya::Allocation allocation = maya::find_allocation(pointer);
  void* address = const_cast<void*>(pointer);
  *attributes = {};
  attributes->device = allocation.device;
  switch (allocation.space) {
    case maya::Space::device:
      attributes->type = cudaMemoryTypeDevice;
      attributes->devicePointer = address;
      break;
    case maya::Space::pinned_host:
      attributes->type = cudaMemoryTypeHost;
      attributes->devicePointer = address;
      attributes->hostPointer = address;
      break;
    case maya::Space::managed:
      attributes->type = cudaMemoryTypeManaged;
      attributes->devicePointer = address;
      attributes->hostPointer = address;
      break;
    case maya::Space::unknown:
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = cudaInvalidDeviceId;
      attributes->hostPointer = address;
      break;
  }
  return cudaSuccess;
}

// Pools keep nothing: a freed block goes back at once, which is what a release threshold of 0 gives at
// the next synchronisation.
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  MAYA_COUNT_CALL();
  if (device < 0 || device >= maya::num_devices()) return runtime_result(cudaErrorInvalidDevice);
  *pool = maya::default_pool(device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  return cudaDeviceGetDefaultMemPool(pool, device);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  MAYA_COUNT_CALL();
  if (pool == nullptr || value == nullptr) return runtime_result(cudaErrorInvalidValue);
  if (attribute == cudaMemPoolAttrReleaseThreshold) memcpy(&pool->release_threshold, value, sizeof(uint64_t));
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  MAYA_COUNT_CALL();
  if (pool == nullptr || value == nullptr) return runtime_result(cudaErrorInvalidValue);
  uint64_t bytes = 0;
  switch (attribute) {
    case cudaMemPoolReuseFollowEventDependencies:
    case cudaMemPoolReuseAllowOpportunistic:
    case cudaMemPoolReuseAllowInternalDependencies: {
      int is_allowed = 1;
      memcpy(value, &is_allowed, sizeof(is_allowed));
      return cudaSuccess;
    }
    case cudaMemPoolAttrReleaseThreshold:
      bytes = pool->release_threshold;
      break;
    default:
      bytes = static_cast<uint64_t>(maya::device_bytes_used(pool->device));
      break;
  }
  memcpy(value, &bytes, sizeof(bytes));
  return cudaSuccess;
}

}  // extern "C"
