// Copies and fills: what the trace says of them, and which payloads really move.
//
// Bytes move up to kPayloadLimitBytes, so what a program sends to the device and reads back is true.
// Above it no device page is touched: a copy to the host, and a fill with zero, leave zeros by handing
// the pages of the target back to the kernel; other large transfers leave their target as it is.
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "allocations.h"
#include "collectives.h"
#include "device_table.h"
#include "host_reads.h"
#include "known_bytes.h"
#include "payload_plan.h"
#include "recorder.h"
#include "recorder_state.h"
#include "runtime.h"

namespace maya {
namespace {

using trace::MemcpyDirection;

// Pageable copies to the device up to this size return at once (CUDA Programming Guide, asynchronous
// concurrent execution).
constexpr size_t kStagedBytes = 64 << 10;

bool is_host(const Allocation& allocation) {
  return allocation.space == Space::unknown || allocation.space == Space::pinned_host;
}

MemcpyDirection direction_of(const Allocation& target, const Allocation& source) {
  if (is_host(target))
    return is_host(source) ? MemcpyDirection::host_to_host : MemcpyDirection::device_to_host;
  if (is_host(source)) return MemcpyDirection::host_to_device;
  return target.device == source.device ? MemcpyDirection::device_to_device : MemcpyDirection::peer_to_peer;
}

// Whether the host waits for the copy. Source: CUDA API reference, "API synchronization behavior".
bool blocks_host(MemcpyDirection direction, bool is_pinned, bool is_synchronous, size_t bytes) {
  switch (direction) {
    case MemcpyDirection::host_to_host:
      return true;
    case MemcpyDirection::device_to_host:
      return is_synchronous || !is_pinned;
    case MemcpyDirection::host_to_device:
      return is_pinned ? is_synchronous : is_synchronous || bytes > kStagedBytes;
    default:
      return false;
  }
}

// Pages that were handed back read as zero, those of shared files once a hole is there; the rest is written.
void zero_without_touching(void* address, size_t bytes) {
  static const uintptr_t page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  auto begin = reinterpret_cast<uintptr_t>(address);
  uintptr_t end = begin + bytes;
  uintptr_t first = (begin + page_bytes - 1) / page_bytes * page_bytes, last = end / page_bytes * page_bytes;
  if (first >= last) {
    memset(address, 0, bytes);
    return;
  }
  memset(address, 0, first - begin);
  memset(reinterpret_cast<void*>(last), 0, end - last);
  void* pages = reinterpret_cast<void*>(first);
  if (madvise(pages, last - first, MADV_REMOVE) != 0) madvise(pages, last - first, MADV_DONTNEED);
}

// Whether rows lie in memory that the first one begins in; pageable memory is not known.
bool is_inside(const void* pointer, const Allocation& allocation, const Rows& rows, size_t pitch_bytes) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (allocation.space == Space::unknown) return !is_emulated_address(address);  // else it was freed
  size_t bytes;
  if (__builtin_mul_overflow(pitch_bytes, rows.height - 1, &bytes) ||
      __builtin_add_overflow(bytes, rows.width_bytes, &bytes)) {
    return false;
  }
  return bytes <= allocation.address + allocation.bytes - address || is_accessible(pointer, bytes);
}

// Launches of a graph find the memory of a captured copy freed, where the program has made a mistake.
bool is_still_there(const Allocation& allocation) {
  if (allocation.space == Space::unknown) return true;
  return find_allocation(reinterpret_cast<const void*>(allocation.address)).space != Space::unknown;
}

void move_rows(void* target, const void* source, const Rows& rows, MemcpyDirection direction) {
  size_t bytes = rows.width_bytes * rows.height;
  if (bytes > kPayloadLimitBytes && direction != MemcpyDirection::host_to_host) {
    if (direction == MemcpyDirection::device_to_host) {
      if (rows.target_pitch_bytes == rows.width_bytes) {
        zero_without_touching(target, bytes);
      } else {
        for (size_t row = 0; row < rows.height; ++row) {
          zero_without_touching(static_cast<char*>(target) + row * rows.target_pitch_bytes, rows.width_bytes);
        }
      }
    } else {
      for (size_t row = 0; row < rows.height; ++row) {
        overwrite_known_bytes(static_cast<char*>(target) + row * rows.target_pitch_bytes, rows.width_bytes);
      }
    }
    return;
  }
  Origin worst = Origin::program;
  for (size_t row = 0; row < rows.height; ++row) {
    char* to = static_cast<char*>(target) + row * rows.target_pitch_bytes;
    const char* from = static_cast<const char*>(source) + row * rows.source_pitch_bytes;
    const Origin origin = origin_of_bytes(from, rows.width_bytes);
    memmove(to, from, rows.width_bytes);
    keep_known_bytes(to, rows.width_bytes, origin);
    worst = std::max(worst, origin);
  }
  if (direction == MemcpyDirection::device_to_host) finish_host_read(target, bytes, worst);
}

void fill_now(void* target, unsigned value, size_t element_bytes, size_t count) {
  size_t bytes = element_bytes * count;
  if (bytes > kPayloadLimitBytes) {
    overwrite_known_bytes(target, bytes);
    if (value == 0) zero_without_touching(target, bytes);
    return;
  }
  if (element_bytes == 1) {
    memset(target, static_cast<int>(value), bytes);
  } else {
    for (size_t i = 0; i < count; ++i)
      memcpy(static_cast<char*>(target) + i * element_bytes, &value, element_bytes);
  }
  keep_known_bytes(target, bytes);
}

}  // namespace

