// Events: each record has a version, and waits name the version that was current at their call.
#include <mutex>
#include <vector>

#include "collectives.h"
#include "device_table.h"
#include "recorder.h"
#include "recorder_state.h"
#include "runtime.h"

namespace maya {
namespace {

// Destroyed events are used again, with their trace id and a version count that goes on.
struct Events {
  std::mutex mutex;
  int64_t num_ids = 0;
  std::vector<CUevent_st*> unused;
};

Events& events() {
  static Events& instance = *new Events;
  return instance;
}

// Resolution of the hardware's time stamps (documented at cudaEventElapsedTime).
constexpr int64_t kEventResolutionNs = 500;

CUevent_st* take_event(unsigned flags) {
  Events& all = events();
  std::lock_guard lock(all.mutex);
  CUevent_st* event;
  if (all.unused.empty()) {
    event = new CUevent_st{all.num_ids++, flags, current_device()};
  } else {
    event = all.unused.back();
    all.unused.pop_back();
    event->flags = flags;
    event->device = current_device();
    event->version = 0;
    event->capture = nullptr;
    event->is_alive = true;
  }
  return event;
}

}  // namespace

int64_t event_id(const void* event_handle) { return static_cast<const CUevent_st*>(event_handle)->id; }

int64_t allocate_event_id() {
  Events& all = events();
  std::lock_guard lock(all.mutex);
  return all.num_ids++;
}

cudaError_t create_event(CUevent* event, unsigned flags) {
  constexpr unsigned kKnownFlags = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
  if (event == nullptr || (flags & ~kKnownFlags) != 0) return cudaErrorInvalidValue;
  if ((flags & cudaEventInterprocess) != 0 && (flags & cudaEventDisableTiming) == 0)
    return cudaErrorInvalidValue;
  use_context(current_device());
  Call call;
  *event = take_event(flags);
  call.record(Kind::event_create, {(*event)->id, flags});
  return cudaSuccess;
}

cudaError_t destroy_event(CUevent event) {
  if (!is_alive(event)) return cudaErrorInvalidResourceHandle;
  Call call;
  call.record(Kind::event_destroy, {event->id});
  std::lock_guard lock(events().mutex);
  event->is_alive = false;
  events().unused.push_back(event);
  return cudaSuccess;
}

cudaError_t record_event(CUevent event, CUstream stream, unsigned flags) {
  if (!is_alive(event)) return cudaErrorInvalidResourceHandle;
  if (cudaError_t result = check_stream(stream); result != cudaSuccess) return result;
  bool is_external = (flags & cudaEventRecordExternal) != 0;
  bool is_reserved_stream = reinterpret_cast<uintptr_t>(stream) <= 2;
  int device = is_reserved_stream ? current_device() : stream->device;
  if (device != event->device) return cudaErrorInvalidResourceHandle;
  Call call;
  if (is_capturing(stream)) {
    capture_event_record(event, stream, is_external);
    return cudaSuccess;
  }
  if (is_external) return cudaErrorInvalidValue;
  event->capture = nullptr;
  event->version = event->next_version++;
  event->device_clock_ns = device_clock_ns();
  call.record(Kind::event_record, {stream_id(stream), event->id, event->version});
  return cudaSuccess;
}

cudaError_t query_event(CUevent event) {
  if (!is_alive(event)) return cudaErrorInvalidResourceHandle;
  if (event->capture != nullptr) return cudaErrorCapturedEvent;
  if (is_unsafe_in_capture()) return cudaErrorStreamCaptureUnsupported;
  Call call;
  call.record(Kind::event_query, {event->id, event->version});
  return host_functions_pending() ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t synchronize_event(CUevent event) {
  if (!is_alive(event)) return cudaErrorInvalidResourceHandle;
  if (event->capture != nullptr) return cudaErrorCapturedEvent;
  if (is_unsafe_in_capture()) return cudaErrorStreamCaptureUnsupported;
  {
    Call call;
    call.record(Kind::event_sync, {event->id, event->version});
  }
  UntimedSection untimed;
  complete_pending_collectives();
  wait_for_host_functions();
  return cudaSuccess;
}

// The modelled device clock between the two records: positive, and the same in every run, so that
// tuners which compare times choose alike each time.
cudaError_t elapsed_time(float* milliseconds, CUevent start, CUevent end) {
  if (!is_alive(start) || !is_alive(end) || milliseconds == nullptr) return cudaErrorInvalidResourceHandle;
  if (((start->flags | end->flags) & cudaEventDisableTiming) != 0) return cudaErrorInvalidResourceHandle;
  if (start->capture != nullptr || end->capture != nullptr) return cudaErrorCapturedEvent;
  if (start->version == 0 || end->version == 0) return cudaErrorInvalidResourceHandle;
  int64_t elapsed_ns = end->device_clock_ns - start->device_clock_ns;
  elapsed_ns += elapsed_ns < 0 ? -kEventResolutionNs : kEventResolutionNs;
  *milliseconds = static_cast<float>(static_cast<double>(elapsed_ns) / 1e6);
  return cudaSuccess;
}

}  // namespace maya

using maya::runtime_result;

extern "C" {

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::create_event(event, cudaEventDefault));
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::create_event(event, flags));
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::destroy_event(event));
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::record_event(event, stream, cudaEventRecordDefault));
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::record_event(event, stream, flags));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::query_event(event));
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::synchronize_event(event));
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::elapsed_time(milliseconds, start, end));
}

}  // extern "C"
