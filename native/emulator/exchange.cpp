#include "exchange.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "../trace/hash.h"
#include "device.h"
#include "recorder.h"

namespace maya::exchange {
namespace {

constexpr uint64_t kMailboxBytes = 4ull << 30;  // sparse: only what is used takes space
constexpr uint64_t kNumChains = 1 << 20;
constexpr uint64_t kArrived = 1;  // no payload lies at offset 1
constexpr size_t kAlignment = 64;
// Blocks of 64 B to 8 MiB: a payload of kIntegerPayloadLimitBytes and its header.
constexpr int kMaxBlockBits = 23;
static_assert((size_t{1} << kMaxBlockBits) > kIntegerPayloadLimitBytes);

struct Header {
  std::atomic<uint64_t> arena_used_bytes;
  std::atomic<int32_t> failed_rank;  // 1 + global rank; 0: none
  // Released payload blocks of each power of two. The upper 16 bits count the changes, so that a head that
  // was taken and put back between two looks is noticed.
  std::atomic<uint64_t> free_blocks[kMaxBlockBits + 1];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

struct PayloadBlock {
  std::atomic<uint64_t> next_free;  // may be read by a rank that loses the race for the block
  uint32_t block_bits;
  Origin origin;
};
static_assert(sizeof(PayloadBlock) <= kAlignment);

constexpr uint64_t kChainsOffset = 4096;
// The newest call of each rank.
constexpr uint64_t kCallsOffset = kChainsOffset + kNumChains * sizeof(uint64_t);
constexpr uint64_t kCallBytes = 512;
constexpr int kMaxCallRanks = 1 << 14;
constexpr uint64_t kArenaOffset = kCallsOffset + kMaxCallRanks * kCallBytes;
static_assert(sizeof(Header) <= kChainsOffset);

class Mailbox {
 public:
  static Mailbox& instance() {
    static Mailbox mailbox;
    return mailbox;
  }

  Header& header() { return *at<Header>(0); }
  std::atomic<uint64_t>& chain(uint64_t hash) {
    return at<std::atomic<uint64_t>>(kChainsOffset)[hash % kNumChains];
  }
  template <typename T>
  T* at(uint64_t offset) {
    return reinterpret_cast<T*>(base_ + offset);
  }

  uint64_t allocate(size_t bytes) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    const uint64_t offset = kArenaOffset + header().arena_used_bytes.fetch_add(bytes);
    if (offset + bytes > bytes_) {
      fail("the payload exchange of small collectives is full (" + std::to_string(bytes_) +
           " bytes). Capture fewer iterations, or capture the ranks alone (solo).");
    }
    return offset;
  }

 private:
  Mailbox() {
    // Without a file, the ranks are threads of this process.
    const char* path = std::getenv("MAYA_EXCHANGE");
    int file = -1;
    if (path != nullptr && *path != '\0') {
      file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      if (file < 0) die("open", path);
      if (flock(file, LOCK_EX) != 0) die("lock", path);
      struct stat status;
      if (fstat(file, &status) != 0) die("read the size of", path);
      bytes_ = static_cast<uint64_t>(status.st_size);
      if (bytes_ == 0) {
        bytes_ = kMailboxBytes;
        if (ftruncate(file, static_cast<off_t>(bytes_)) != 0) die("resize", path);
      }
      flock(file, LOCK_UN);
    }
    const int flags = file >= 0 ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE;
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, file, 0);
    if (memory == MAP_FAILED) die("map", path == nullptr ? "(anonymous)" : path);
    if (file >= 0) close(file);
    base_ = static_cast<char*>(memory);
  }

  [[noreturn]] static void die(const char* action, const char* path) {
    warn(
        "cannot %s the payload exchange %s: %s. MAYA_EXCHANGE must name a file on a local file system "
        "that all ranks can write.",
        action, path, std::strerror(errno));
    _exit(kExitCode);
  }

