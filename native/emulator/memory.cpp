// Allocation and release of device, pinned and managed memory through the runtime.
#include <string.h>
#include <unistd.h>

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
  call.record(Kind::out_of_memory,
              {static_cast<int64_t>(bytes), device_bytes_used(device), device_bytes_capacity(device)});
  return cudaErrorMemoryAllocation;
}

cudaError_t allocate(void** address, size_t bytes, Memory memory, CUstream stream) {
  if (address == nullptr) return cudaErrorInvalidValue;
  *address = nullptr;
  if (memory != Memory::stream_ordered && is_unsafe_in_capture()) return cudaErrorStreamCaptureUnsupported;
  int device = current_device();
  use_context(device);
  if (bytes == 0) return cudaSuccess;
  int64_t device_bytes = uses_device(memory) ? static_cast<int64_t>(round_to_pages(bytes)) : 0;
  Call call;
  if (!take_device_bytes(device, device_bytes)) return out_of_memory(call, device, bytes);
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

cudaError_t free_memory(void* address, CUstream stream) {
  if (address == nullptr) return cudaSuccess;
  Call call;
  AllocationEntry entry;
  if (!remove_allocation(address, &entry) || !entry.is_owned) return cudaErrorInvalidValue;
  forget_known_bytes(address, entry.allocation.bytes);
  unmap_pages(address, entry.allocation.bytes);
  give_device_bytes(entry.allocation.device, static_cast<int64_t>(entry.device_bytes));
  call.record(Kind::free,
              {static_cast<int64_t>(entry.allocation.address), static_cast<int64_t>(entry.allocation.bytes),
               static_cast<int64_t>(entry.memory), stream_id(stream)});
  return cudaSuccess;
}

cudaError_t register_host(void* address, size_t bytes) {
  if (address == nullptr || bytes == 0) return cudaErrorInvalidValue;
  if (find_allocation(address).space != Space::unknown) return cudaErrorHostMemoryAlreadyRegistered;
  use_context(current_device());
  Call call;
  AllocationEntry entry;
  entry.allocation = {reinterpret_cast<uintptr_t>(address), bytes, Space::pinned_host, current_device()};
  entry.memory = Memory::pinned_host;
  entry.is_owned = false;
  add_allocation(entry);
  call.record(Kind::malloc, {static_cast<int64_t>(entry.allocation.address), static_cast<int64_t>(bytes),
                             static_cast<int64_t>(Memory::pinned_host), 0});
  return cudaSuccess;
}

cudaError_t unregister_host(void* address) {
  Call call;
  AllocationEntry entry;
  if (!remove_allocation(address, &entry)) return cudaErrorHostMemoryNotRegistered;
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
cudaError_t cudaMallocManaged(void** address, size_t bytes, unsigned /*flags*/) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::allocate_device(address, bytes, Memory::managed, nullptr));
}
cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::allocate_device(address, bytes, Memory::stream_ordered, stream));
}
cudaError_t cudaMallocFromPoolAsync(void** address, size_t bytes, cudaMemPool_t /*pool*/,
                                    cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::allocate_device(address, bytes, Memory::stream_ordered, stream));
}
cudaError_t cudaMallocPitch(void** address, size_t* pitch_bytes, size_t width_bytes, size_t height) {
  MAYA_COUNT_CALL();
  constexpr size_t kPitchAlignmentBytes = 512;
  *pitch_bytes = (width_bytes + kPitchAlignmentBytes - 1) / kPitchAlignmentBytes * kPitchAlignmentBytes;
  return runtime_result(maya::allocate_device(address, *pitch_bytes * height, Memory::device, nullptr));
}
cudaError_t cudaFree(void* address) {
  MAYA_COUNT_CALL();
  if (address == nullptr) maya::use_context(maya::current_device());  // the customary way to make a context
  return runtime_result(maya::free_memory(address, nullptr));
}
cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::free_memory(address, stream));
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
  return runtime_result(maya::free_memory(address, nullptr));
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
  if (attribute == cudaMemPoolAttrReleaseThreshold) memcpy(&pool->release_threshold, value, sizeof(uint64_t));
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  MAYA_COUNT_CALL();
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

// A handle names the process and the block. Opened in another process it maps a block of the same size
// that shares no contents: kernels compute nothing that could be shared, and the bytes are counted once.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  MAYA_COUNT_CALL();
  maya::Allocation allocation = maya::find_allocation(address);
  if (allocation.space != maya::Space::device) return runtime_result(cudaErrorInvalidValue);
  int64_t fields[3] = {getpid(), static_cast<int64_t>(allocation.address),
                       static_cast<int64_t>(allocation.bytes)};
  memset(handle, 0, sizeof(*handle));
  memcpy(handle, fields, sizeof(fields));
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned /*flags*/) {
  MAYA_COUNT_CALL();
  int64_t fields[3];
  memcpy(fields, &handle, sizeof(fields));
  if (fields[0] == getpid())
    return runtime_result(cudaErrorDeviceUninitialized);  // the exporter itself cannot open it
  maya::AllocationEntry entry;
  *address = maya::map_pages(static_cast<size_t>(fields[2]), true);
  if (*address == nullptr) return runtime_result(cudaErrorMapBufferObjectFailed);
  entry.allocation = {reinterpret_cast<uintptr_t>(*address), static_cast<size_t>(fields[2]),
                      maya::Space::device, maya::current_device()};
  maya::add_allocation(entry);
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* address) {
  MAYA_COUNT_CALL();
  maya::AllocationEntry entry;
  if (!maya::remove_allocation(address, &entry)) return runtime_result(cudaErrorInvalidValue);
  maya::forget_known_bytes(address, entry.allocation.bytes);
  maya::unmap_pages(address, entry.allocation.bytes);
  return cudaSuccess;
}
// The importer's event is one that was never recorded: complete, and waits on it are no-ops.
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  MAYA_COUNT_CALL();
  if ((event->flags & cudaEventInterprocess) == 0) return runtime_result(cudaErrorInvalidResourceHandle);
  memset(handle, 0, sizeof(*handle));
  memcpy(handle, &event->id, sizeof(event->id));
  return cudaSuccess;
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t /*handle*/) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::create_event(event, cudaEventDisableTiming | cudaEventInterprocess));
}

}  // extern "C"
