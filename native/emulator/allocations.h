// The address space of the emulated devices and what is left of their memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "../trace/format.h"
#include "device.h"

namespace maya {

// Device memory is handed out in pages of this size (observed with cudaMemGetInfo).
inline constexpr size_t kDevicePageBytes = 2 << 20;
size_t round_to_pages(size_t bytes);

// The call that ends an allocation; others are told that they do not know the address.
enum class ReleasedBy { free, free_host, unregister, unmap, ipc_close, nothing };

struct AllocationEntry {
  Allocation allocation;
  trace::Memory memory = trace::Memory::device;
  size_t device_bytes = 0;  // of the capacity
  ReleasedBy released_by = ReleasedBy::free;
};

// Anonymous memory without reserve, aligned to device pages; null when the process has no room for it.
void* map_pages(size_t bytes, bool is_accessible);
void unmap_pages(void* address, size_t bytes);

void add_allocation(const AllocationEntry& entry);
// Takes out the allocation that begins at `address`; false when there is none that this call ends.
bool remove_allocation(const void* address, ReleasedBy released_by, AllocationEntry* entry);
bool overlaps_allocation(uintptr_t address, size_t bytes);

// Whether an address was handed out by map_pages, now or earlier.
bool is_emulated_address(uintptr_t address);

void raise_to(std::atomic<int64_t>& peak, int64_t value);

int64_t device_bytes_used(int device);
int64_t peak_device_bytes_used(int device);  // by this process so far
int64_t device_bytes_capacity(int device);

}  // namespace maya