cudaError_t copy_rows(void* target, const void* source, const Rows& rows, cudaMemcpyKind kind,
                      CUstream stream, bool is_synchronous) {
  size_t bytes;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (__builtin_mul_overflow(rows.width_bytes, rows.height, &bytes)) return cudaErrorInvalidValue;
  if (rows.target_pitch_bytes < rows.width_bytes || rows.source_pitch_bytes < rows.width_bytes)
    return cudaErrorInvalidPitchValue;
  if (bytes == 0) return cudaSuccess;
  if (target == nullptr || source == nullptr) return cudaErrorInvalidValue;
  if (cudaError_t result = check_stream(stream); result != cudaSuccess) return result;
  if (is_synchronous && is_unsafe_in_capture()) return cudaErrorStreamCaptureUnsupported;
  use_context(current_device());
  Allocation to = find_allocation(target), from = find_allocation(source);
  MemcpyDirection direction = direction_of(to, from);
  if (kind == cudaMemcpyHostToDevice && is_host(to)) return cudaErrorInvalidValue;
  if (kind == cudaMemcpyDeviceToHost && is_host(from)) return cudaErrorInvalidValue;
  if (kind == cudaMemcpyDeviceToDevice && (to.space == Space::unknown || from.space == Space::unknown))
    return cudaErrorInvalidValue;
  if (!is_inside(target, to, rows, rows.target_pitch_bytes) ||
      !is_inside(source, from, rows, rows.source_pitch_bytes)) {
    return cudaErrorInvalidValue;
  }
  bool is_pinned = (is_host(to) ? to : from).space == Space::pinned_host;
  {
    Call call;
    bool is_blocking = blocks_host(direction, is_pinned, is_synchronous, bytes);
    call.record(Kind::memcpy, {stream_id(stream), static_cast<int64_t>(direction),
                               static_cast<int64_t>(bytes), is_pinned, is_blocking});
  }
  UntimedSection untimed;
  if (bytes <= kPayloadLimitBytes) {
    complete_pending_collectives(source, bytes);
    complete_pending_collectives(target, bytes);
  }
  run_or_capture(stream, [=] {
    if (is_still_there(to) && is_still_there(from)) move_rows(target, source, rows, direction);
  });
  return cudaSuccess;
}

cudaError_t copy(void* target, const void* source, size_t bytes, cudaMemcpyKind kind, CUstream stream,
                 bool is_synchronous) {
  return copy_rows(target, source, {bytes, 1, bytes, bytes}, kind, stream, is_synchronous);
}

cudaError_t fill(void* target, unsigned value, size_t element_bytes, size_t count, CUstream stream,
                 bool is_synchronous) {
  size_t bytes;
  if (__builtin_mul_overflow(element_bytes, count, &bytes)) return cudaErrorInvalidValue;
  if (bytes == 0) return cudaSuccess;
  if (cudaError_t result = check_stream(stream); result != cudaSuccess) return result;
  const Allocation to = find_allocation(target);
  if (to.space == Space::unknown || !is_inside(target, to, {bytes, 1, bytes, bytes}, bytes))
    return cudaErrorInvalidValue;
  if (is_synchronous && is_unsafe_in_capture()) return cudaErrorStreamCaptureUnsupported;
  use_context(current_device());
  {
    Call call;
    // Only fills of host memory hold the host up (CUDA API reference, "API synchronization behavior").
    bool is_blocking = is_synchronous && is_host(to);
    call.record(Kind::memset, {stream_id(stream), static_cast<int64_t>(bytes), is_blocking});
  }
  UntimedSection untimed;
  complete_pending_collectives(target, bytes);
  run_or_capture(stream, [=] {
    if (is_still_there(to)) fill_now(target, value, element_bytes, count);
  });
  return cudaSuccess;
}

}  // namespace maya

using maya::runtime_result;

extern "C" {

cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes, cudaMemcpyKind kind) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::copy(target, source, bytes, kind, nullptr, true));
}
cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::copy(target, source, bytes, kind, stream, false));
}
cudaError_t cudaMemcpyPeer(void* target, int /*target_device*/, const void* source, int /*source_device*/,
                           size_t bytes) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::copy(target, source, bytes, cudaMemcpyDefault, nullptr, true));
}
cudaError_t cudaMemcpyPeerAsync(void* target, int /*target_device*/, const void* source,
                                int /*source_device*/, size_t bytes, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::copy(target, source, bytes, cudaMemcpyDefault, stream, false));
}
cudaError_t cudaMemcpy2D(void* target, size_t target_pitch, const void* source, size_t source_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
  MAYA_COUNT_CALL();
  return runtime_result(
      maya::copy_rows(target, source, {width, height, target_pitch, source_pitch}, kind, nullptr, true));
}
cudaError_t cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source, size_t source_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(
      maya::copy_rows(target, source, {width, height, target_pitch, source_pitch}, kind, stream, false));
}
cudaError_t cudaMemset(void* target, int value, size_t bytes) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::fill(target, static_cast<unsigned char>(value), 1, bytes, nullptr, true));
}
cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::fill(target, static_cast<unsigned char>(value), 1, bytes, stream, false));
}

}  // extern "C"
