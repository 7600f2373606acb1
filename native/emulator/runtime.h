// Objects behind the handles of the runtime and the driver, and functions that both APIs share.
// Functions here return codes that are equal in cudaError_t and CUresult and leave the last error alone.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "../trace/format.h"
#include "device.h"

namespace maya {

struct Capture;

// Remembers a failure for cudaGetLastError of the calling thread and hands it on.
cudaError_t runtime_result(cudaError_t result);
inline CUresult driver_result(cudaError_t result) { return static_cast<CUresult>(result); }

}  // namespace maya

struct CUstream_st {
  int64_t id;
  unsigned flags;
  int priority;
  int device;
  maya::Capture* capture = nullptr;
  std::vector<CUgraphNode> capture_tail;  // what the next node of a capture depends on
  bool is_alive = true;                   // objects stay, as programs use handles that they have destroyed
};

struct CUevent_st {
  int64_t id;
  unsigned flags;
  int device;
  int64_t version = 0;               // of the newest record, 0 before the first one
  int64_t next_version = 1;          // goes on when the object is used for another event
  int64_t device_clock_ns = 0;       // of the newest record
  maya::Capture* capture = nullptr;  // the newest record was captured
  int64_t capture_ordinal = 0;       // of that record in its graph
  std::vector<CUgraphNode> capture_tail;
  bool is_alive = true;
};

struct CUctx_st {
  int device;
};

namespace maya {

// Streams. The reserved handles 0, 1 (legacy) and 2 (per thread) have objects of their own.
CUstream_st* stream_object(CUstream handle);
inline bool is_alive(CUstream stream) { return reinterpret_cast<uintptr_t>(stream) <= 2 || stream->is_alive; }
inline bool is_alive(CUevent event) { return event != nullptr && event->is_alive; }
CUstream_st* stream_by_id(int64_t id);
// Whether work may go into the stream: it exists, and no capture forbids it.
cudaError_t check_stream(CUstream stream);
cudaError_t create_stream(CUstream* stream, unsigned flags, int priority);
cudaError_t destroy_stream(CUstream stream);
cudaError_t synchronize_stream(CUstream stream);
cudaError_t query_stream(CUstream stream);
cudaError_t wait_event(CUstream stream, CUevent event, unsigned flags);
cudaError_t synchronize_device();
inline constexpr int kLeastPriority = 0;
inline constexpr int kGreatestPriority = -5;  // observed on data-centre parts
int64_t allocate_stream_id();

// Events.
cudaError_t create_event(CUevent* event, unsigned flags);
cudaError_t destroy_event(CUevent event);
cudaError_t record_event(CUevent event, CUstream stream, unsigned flags);
cudaError_t query_event(CUevent event);
cudaError_t synchronize_event(CUevent event);
cudaError_t elapsed_time(float* milliseconds, CUevent start, CUevent end);
int64_t allocate_event_id();

// Host functions run in call order on a thread of their own.
void enqueue_host_function(void (*function)(void*), void* data);
bool host_functions_pending();
void wait_for_host_functions();
void reset_host_functions_after_fork();

// Memory.
cudaError_t allocate_device(void** address, size_t bytes, trace::Memory memory, CUstream stream);
cudaError_t allocate_host(void** address, size_t bytes);
cudaError_t free_memory(void* address);
cudaError_t free_async(void* address, CUstream stream);
cudaError_t free_host(void* address);
cudaError_t register_host(void* address, size_t bytes);
cudaError_t unregister_host(void* address);
// The block is gone: handles of it that other processes may hold lead nowhere.
void withdraw_ipc_handle(void* address);
void memory_info(size_t* free_bytes, size_t* total_bytes);

// Copies. `is_synchronous` is the form without Async.
cudaError_t copy(void* target, const void* source, size_t bytes, cudaMemcpyKind kind, CUstream stream,
                 bool is_synchronous);
struct Rows {
  size_t width_bytes, height, target_pitch_bytes, source_pitch_bytes;
};
cudaError_t copy_rows(void* target, const void* source, const Rows& rows, cudaMemcpyKind kind,
                      CUstream stream, bool is_synchronous);
// Fills `count` elements of 1, 2 or 4 bytes.
cudaError_t fill(void* target, unsigned value, size_t element_bytes, size_t count, CUstream stream,
                 bool is_synchronous);

// Captures and graphs.
bool is_capturing(CUstream stream);
// Runs a change of payloads now, or at each launch of the graph when the stream captures.
void run_or_capture(CUstream stream, std::function<void()> effect);
// Whether a call that a capture cannot see is forbidden now to this thread.
bool is_unsafe_in_capture();
// Whether a blocking stream captures, on which work in the legacy stream would depend; it then fails.
bool legacy_stream_is_unsafe();
// Gives up a capture that the stream has begun.
void abandon_capture(CUstream stream);
// Fails the capture of the stream: its end will report it.
void invalidate_capture(CUstream stream);
void capture_event_record(CUevent event, CUstream stream, bool is_external);
bool capture_event_wait(CUstream stream, CUevent event, bool is_external, cudaError_t* result);

// Contexts: one for each device, made at first use.
CUctx_st* primary_context(int device);

// Address of an exported function, the newest version of its name; null when it is not emulated.
void* find_entry_point(const char* name);

}  // namespace maya