  uint64_t bytes_ = kMailboxBytes;
  char* base_ = nullptr;
};

uint64_t hash_key(const Key& key) {
  uint64_t hash = fnv1a(&key.unique_id, sizeof key.unique_id);
  hash = fnv1a(&key.number, sizeof key.number, hash);
  const int32_t rest[3] = {static_cast<int32_t>(key.purpose), key.source, key.destination};
  return fnv1a(rest, sizeof rest, hash);
}

Rendezvous* find(uint64_t offset, uint64_t end, const Key& key) {
  Mailbox& mailbox = Mailbox::instance();
  for (; offset != end; offset = mailbox.at<Rendezvous>(offset)->next) {
    if (auto* rendezvous = mailbox.at<Rendezvous>(offset); rendezvous->key == key) return rendezvous;
  }
  return nullptr;
}

constexpr uint64_t kOffsetMask = (1ull << 48) - 1;

uint64_t allocate_block(size_t payload_bytes) {
  Mailbox& mailbox = Mailbox::instance();
  const int bits = std::bit_width(payload_bytes + kAlignment - 1);
  if (bits > kMaxBlockBits) fail("internal: a payload of " + std::to_string(payload_bytes) + " bytes");
  auto& head = mailbox.header().free_blocks[bits];
  uint64_t old = head.load(std::memory_order_acquire);
  while ((old & kOffsetMask) != 0) {
    const uint64_t next =
        mailbox.at<PayloadBlock>(old & kOffsetMask)->next_free.load(std::memory_order_relaxed);
    const uint64_t changed = ((old >> 48) + 1) << 48 | next;
    if (head.compare_exchange_weak(old, changed, std::memory_order_acquire)) return old & kOffsetMask;
  }
  const uint64_t offset = mailbox.allocate(size_t{1} << bits);
  mailbox.at<PayloadBlock>(offset)->block_bits = static_cast<uint32_t>(bits);
  return offset;
}

void release_block(uint64_t offset) {
  Mailbox& mailbox = Mailbox::instance();
  auto* block = mailbox.at<PayloadBlock>(offset);
  auto& head = mailbox.header().free_blocks[block->block_bits];
  uint64_t old = head.load(std::memory_order_relaxed);
  uint64_t changed;
  do {
    block->next_free.store(old & kOffsetMask, std::memory_order_relaxed);
    changed = ((old >> 48) + 1) << 48 | offset;
  } while (!head.compare_exchange_weak(old, changed, std::memory_order_release));
}

int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

void set_newest_call(const std::string& text) {
  if (global_rank() >= kMaxCallRanks) return;
  char* target = Mailbox::instance().at<char>(kCallsOffset + global_rank() * kCallBytes);
  std::strncpy(target, text.c_str(),
               kCallBytes - 1);  // the last byte stays zero, also for a reader meanwhile
}

std::string newest_call(int rank) {
  if (rank < 0 || rank >= kMaxCallRanks) return {};
  return Mailbox::instance().at<char>(kCallsOffset + rank * kCallBytes);
}

Rendezvous* meet(const Key& key, const Signature& signature, int num_slots, const std::string& site) {
  Mailbox& mailbox = Mailbox::instance();
  auto& chain = mailbox.chain(hash_key(key));
  uint64_t head = chain.load(std::memory_order_acquire);
  if (Rendezvous* found = find(head, 0, key)) return found;

  const uint64_t offset = mailbox.allocate(sizeof(Rendezvous) + num_slots * sizeof(std::atomic<uint64_t>));
  auto* made = mailbox.at<Rendezvous>(offset);  // slots and num_read are zero already
  made->key = key;
  made->signature = signature;
  made->first_rank = global_rank();
  made->num_slots = num_slots;
  std::strncpy(made->first_site, site.c_str(), kSiteBytes - 1);
  for (uint64_t searched = head;; searched = head) {
    made->next = head;
    if (chain.compare_exchange_strong(head, offset, std::memory_order_acq_rel)) return made;
    if (Rendezvous* found = find(head, searched, key)) return found;  // a peer was faster
  }
}

void arrive(Rendezvous* rendezvous, int slot, const void* payload, size_t bytes, Origin origin) {
  uint64_t mark = kArrived;
  if (payload != nullptr) {
    mark = allocate_block(bytes);
    Mailbox::instance().at<PayloadBlock>(mark)->origin = origin;
    std::memcpy(Mailbox::instance().at<char>(mark) + kAlignment, payload, bytes);
  }
  rendezvous->slots[slot].store(mark, std::memory_order_release);
}

bool has_arrived(const Rendezvous* rendezvous, int slot) {
  return rendezvous->slots[slot].load(std::memory_order_acquire) != 0;
}

const void* payload(const Rendezvous* rendezvous, int slot) {
  const uint64_t mark = rendezvous->slots[slot].load(std::memory_order_acquire);
  return mark > kArrived ? Mailbox::instance().at<char>(mark) + kAlignment : nullptr;
}

Origin payload_origin(const Rendezvous* rendezvous, int slot) {
  const uint64_t mark = rendezvous->slots[slot].load(std::memory_order_acquire);
  return mark > kArrived ? Mailbox::instance().at<PayloadBlock>(mark)->origin : Origin::kernel;
}

void finish_reading(Rendezvous* rendezvous, int num_readers) {
  if (rendezvous->num_read.fetch_add(1, std::memory_order_acq_rel) + 1 < num_readers) return;
  for (int slot = 0; slot < rendezvous->num_slots; ++slot) {
    const uint64_t mark = rendezvous->slots[slot].load(std::memory_order_acquire);
    if (mark > kArrived) {
      rendezvous->slots[slot].store(kArrived, std::memory_order_release);
      release_block(mark);
    }
  }
}

int global_rank() {
  static const int rank = [] {
    const char* text = std::getenv("RANK");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  return rank;
}

double Wait::timeout_s() {
  static const double seconds = [] {
    const char* text = std::getenv("MAYA_EXCHANGE_TIMEOUT_S");
    return text == nullptr ? 300.0 : std::atof(text);
  }();
  return seconds;
}

Wait::Wait() : deadline_ns_(monotonic_ns() + static_cast<int64_t>(timeout_s() * 1e9)) {}

void Wait::step() {
  constexpr int kNumSpins = 20;  // yields, some microseconds: peers in lockstep arrive within it
  constexpr timespec kPause = {0, 50'000};
  if (++num_steps_ <= kNumSpins) {
    sched_yield();
    return;
  }
  nanosleep(&kPause, nullptr);
  if (const int failed = Mailbox::instance().header().failed_rank.load(std::memory_order_relaxed)) {
    warn("rank %d stops, since rank %d has ended the exchange of payloads (see its message).", global_rank(),
         failed - 1);
    _exit(kFollowerExitCode);
  }
}

bool Wait::is_over() const { return num_steps_ % 64 == 0 && monotonic_ns() > deadline_ns_; }

void fail(const std::string& diagnosis) {
  warn("%s", diagnosis.c_str());
  Mailbox::instance().header().failed_rank.store(global_rank() + 1, std::memory_order_relaxed);
  _exit(kExitCode);
}

}  // namespace maya::exchange
