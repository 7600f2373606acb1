#include "known_bytes.h"

#include <string.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "device.h"

namespace maya {
namespace {

// PyTorch's allocator aligns its blocks to this.
constexpr int kGranuleBits = 9;

// Ranges that a granule (or one of the same hash) has a part in. Most pointers of a launch lead to none,
// which this tells without a lock.
constexpr size_t kNumCounts = 1 << 16;
std::array<std::atomic<uint16_t>, kNumCounts> counts;

std::atomic<uint16_t>& count_of(uintptr_t granule) { return counts[(granule * 0x9E3779B97F4A7C15ULL) >> 48]; }

// Times count the calls that made bytes known.
struct KnownRange {
  uintptr_t end;
  uint64_t time;
  Origin origin;
};
std::map<uintptr_t, KnownRange>& ranges() {  // by begin; guarded by the mutex
  static auto& instance = *new std::map<uintptr_t, KnownRange>;
  return instance;
}
std::mutex mutex;
std::atomic<size_t> num_ranges{0};
std::atomic<uint64_t> now{0};

// The time of the newest kernel that wrote to an address. Addresses of the same hash displace each other.
struct Write {
  std::atomic<uintptr_t> address;
  std::atomic<uint64_t> time;
};
constexpr size_t kNumWrites = 1 << 13;
std::array<Write, kNumWrites> newest_writes;

Write& newest_write(uintptr_t address) { return newest_writes[(address * 0x9E3779B97F4A7C15ULL) >> 51]; }

using Iterator = std::map<uintptr_t, KnownRange>::iterator;

void count(uintptr_t begin, uintptr_t end, int change) {
  for (uintptr_t granule = begin >> kGranuleBits; granule <= (end - 1) >> kGranuleBits; ++granule) {
    count_of(granule).fetch_add(static_cast<uint16_t>(change), std::memory_order_relaxed);
  }
}

void insert_locked(uintptr_t begin, const KnownRange& range) {
  count(begin, range.end, 1);
  ranges()[begin] = range;
  num_ranges.store(ranges().size(), std::memory_order_relaxed);
}

Iterator erase_locked(Iterator range) {
  count(range->first, range->second.end, -1);
  Iterator next = ranges().erase(range);
  num_ranges.store(ranges().size(), std::memory_order_relaxed);
  return next;
}

Iterator first_overlap_locked(uintptr_t begin) {
  Iterator range = ranges().upper_bound(begin);
  if (range != ranges().begin() && std::prev(range)->second.end > begin) --range;
  return range;
}

// Takes [begin, end) out of the ranges that are at most as young as `time`.
void cut_locked(uintptr_t begin, uintptr_t end, uint64_t time, bool sets_to_zero) {
  for (Iterator range = first_overlap_locked(begin); range != ranges().end() && range->first < end;) {
    const auto [range_begin, known] = *range;
    if (known.time > time) {
      ++range;
      continue;
    }
    const uintptr_t first = std::max(begin, range_begin), last = std::min(end, known.end);
    if (sets_to_zero) memset(reinterpret_cast<void*>(first), 0, last - first);
    range = erase_locked(range);
    if (range_begin < first) insert_locked(range_begin, {first, known.time, known.origin});
    if (last < known.end) insert_locked(last, known);
  }
}

bool may_overlap(uintptr_t begin, size_t bytes) {
  constexpr uintptr_t kMaxGranules = 16;
  if (bytes == 0 || num_ranges.load(std::memory_order_relaxed) == 0) return false;
  const uintptr_t first = begin >> kGranuleBits, last = (begin + bytes - 1) >> kGranuleBits;
  if (last - first >= kMaxGranules) return true;
  for (uintptr_t granule = first; granule <= last; ++granule) {
    if (count_of(granule).load(std::memory_order_relaxed) > 0) return true;
  }
  return false;
}

bool is_zero(const void* address, size_t bytes) {
  auto* first = static_cast<const char*>(address);
  return *first == 0 && memcmp(first, first + 1, bytes - 1) == 0;
}

void cut(const void* address, size_t bytes, bool sets_to_zero) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  if (!may_overlap(begin, bytes)) return;
  std::lock_guard lock(mutex);
  cut_locked(begin, begin + bytes, UINT64_MAX, sets_to_zero);
}

}  // namespace

void keep_known_bytes(const void* address, size_t bytes, Origin origin) {
  if (bytes == 0) return;
  cut(address, bytes, /*sets_to_zero=*/false);
  const auto begin = reinterpret_cast<uintptr_t>(address);
  if (find_allocation(address).space != Space::device) return;
  if (origin == Origin::kernel && is_zero(address, bytes)) return;  // as memory without an entry reads
  std::lock_guard lock(mutex);
  insert_locked(begin, {begin + bytes, now.fetch_add(1, std::memory_order_relaxed) + 1, origin});
}

Origin origin_of_bytes(const void* address, size_t bytes) {
  if (find_allocation(address).space != Space::device) return Origin::program;
  settle_known_bytes(address, bytes);
  auto begin = reinterpret_cast<uintptr_t>(address);
  const uintptr_t end = begin + bytes;
  if (!may_overlap(begin, bytes)) return Origin::kernel;
  Origin origin = Origin::program;
  std::lock_guard lock(mutex);
  for (Iterator range = first_overlap_locked(begin); begin < end; begin = range->second.end, ++range) {
    if (range == ranges().end() || range->first > begin) return Origin::kernel;
    origin = std::max(origin, range->second.origin);
  }
  return origin;
}

void overwrite_known_bytes(const void* address, size_t bytes) { cut(address, bytes, /*sets_to_zero=*/true); }

void overwrite_known_bytes_from(uintptr_t address) {
  Write& write = newest_write(address);
  write.address.store(address, std::memory_order_relaxed);
  write.time.store(now.load(std::memory_order_relaxed), std::memory_order_relaxed);
  if (!may_overlap(address, 1)) return;
  std::lock_guard lock(mutex);
  const Iterator range = first_overlap_locked(address);
  if (range == ranges().end() || range->first > address) return;
  cut_locked(range->first, range->second.end, UINT64_MAX, /*sets_to_zero=*/true);
}

void settle_known_bytes(const void* address, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const Write& write = newest_write(begin);
  if (write.address.load(std::memory_order_relaxed) != begin || !may_overlap(begin, bytes)) return;
  std::lock_guard lock(mutex);
  cut_locked(begin, begin + bytes, write.time.load(std::memory_order_relaxed), /*sets_to_zero=*/true);
}

void visit_known_bytes(uintptr_t address, size_t bytes, const std::function<void(uintptr_t, size_t)>& visit) {
  std::lock_guard lock(mutex);
  for (Iterator range = first_overlap_locked(address);
       range != ranges().end() && range->first < address + bytes; ++range) {
    const uintptr_t first = std::max(address, range->first);
    visit(first, std::min(address + bytes, range->second.end) - first);
  }
}

void forget_known_bytes(const void* address, size_t bytes) { cut(address, bytes, /*sets_to_zero=*/false); }

}  // namespace maya
