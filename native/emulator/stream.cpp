// Streams: identity, waiting, the order against host functions.
#include <deque>
#include <mutex>

#include "collectives.h"
#include "device_table.h"
#include "recorder.h"
#include "recorder_state.h"
#include "runtime.h"

namespace maya {
namespace {

// Ids 0 and 1 are the legacy and the per-thread default stream.
struct Streams {
  std::mutex mutex;
  std::deque<CUstream_st*> by_id;  // objects are kept: a trace id is never used twice
  Streams() {
    by_id.push_back(new CUstream_st{0, 0, kLeastPriority, 0});
    by_id.push_back(new CUstream_st{1, 0, kLeastPriority, 0});
  }
};

Streams& streams() {
  static Streams& instance = *new Streams;
  return instance;
}

CUstream_st* new_stream(unsigned flags, int priority) {
  Streams& all = streams();
  std::lock_guard lock(all.mutex);
  auto* stream = new CUstream_st{static_cast<int64_t>(all.by_id.size()), flags, priority, current_device()};
  all.by_id.push_back(stream);
  return stream;
}

// Everything issued so far is done, as far as the host can see.
void complete_work() {
  UntimedSection untimed;
  complete_pending_collectives();
  wait_for_host_functions();
}

}  // namespace

CUstream_st* stream_object(CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return streams().by_id[0];
  if (handle == CU_STREAM_PER_THREAD) return streams().by_id[1];
  return handle;
}

CUstream_st* stream_by_id(int64_t id) {
  Streams& all = streams();
  std::lock_guard lock(all.mutex);
  return id >= 0 && id < static_cast<int64_t>(all.by_id.size()) ? all.by_id[static_cast<size_t>(id)]
                                                                : nullptr;
}

cudaError_t check_stream(CUstream stream) {
  if (!is_alive(stream)) return cudaErrorInvalidResourceHandle;
  bool is_legacy = reinterpret_cast<uintptr_t>(stream) <= 1;
  return is_legacy && legacy_stream_is_unsafe() ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}

int64_t stream_id(const void* stream_handle) {
  auto value = reinterpret_cast<uintptr_t>(stream_handle);
  if (value <= 1) return 0;
  if (value == 2) return 1;
  return static_cast<const CUstream_st*>(stream_handle)->id;
}

int64_t allocate_stream_id() { return new_stream(cudaStreamNonBlocking, kLeastPriority)->id; }

cudaError_t create_stream(CUstream* stream, unsigned flags, int priority) {
  if (stream == nullptr || (flags & ~static_cast<unsigned>(cudaStreamNonBlocking)) != 0)
    return cudaErrorInvalidValue;
  use_context(current_device());
  priority = priority > kLeastPriority      ? kLeastPriority
             : priority < kGreatestPriority ? kGreatestPriority
                                            : priority;
  Call call;
  *stream = new_stream(flags, priority);
  call.record(Kind::stream_create, {(*stream)->id, flags, priority});
  return cudaSuccess;
}

cudaError_t destroy_stream(CUstream stream) {
  if (reinterpret_cast<uintptr_t>(stream) <= 2 || !stream->is_alive) return cudaErrorInvalidResourceHandle;
  stream->is_alive = false;
  abandon_capture(stream);
  Call call;
  call.record(Kind::stream_destroy, {stream->id});
  return cudaSuccess;
}

cudaError_t synchronize_stream(CUstream stream) {
  if (cudaError_t result = check_stream(stream); result != cudaSuccess) return result;
  if (is_capturing(stream)) {
    invalidate_capture(stream);
    return cudaErrorStreamCaptureUnsupported;
  }
  {
    Call call;
    call.record(Kind::stream_sync, {stream_id(stream)});
  }
  complete_work();
  return cudaSuccess;
}

cudaError_t query_stream(CUstream stream) {
  if (cudaError_t result = check_stream(stream); result != cudaSuccess) return result;
  if (is_capturing(stream)) {
    invalidate_capture(stream);
    return cudaErrorStreamCaptureUnsupported;
  }
  Call call;
  call.record(Kind::stream_query, {stream_id(stream)});
  return host_functions_pending() ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t wait_event(CUstream stream, CUevent event, unsigned flags) {
  if (!is_alive(event)) return cudaErrorInvalidResourceHandle;
  cudaError_t result = check_stream(stream);
  if (result != cudaSuccess) return result;
  Call call;
  if (capture_event_wait(stream, event, (flags & cudaEventWaitExternal) != 0, &result)) return result;
  call.record(Kind::stream_wait_event, {stream_id(stream), event->id, event->version});
  return cudaSuccess;
}

cudaError_t synchronize_device() {
  if (is_unsafe_in_capture()) return cudaErrorStreamCaptureUnsupported;
  use_context(current_device());
  {
    Call call;
    call.record(Kind::device_sync, {});
  }
  complete_work();
  return cudaSuccess;
}

}  // namespace maya

using maya::runtime_result;

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::create_stream(stream, cudaStreamDefault, 0));
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::create_stream(stream, flags, 0));
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::create_stream(stream, flags, priority));
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::destroy_stream(stream));
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  MAYA_COUNT_CALL();
  if (!maya::is_alive(stream)) return runtime_result(cudaErrorInvalidResourceHandle);
  *priority = maya::stream_object(stream)->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  MAYA_COUNT_CALL();
  if (!maya::is_alive(stream)) return runtime_result(cudaErrorInvalidResourceHandle);
  *flags = maya::stream_object(stream)->flags;
  return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  MAYA_COUNT_CALL();
  *id = static_cast<unsigned long long>(maya::stream_id(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  MAYA_COUNT_CALL();
  *device = reinterpret_cast<uintptr_t>(stream) <= 2 ? maya::current_device() : stream->device;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::synchronize_stream(stream));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::query_stream(stream));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::wait_event(stream, event, flags));
}
cudaError_t cudaDeviceSynchronize() {
  MAYA_COUNT_CALL();
  return runtime_result(maya::synchronize_device());
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  MAYA_COUNT_CALL();
  if (least != nullptr) *least = maya::kLeastPriority;
  if (greatest != nullptr) *greatest = maya::kGreatestPriority;
  return cudaSuccess;
}

}  // extern "C"
