#include "trace_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "recorder.h"

namespace maya {
namespace {

constexpr size_t kWindowBytes = 4 << 20;
constexpr size_t kMaxVarintBytes = 10;
constexpr size_t kMaxTextBytes = 60000;  // payload_bytes has 16 bits

char* write_varint(char* out, int64_t value) {
  uint64_t zigzag = (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63);
  while (zigzag >= 0x80) {
    *out++ = static_cast<char>(zigzag | 0x80);
    zigzag >>= 7;
  }
  *out++ = static_cast<char>(zigzag);
  return out;
}

// Blocks are allocated ahead, so that a full disk is an error here and not a SIGBUS at a later store.
bool grow(int descriptor, uint64_t offset, size_t bytes) {
  if (fallocate(descriptor, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0) return true;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return false;
  return ftruncate(descriptor, static_cast<off_t>(offset + bytes)) == 0;
}

int64_t unix_ns() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

}  // namespace

bool TraceWriter::open(const char* dir, int64_t rank) {
  char name[32];
  snprintf(name, sizeof(name), "/rank%05lld.trace", static_cast<long long>(rank));
  path_ = std::string(dir) + name;
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    if (errno == EEXIST) {
      warn("%s exists: calls of process %d are not recorded (one process a rank may write)", path_.c_str(),
           getpid());
    } else {
      warn("cannot create the trace %s: %s; nothing is recorded", path_.c_str(), strerror(errno));
    }
    return false;
  }
  window_offset_ = 0;
  position_ = 0;
  if (!move_window()) return false;
  trace::FileHeader header{};
  memcpy(header.magic, trace::kMagic, sizeof(header.magic));
  header.version = trace::kVersion;
  header.header_bytes = sizeof(header);
  header.process_id = static_cast<uint64_t>(getpid());
  header.rank = rank;
  header.start_unix_ns = unix_ns();
  memcpy(window_, &header, sizeof(header));
  position_ = sizeof(header);
  return true;
}

// Maps the next window, starting at the page of the next record.
bool TraceWriter::move_window() {
  uint64_t end = window_offset_ + position_;
  uint64_t page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  uint64_t offset = end / page_bytes * page_bytes;
  if (window_ != nullptr) munmap(window_, kWindowBytes);
  window_ = nullptr;
  if (grow(descriptor_, offset, kWindowBytes)) {
    void* mapped = mmap(nullptr, kWindowBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_,
                        static_cast<off_t>(offset));
    if (mapped != MAP_FAILED) {
      window_ = static_cast<char*>(mapped);
      window_offset_ = offset;
      position_ = end - offset;
      return true;
    }
  }
  warn("cannot extend the trace %s: %s; recording stops here", path_.c_str(), strerror(errno));
  abandon();
  return false;
}

// Space for one record of at most `bytes`; null when the file cannot grow.
char* TraceWriter::reserve(size_t bytes) {
  if (descriptor_ < 0) return nullptr;
  if (position_ + bytes > kWindowBytes && !move_window()) return nullptr;
  return window_ + position_;
}

void TraceWriter::commit(char* record, trace::Kind kind, uint8_t flags, uint16_t thread, uint32_t gap_ns,
                         size_t payload_bytes) {
  trace::RecordHeader header{};
  header.payload_bytes = static_cast<uint16_t>(payload_bytes);
  header.flags = flags;
  header.thread = thread;
  header.gap_ns = gap_ns;
  memcpy(record, &header, sizeof(header));
  // The kind makes the record visible: a reader of an unfinished file stops at the first kind 0.
  auto* kind_byte = reinterpret_cast<uint8_t*>(record) + offsetof(trace::RecordHeader, kind);
  std::atomic_ref<uint8_t>(*kind_byte).store(static_cast<uint8_t>(kind), std::memory_order_release);
  position_ += sizeof(header) + payload_bytes;
}

void TraceWriter::append(trace::Kind kind, uint8_t flags, uint16_t thread, uint32_t gap_ns,
                         const int64_t* fields, int num_fields) {
  while (num_fields > 0 && fields[num_fields - 1] == trace::kMissing) --num_fields;
  char* record = reserve(sizeof(trace::RecordHeader) + kMaxVarintBytes * static_cast<size_t>(num_fields));
  if (record == nullptr) return;
  char* payload = record + sizeof(trace::RecordHeader);
  char* out = payload;
  for (int i = 0; i < num_fields; ++i) out = write_varint(out, fields[i]);
  commit(record, kind, flags, thread, gap_ns, static_cast<size_t>(out - payload));
}

void TraceWriter::append_text(trace::Kind kind, uint16_t thread, int64_t id, std::string_view text) {
  text = text.substr(0, kMaxTextBytes);
  char* record = reserve(sizeof(trace::RecordHeader) + kMaxVarintBytes + text.size());
  if (record == nullptr) return;
  char* payload = record + sizeof(trace::RecordHeader);
  char* out = write_varint(payload, id);
  memcpy(out, text.data(), text.size());
  commit(record, kind, 0, thread, 0, static_cast<size_t>(out - payload) + text.size());
}

void TraceWriter::close() {
  if (descriptor_ < 0) return;
  if (ftruncate(descriptor_, static_cast<off_t>(window_offset_ + position_)) != 0) {
    warn("cannot cut the trace %s to its size: %s", path_.c_str(), strerror(errno));
  }
  abandon();
}

void TraceWriter::abandon() {
  if (window_ != nullptr) munmap(window_, kWindowBytes);
  window_ = nullptr;
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

}  // namespace maya
