// The driver: allocation, copies, pointer queries, and virtual memory (reserve, create, map).
#include <string.h>
#include <sys/mman.h>

#include <map>
#include <mutex>

#include "allocations.h"
#include "device_table.h"
#include "known_bytes.h"
#include "recorder.h"
#include "runtime.h"

namespace maya {
namespace {

using trace::Memory;

constexpr size_t kMaxRangeBytes = size_t{1} << 46;

// Physical memory made by cuMemCreate; given back when its handle is released and it is mapped nowhere.
struct PhysicalMemory {
  size_t bytes;
  CUmemAllocationProp properties;
  int num_handles;  // created or retained, and not released
  int num_mappings;
};

struct VirtualMemory {
  std::mutex mutex;
  std::map<CUmemGenericAllocationHandle, PhysicalMemory> physical;
  std::map<CUdeviceptr, CUmemGenericAllocationHandle> mappings;
  std::map<CUdeviceptr, size_t> reservations;  // bytes by address
  CUmemGenericAllocationHandle next_handle = 1;
};

VirtualMemory& virtual_memory() {
  static VirtualMemory& instance = *new VirtualMemory;
  return instance;
}

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

void give_back_if_unused(VirtualMemory& all, CUmemGenericAllocationHandle handle) {
  auto found = all.physical.find(handle);
  if (found->second.num_handles > 0 || found->second.num_mappings > 0) return;
  give_device_bytes(found->second.properties.location.id, static_cast<int64_t>(found->second.bytes));
  all.physical.erase(found);
}

// A range that programs may reserve, map or unmap: whole pages of a sane size.
bool is_range(size_t bytes) { return bytes > 0 && bytes % kDevicePageBytes == 0 && bytes <= kMaxRangeBytes; }

bool is_reserved(const VirtualMemory& all, CUdeviceptr address, size_t bytes) {
  auto after = all.reservations.upper_bound(address);
  if (after == all.reservations.begin()) return false;
  auto [begin, reserved_bytes] = *std::prev(after);
  return bytes <= reserved_bytes && address - begin <= reserved_bytes - bytes;
}

cudaError_t create_physical(CUmemGenericAllocationHandle* handle, size_t bytes,
                            const CUmemAllocationProp& properties) {
  if (handle == nullptr || !is_range(bytes)) return cudaErrorInvalidValue;
  int device = properties.location.id;
  if (device < 0 || device >= num_devices()) return cudaErrorInvalidDevice;
  use_context(device);
  Call call;
  if (!take_device_bytes(device, static_cast<int64_t>(bytes))) {
    call.record(Kind::out_of_memory,
                {static_cast<int64_t>(bytes), device_bytes_used(device), device_bytes_capacity(device)});
    return cudaErrorMemoryAllocation;
  }
  VirtualMemory& all = virtual_memory();
  std::lock_guard lock(all.mutex);
  *handle = all.next_handle++;
  all.physical[*handle] = {bytes, properties, 1, 0};
  return cudaSuccess;
}

cudaError_t map_physical(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle) {
  Call call;
  VirtualMemory& all = virtual_memory();
  std::lock_guard lock(all.mutex);
  auto found = all.physical.find(handle);
  if (found == all.physical.end() || found->second.num_handles == 0 || !is_range(bytes) ||
      bytes > found->second.bytes || address % kDevicePageBytes != 0 || !is_reserved(all, address, bytes) ||
      overlaps_allocation(address, bytes)) {
    return cudaErrorInvalidValue;
  }
  if (mprotect(pointer(address), bytes, PROT_READ | PROT_WRITE) != 0) return cudaErrorInvalidValue;
  ++found->second.num_mappings;
  all.mappings[address] = handle;
  AllocationEntry entry;
  entry.allocation = {address, bytes, Space::device, found->second.properties.location.id};
  entry.memory = Memory::virtual_mapping;
  entry.released_by = ReleasedBy::unmap;
  add_allocation(entry);
  call.record(Kind::malloc, {static_cast<int64_t>(address), static_cast<int64_t>(bytes),
                             static_cast<int64_t>(Memory::virtual_mapping), 0});
  return cudaSuccess;
}

// Whether the range is made of whole mappings, one or several.
bool is_mapped(const VirtualMemory& all, CUdeviceptr address, size_t bytes) {
  CUdeviceptr at = address;
  while (at < address + bytes && all.mappings.contains(at)) at += find_allocation(pointer(at)).bytes;
  return at == address + bytes;
}

cudaError_t unmap_physical(CUdeviceptr address, size_t bytes) {
  Call call;
  VirtualMemory& all = virtual_memory();
  std::lock_guard lock(all.mutex);
  if (!is_range(bytes) || !is_mapped(all, address, bytes)) return cudaErrorInvalidValue;
  for (CUdeviceptr at = address; at < address + bytes;) {
    AllocationEntry entry;
    auto mapping = all.mappings.find(at);
    remove_allocation(pointer(at), ReleasedBy::unmap, &entry);
    forget_known_bytes(pointer(at), entry.allocation.bytes);
    madvise(pointer(at), entry.allocation.bytes, MADV_DONTNEED);
    mprotect(pointer(at), entry.allocation.bytes, PROT_NONE);
    --all.physical[mapping->second].num_mappings;
    give_back_if_unused(all, mapping->second);
    all.mappings.erase(mapping);
    call.record(Kind::free, {static_cast<int64_t>(at), static_cast<int64_t>(entry.allocation.bytes),
                             static_cast<int64_t>(Memory::virtual_mapping), 0});
    at += entry.allocation.bytes;
  }
  return cudaSuccess;
}

CUmemorytype memory_type(const Allocation& allocation) {
  return allocation.space == Space::pinned_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

// Answers of cuPointerGetAttribute; unknown pointers have only a few of them.
CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  Allocation allocation = find_allocation(pointer(address));
  if (allocation.space == Space::unknown) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = primary_context(allocation.device);
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = memory_type(allocation);
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(data) = address;
      break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (allocation.space == Space::device) return CUDA_ERROR_INVALID_VALUE;
      *static_cast<void**>(data) = pointer(address);
      break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      *static_cast<unsigned*>(data) = 0;
      break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<unsigned long long*>(data) = allocation.address;
      break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned*>(data) = allocation.space == Space::managed;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = allocation.device;
      break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<int*>(data) = allocation.space == Space::device;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = allocation.address;
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(data) = allocation.bytes;
      break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<int*>(data) = 1;
      break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<unsigned*>(data) = CU_MEM_HANDLE_TYPE_NONE;
      break;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace maya

using maya::driver_result;
using maya::pointer;
using maya::trace::Memory;

extern "C" {

CUresult cuMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  MAYA_COUNT_CALL();
  maya::memory_info(free_bytes, total_bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  MAYA_COUNT_CALL();
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  return driver_result(
      maya::allocate_device(reinterpret_cast<void**>(address), bytes, Memory::device, nullptr));
}
CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  MAYA_COUNT_CALL();
  return driver_result(
      maya::allocate_device(reinterpret_cast<void**>(address), bytes, Memory::stream_ordered, stream));
}
CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  return driver_result(cudaMallocManaged(reinterpret_cast<void**>(address), bytes, flags));
}
CUresult cuMemAllocHost(void** address, size_t bytes) {
  MAYA_COUNT_CALL();
  return driver_result(maya::allocate_host(address, bytes));
}
CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned /*flags*/) {
  MAYA_COUNT_CALL();
  return driver_result(maya::allocate_host(address, bytes));
}
CUresult cuMemFree(CUdeviceptr address) {
  MAYA_COUNT_CALL();
  return driver_result(maya::free_memory(pointer(address)));
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  MAYA_COUNT_CALL();
  return driver_result(maya::free_async(pointer(address), stream));
}
CUresult cuMemFreeHost(void* address) {
  MAYA_COUNT_CALL();
  return driver_result(maya::free_host(address));
}
CUresult cuMemHostRegister(void* address, size_t bytes, unsigned /*flags*/) {
  MAYA_COUNT_CALL();
  return driver_result(maya::register_host(address, bytes));
}
CUresult cuMemHostUnregister(void* address) {
  MAYA_COUNT_CALL();
  return driver_result(maya::unregister_host(address));
}
CUresult cuMemHostGetDevicePointer(CUdeviceptr* device_address, void* host_address, unsigned flags) {
  return driver_result(
      cudaHostGetDevicePointer(reinterpret_cast<void**>(device_address), host_address, flags));
}

CUresult cuMemcpy(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
  MAYA_COUNT_CALL();
  return driver_result(maya::copy(pointer(target), pointer(source), bytes, cudaMemcpyDefault, nullptr, true));
}
CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
  MAYA_COUNT_CALL();
  return driver_result(maya::copy(pointer(target), pointer(source), bytes, cudaMemcpyDefault, stream, false));
}
CUresult cuMemcpyHtoD(CUdeviceptr target, const void* source, size_t bytes) {
  MAYA_COUNT_CALL();
  return driver_result(maya::copy(pointer(target), source, bytes, cudaMemcpyHostToDevice, nullptr, true));
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr target, const void* source, size_t bytes, CUstream stream) {
  MAYA_COUNT_CALL();
  return driver_result(maya::copy(pointer(target), source, bytes, cudaMemcpyHostToDevice, stream, false));
}
CUresult cuMemcpyDtoH(void* target, CUdeviceptr source, size_t bytes) {
  MAYA_COUNT_CALL();
  return driver_result(maya::copy(target, pointer(source), bytes, cudaMemcpyDeviceToHost, nullptr, true));
}
CUresult cuMemcpyDtoHAsync(void* target, CUdeviceptr source, size_t bytes, CUstream stream) {
  MAYA_COUNT_CALL();
  return driver_result(maya::copy(target, pointer(source), bytes, cudaMemcpyDeviceToHost, stream, false));
}
CUresult cuMemcpyDtoD(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
  MAYA_COUNT_CALL();
  return driver_result(
      maya::copy(pointer(target), pointer(source), bytes, cudaMemcpyDeviceToDevice, nullptr, true));
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
  MAYA_COUNT_CALL();
  return driver_result(
      maya::copy(pointer(target), pointer(source), bytes, cudaMemcpyDeviceToDevice, stream, false));
}
CUresult cuMemsetD8(CUdeviceptr target, unsigned char value, size_t count) {
  MAYA_COUNT_CALL();
  return driver_result(maya::fill(pointer(target), value, 1, count, nullptr, true));
}
CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t count, CUstream stream) {
  MAYA_COUNT_CALL();
  return driver_result(maya::fill(pointer(target), value, 1, count, stream, false));
}
CUresult cuMemsetD16Async(CUdeviceptr target, unsigned short value, size_t count, CUstream stream) {
  MAYA_COUNT_CALL();
  return driver_result(maya::fill(pointer(target), value, 2, count, stream, false));
}
CUresult cuMemsetD32(CUdeviceptr target, unsigned value, size_t count) {
  MAYA_COUNT_CALL();
  return driver_result(maya::fill(pointer(target), value, 4, count, nullptr, true));
}
CUresult cuMemsetD32Async(CUdeviceptr target, unsigned value, size_t count, CUstream stream) {
  MAYA_COUNT_CALL();
  return driver_result(maya::fill(pointer(target), value, 4, count, stream, false));
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  MAYA_COUNT_CALL();
  return maya::pointer_attribute(data, attribute, address);
}
// Attributes that the pointer does not have are set to zero, and the call succeeds.
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr address) {
  MAYA_COUNT_CALL();
  for (unsigned i = 0; i < count; ++i) {
    if (maya::pointer_attribute(data[i], attributes[i], address) != CUDA_SUCCESS) {
      bool is_wide = attributes[i] == CU_POINTER_ATTRIBUTE_CONTEXT ||
                     attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
                     attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER ||
                     attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
                     attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE ||
                     attributes[i] == CU_POINTER_ATTRIBUTE_BUFFER_ID;
      memset(data[i], 0, is_wide ? 8 : 4);
    }
  }
  return CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  MAYA_COUNT_CALL();
  maya::Allocation allocation = maya::find_allocation(pointer(address));
  if (allocation.space == maya::Space::unknown) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = allocation.address;
  if (bytes != nullptr) *bytes = allocation.bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* /*properties*/,
                                       CUmemAllocationGranularity_flags /*option*/) {
  MAYA_COUNT_CALL();
  *granularity = maya::kDevicePageBytes;
  return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t /*alignment*/, CUdeviceptr /*hint*/,
                             unsigned long long /*flags*/) {
  MAYA_COUNT_CALL();
  if (address == nullptr || !maya::is_range(bytes)) return CUDA_ERROR_INVALID_VALUE;
  void* range = maya::map_pages(bytes, false);
  if (range == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(range);
  maya::VirtualMemory& all = maya::virtual_memory();
  std::lock_guard lock(all.mutex);
  all.reservations[*address] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  MAYA_COUNT_CALL();
  maya::VirtualMemory& all = maya::virtual_memory();
  std::lock_guard lock(all.mutex);
  auto found = all.reservations.find(address);
  if (found == all.reservations.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  if (maya::overlaps_allocation(address, bytes)) return CUDA_ERROR_INVALID_VALUE;  // still mapped
  all.reservations.erase(found);
  maya::unmap_pages(pointer(address), bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long /*flags*/) {
  MAYA_COUNT_CALL();
  if (properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return driver_result(maya::create_physical(handle, bytes, *properties));
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  MAYA_COUNT_CALL();
  maya::VirtualMemory& all = maya::virtual_memory();
  std::lock_guard lock(all.mutex);
  auto found = all.physical.find(handle);
  if (found == all.physical.end() || found->second.num_handles == 0) return CUDA_ERROR_INVALID_VALUE;
  --found->second.num_handles;
  maya::give_back_if_unused(all, handle);
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  MAYA_COUNT_CALL();
  if (offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return driver_result(maya::map_physical(address, bytes, handle));
}
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  MAYA_COUNT_CALL();
  return driver_result(maya::unmap_physical(address, bytes));
}
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  MAYA_COUNT_CALL();
  maya::VirtualMemory& all = maya::virtual_memory();
  std::lock_guard lock(all.mutex);
  auto mapping = all.mappings.find(maya::find_allocation(address).address);
  if (mapping == all.mappings.end()) return CUDA_ERROR_INVALID_VALUE;
  *handle = mapping->second;
  ++all.physical[*handle].num_handles;
  return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
  MAYA_COUNT_CALL();
  maya::VirtualMemory& all = maya::virtual_memory();
  std::lock_guard lock(all.mutex);
  auto found = all.physical.find(handle);
  if (found == all.physical.end()) return CUDA_ERROR_INVALID_VALUE;
  *properties = found->second.properties;
  return CUDA_SUCCESS;
}
CUresult cuMemExportToShareableHandle(void* /*shareable*/, CUmemGenericAllocationHandle /*handle*/,
                                      CUmemAllocationHandleType /*type*/, unsigned long long /*flags*/) {
  maya::unemulated(__func__);
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* /*handle*/, void* /*shareable*/,
                                        CUmemAllocationHandleType /*type*/) {
  maya::unemulated(__func__);
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMulticastCreate(CUmemGenericAllocationHandle* /*handle*/,
                           const CUmulticastObjectProp* /*properties*/) {
  maya::unemulated(__func__);
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle /*handle*/, CUdevice /*device*/) {
  maya::unemulated(__func__);
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle /*handle*/, size_t /*offset*/,
                            CUmemGenericAllocationHandle /*memory*/, size_t /*memory_offset*/,
                            size_t /*bytes*/, unsigned long long /*flags*/) {
  maya::unemulated(__func__);
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle /*handle*/, CUdevice /*device*/, size_t /*offset*/,
                           size_t /*bytes*/) {
  maya::unemulated(__func__);
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // extern "C"
