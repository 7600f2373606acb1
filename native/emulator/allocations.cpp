#include "allocations.h"

#include <errno.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "device_table.h"

namespace maya {
namespace {

struct Table {
  std::mutex mutex;
  std::map<uintptr_t, AllocationEntry> entries;  // by address
};

Table& table() {
  static Table& instance = *new Table;
  return instance;
}

std::array<std::atomic<int64_t>, kMaxDevices> bytes_used, peak_bytes_used;

// Addresses are handed out upwards from here and not used again: a stale pointer faults, and two runs
// of one program see the same addresses. 2^45 to 2^46 is free in Linux processes. The upper
// half is not usual as a size, so that two 32-bit sizes beside each other do not look like an address.
constexpr uintptr_t kFirstAddress = 0x2acd'0000'0000;
constexpr uintptr_t kEndAddress = uintptr_t{1} << 46;
std::atomic<uintptr_t> next_address{kFirstAddress};

}  // namespace

void raise_to(std::atomic<int64_t>& peak, int64_t value) {
  int64_t known = peak.load();
  while (known < value && !peak.compare_exchange_weak(known, value)) {
  }
}

size_t round_to_pages(size_t bytes) {
  return (bytes + kDevicePageBytes - 1) / kDevicePageBytes * kDevicePageBytes;
}

bool is_emulated_address(uintptr_t address) {
  return address >= kFirstAddress && address < next_address.load(std::memory_order_relaxed);
}

void* map_pages(size_t bytes, bool is_accessible) {
  if (bytes > kEndAddress - kFirstAddress) return nullptr;
  size_t mapped_bytes = round_to_pages(bytes);
  int protection = is_accessible ? PROT_READ | PROT_WRITE : PROT_NONE;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  for (int attempt = 0; attempt < 64; ++attempt) {
    uintptr_t wanted = next_address.load();
    do {
      if (wanted + mapped_bytes > kEndAddress) return nullptr;
    } while (!next_address.compare_exchange_weak(wanted, wanted + mapped_bytes));
    void* address = mmap(reinterpret_cast<void*>(wanted), mapped_bytes, protection, kFlags, -1, 0);
    if (address == MAP_FAILED) {
      if (errno == EEXIST) continue;
      uintptr_t end = wanted + mapped_bytes;  // what has no room must not use up the addresses
      next_address.compare_exchange_strong(end, wanted);
      return nullptr;
    }
    // One touched byte must not cost a huge page.
    madvise(address, mapped_bytes, MADV_NOHUGEPAGE);
    return address;
  }
  return nullptr;
}

void unmap_pages(void* address, size_t bytes) { munmap(address, round_to_pages(bytes)); }

void add_allocation(const AllocationEntry& entry) {
  Table& t = table();
  std::lock_guard lock(t.mutex);
  t.entries[entry.allocation.address] = entry;
}

bool remove_allocation(const void* address, ReleasedBy released_by, AllocationEntry* entry) {
  Table& t = table();
  std::lock_guard lock(t.mutex);
  auto found = t.entries.find(reinterpret_cast<uintptr_t>(address));
  if (found == t.entries.end() || found->second.released_by != released_by) return false;
  *entry = found->second;
  t.entries.erase(found);
  return true;
}

bool overlaps_allocation(uintptr_t address, size_t bytes) {
  Table& t = table();
  std::lock_guard lock(t.mutex);
  auto after = t.entries.lower_bound(address);
  if (after != t.entries.end() && after->first - address < bytes) return true;
  if (after == t.entries.begin()) return false;
  const Allocation& before = std::prev(after)->second.allocation;
  return address - before.address < before.bytes;
}

Allocation find_allocation(const void* pointer) {
  uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  Table& t = table();
  std::lock_guard lock(t.mutex);
  auto after = t.entries.upper_bound(address);
  if (after == t.entries.begin()) return {};
  const Allocation& candidate = std::prev(after)->second.allocation;
  return address < candidate.address + candidate.bytes ? candidate : Allocation{};
}

int64_t device_bytes_used(int device) { return bytes_used[static_cast<size_t>(device)].load(); }

int64_t peak_device_bytes_used(int device) { return peak_bytes_used[static_cast<size_t>(device)].load(); }

int64_t device_bytes_capacity(int /*device*/) { return gpu().memory_bytes - gpu().context_bytes; }

bool take_device_bytes(int device, int64_t bytes) {
  auto& used = bytes_used[static_cast<size_t>(device)];
  int64_t before = used.load();
  do {
    if (bytes > device_bytes_capacity(device) - before) return false;
  } while (!used.compare_exchange_weak(before, before + bytes));
  raise_to(peak_bytes_used[static_cast<size_t>(device)], before + bytes);
  return true;
}

void give_device_bytes(int device, int64_t bytes) {
  bytes_used[static_cast<size_t>(device)].fetch_sub(bytes);
}

}  // namespace maya
