// Stream capture and graphs: captured records are kept and issued again at each launch.
//
// Streams of a capture become lanes. Lane 0 (the origin) is the launching stream; every other lane is a
// stream of the executable graph. Fork and join are events of the executable graph, so a launch is a
// list of ordinary records: operations, event records and waits, in the order of the capture.
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "device_table.h"
#include "graph_capture.h"
#include "recorder.h"
#include "recorder_state.h"
#include "runtime.h"

namespace maya {

struct Step {
  Kind kind;
  int lane;
  std::vector<int64_t> fields;       // of an operation; the stream is set at the launch
  int64_t event_ordinal = 0;         // of event_record and stream_wait_event between lanes
  CUevent external_event = nullptr;  // of external event nodes
  std::function<void()> effect;      // change of payloads
};

}  // namespace maya

struct CUgraphNode_st {
  CUgraphNodeType type;
  std::vector<CUgraphNode> dependencies;
};

struct CUuserObject_st {
  void (*destroy)(void*);
  void* data;
  std::atomic<int64_t> references;
};

struct CUgraph_st {
  int64_t id;
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
  std::vector<maya::Step> steps;
  int num_lanes = 1;
  int64_t num_events = 0;
  std::vector<std::pair<CUuserObject, int64_t>> user_objects;
};

struct CUgraphExec_st {
  int64_t id;
  std::vector<maya::Step> steps;
  int64_t num_operations = 0;
  std::vector<int64_t> lane_streams;  // trace ids, of lanes 1 and up at index - 1
  std::vector<int64_t> events;        // trace ids by ordinal
  int64_t num_launches = 0;
};

namespace maya {

struct Capture {
  uint64_t id;
  CUgraph graph;
  CUstream_st* origin;
  cudaStreamCaptureMode mode;
  pid_t thread;
  bool is_valid = true;
  std::vector<CUstream_st*> streams;  // by lane
};

namespace {

std::atomic<int> open_captures{0};
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
thread_local bool replaying = false;

struct Captures {
  std::mutex mutex;
  std::vector<Capture*> open;
  uint64_t num_made = 0;
  int64_t num_graphs = 0;
};

Captures& captures() {
  static Captures& instance = *new Captures;
  return instance;
}

int lane_of(const Capture& capture, const CUstream_st* stream) {
  auto found = std::find(capture.streams.begin(), capture.streams.end(), stream);
  return static_cast<int>(found - capture.streams.begin());
}

CUgraphNode add_node(CUgraph graph, CUgraphNodeType type, std::vector<CUgraphNode> dependencies) {
  graph->nodes.push_back(std::make_unique<CUgraphNode_st>(CUgraphNode_st{type, std::move(dependencies)}));
  return graph->nodes.back().get();
}

CUgraphNodeType node_type(Kind kind) {
  switch (kind) {
    case Kind::memcpy:
      return CU_GRAPH_NODE_TYPE_MEMCPY;
    case Kind::memset:
      return CU_GRAPH_NODE_TYPE_MEMSET;
    case Kind::host_func:
      return CU_GRAPH_NODE_TYPE_HOST;
    case Kind::graph_launch:
      return CU_GRAPH_NODE_TYPE_GRAPH;
    case Kind::event_record:
      return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    case Kind::stream_wait_event:
      return CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    default:
      return CU_GRAPH_NODE_TYPE_KERNEL;
  }
}

void add_step(CUstream_st* stream, Step step) {
  Capture& capture = *stream->capture;
  CUgraphNode node = add_node(capture.graph, node_type(step.kind), stream->capture_tail);
  stream->capture_tail = {node};
  step.lane = lane_of(capture, stream);
  capture.graph->steps.push_back(std::move(step));
}

cudaError_t begin_capture(CUstream stream, CUgraph graph, cudaStreamCaptureMode mode) {
  if (reinterpret_cast<uintptr_t>(stream) <= 1) return cudaErrorStreamCaptureUnsupported;
  if (!is_alive(stream)) return cudaErrorInvalidResourceHandle;
  if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed) return cudaErrorInvalidValue;
  CUstream_st* origin = stream_object(stream);
  if (origin->capture != nullptr) return cudaErrorIllegalState;
  use_context(current_device());
  Call call;
  Captures& all = captures();
  std::lock_guard lock(all.mutex);
  if (graph == nullptr) graph = new CUgraph_st{++all.num_graphs};
  origin->capture = new Capture{++all.num_made, graph, origin, mode, gettid(), true, {origin}};
  origin->capture_tail.clear();
  all.open.push_back(origin->capture);
  ++open_captures;
  return cudaSuccess;
}

bool contains(const std::vector<CUgraphNode>& nodes, CUgraphNode node) {
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

// Every fork has to come back to the origin: all tails of side streams are behind the origin's tail.
bool all_joined(const Capture& capture) {
  std::vector<CUgraphNode> pending = capture.origin->capture_tail;
  std::unordered_map<CUgraphNode, bool> reached;
  while (!pending.empty()) {
    CUgraphNode node = pending.back();
    pending.pop_back();
    if (!reached.emplace(node, true).second) continue;
    pending.insert(pending.end(), node->dependencies.begin(), node->dependencies.end());
  }
  for (CUstream_st* stream : capture.streams) {
    for (CUgraphNode node : stream->capture_tail) {
      if (!reached.contains(node)) return false;
    }
  }
  return true;
}

// No stream records into the capture any more. It stays allocated: events may still refer to it.
void close_capture(Capture* capture) {
  for (CUstream_st* member : capture->streams) {
    if (member->capture != capture) continue;
    member->capture = nullptr;
    member->capture_tail.clear();
  }
  Captures& all = captures();
  std::lock_guard lock(all.mutex);
  std::erase(all.open, capture);
  --open_captures;
}

cudaError_t end_capture(CUstream stream, CUgraph* graph) {
  if (graph == nullptr) return cudaErrorInvalidValue;
  if (!is_alive(stream)) return cudaErrorInvalidResourceHandle;
  CUstream_st* origin = stream_object(stream);
  Capture* capture = origin->capture;
  if (capture == nullptr) return cudaErrorIllegalState;
  if (capture->origin != origin) return cudaErrorStreamCaptureUnmatched;
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != gettid()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  Call call;
  bool is_joined = all_joined(*capture);
  close_capture(capture);
  capture->graph->num_lanes = static_cast<int>(capture->streams.size());
  bool is_valid = capture->is_valid;
  *graph = is_valid && is_joined ? capture->graph : nullptr;
  if (!is_valid) return cudaErrorStreamCaptureInvalidated;
  return is_joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}

cudaError_t instantiate(CUgraphExec* executable, CUgraph graph) {
  if (graph == nullptr || executable == nullptr) return cudaErrorInvalidValue;
  Call call;
  auto* made = new CUgraphExec_st{graph->id, graph->steps};
  for (int lane = 1; lane < graph->num_lanes; ++lane) {
    int64_t id = allocate_stream_id();
    made->lane_streams.push_back(id);
    call.record(Kind::stream_create, {id, cudaStreamNonBlocking, kLeastPriority});
  }
  for (int64_t ordinal = 0; ordinal < graph->num_events; ++ordinal) {
    made->events.push_back(allocate_event_id());
    call.record(Kind::event_create, {made->events.back(), cudaEventDisableTiming});
  }
  made->num_operations = std::count_if(graph->steps.begin(), graph->steps.end(), [](const Step& step) {
    return step.kind != Kind::event_record && step.kind != Kind::stream_wait_event;
  });
  *executable = made;
  return cudaSuccess;
}

void replay_step(Call& call, CUgraphExec executable, const Step& step, int64_t stream) {
  if (step.kind == Kind::event_record || step.kind == Kind::stream_wait_event) {
    int64_t event, version;
    if (CUevent external = step.external_event; external != nullptr) {
      if (step.kind == Kind::event_record) {
        external->version = external->next_version++;
        external->device_clock_ns = device_clock_ns();
      }
      event = external->id;
      version = external->version;
    } else {
      event = executable->events[static_cast<size_t>(step.event_ordinal)];
      version = executable->num_launches;
    }
    call.record(step.kind, {stream, event, version});
    return;
  }
  std::vector<int64_t> fields = step.fields;
  fields[0] = stream;
  call.record(step.kind, fields.data(), static_cast<int>(fields.size()));
}

cudaError_t launch(CUgraphExec executable, CUstream stream) {
  if (executable == nullptr) return cudaErrorInvalidValue;
  if (cudaError_t result = check_stream(stream); result != cudaSuccess) return result;
  {
    Call call;
    call.record(Kind::graph_launch, {stream_id(stream), executable->id, executable->num_operations});
    if (is_capturing(stream)) {
      // A graph launched in a capture: its operations become part of the outer graph, on one lane.
      for (const Step& step : executable->steps) {
        if (step.kind == Kind::event_record || step.kind == Kind::stream_wait_event) continue;
        replay_step(call, executable, step, stream_id(stream));
        stream_object(stream)->capture->graph->steps.back().effect = step.effect;
      }
      return cudaSuccess;
    }
    ++executable->num_launches;
    replaying = true;
    for (const Step& step : executable->steps) {
      int64_t lane_stream =
          step.lane == 0 ? stream_id(stream) : executable->lane_streams[static_cast<size_t>(step.lane - 1)];
      replay_step(call, executable, step, lane_stream);
    }
    replaying = false;
  }
  UntimedSection untimed;
  for (const Step& step : executable->steps) {
    if (step.effect) step.effect();
  }
  return cudaSuccess;
}

void release_user_object(CUuserObject object, int64_t count) {
  if ((object->references -= count) > 0) return;
  enqueue_host_function(object->destroy, object->data);
  delete object;
}

}  // namespace

int num_captures_open() { return open_captures.load(std::memory_order_relaxed); }
bool is_replaying_graph() { return replaying; }

bool capture_record(Kind kind, const int64_t* fields, int num_fields) {
  if (kind < Kind::kernel || kind > Kind::graph_launch) return false;
  CUstream_st* stream = stream_by_id(fields[0]);
  if (stream == nullptr || stream->capture == nullptr) return false;
  add_step(stream, Step{kind, 0, std::vector<int64_t>(fields, fields + num_fields)});
  return true;
}

bool is_capturing(CUstream stream) {
  return num_captures_open() > 0 && stream_object(stream)->capture != nullptr;
}

void run_or_capture(CUstream stream, std::function<void()> effect) {
  if (is_capturing(stream)) {
    Call call;
    stream_object(stream)->capture->graph->steps.back().effect = std::move(effect);
  } else {
    effect();
  }
}

// Source: cudaThreadExchangeStreamCaptureMode in cuda_runtime_api.h.
bool is_unsafe_in_capture() {
  if (num_captures_open() == 0 || thread_mode == cudaStreamCaptureModeRelaxed) return false;
  Captures& all = captures();
  std::lock_guard lock(all.mutex);
  bool is_unsafe = false;
  for (Capture* capture : all.open) {
    bool is_own = capture->thread == gettid();
    bool is_forbidden =
        is_own ? capture->mode != cudaStreamCaptureModeRelaxed
               : thread_mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
    if (!is_forbidden) continue;
    capture->is_valid = false;
    is_unsafe = true;
  }
  return is_unsafe;
}

// Source: CUDA Programming Guide, CUDA graphs, prohibited operations.
bool legacy_stream_is_unsafe() {
  if (num_captures_open() == 0) return false;
  Captures& all = captures();
  std::lock_guard lock(all.mutex);
  bool is_unsafe = false;
  for (Capture* capture : all.open) {
    for (CUstream_st* stream : capture->streams) {
      if ((stream->flags & cudaStreamNonBlocking) != 0) continue;
      capture->is_valid = false;
      is_unsafe = true;
    }
  }
  return is_unsafe;
}

void abandon_capture(CUstream stream) {
  if (stream->capture != nullptr && stream->capture->origin == stream) close_capture(stream->capture);
}

void invalidate_capture(CUstream stream) { stream_object(stream)->capture->is_valid = false; }

void capture_event_record(CUevent event, CUstream stream, bool is_external) {
  CUstream_st* object = stream_object(stream);
  Capture& capture = *object->capture;
  if (is_external) {
    Step step{Kind::event_record, 0, {}};
    step.external_event = event;
    add_step(object, std::move(step));
    return;
  }
  event->capture = &capture;
  event->capture_ordinal = capture.graph->num_events++;
  event->capture_tail = object->capture_tail;
  Step step{Kind::event_record, lane_of(capture, object), {}};
  step.event_ordinal = event->capture_ordinal;
  capture.graph->steps.push_back(std::move(step));
}

// True when the wait concerns a capture; `result` then holds its outcome.
bool capture_event_wait(CUstream stream, CUevent event, bool is_external, cudaError_t* result) {
  CUstream_st* object = stream_object(stream);
  *result = cudaSuccess;
  if (object->capture == nullptr && event->capture == nullptr) {
    if (!is_external) return false;
    *result = cudaErrorInvalidValue;
    return true;
  }
  if (is_external) {
    Step step{Kind::stream_wait_event, 0, {}};
    step.external_event = event;
    add_step(object, std::move(step));
    return true;
  }
  Capture* capture = event->capture;
  if (capture == nullptr) {
    if (event->version == 0) return true;  // never recorded: no work to wait for
    object->capture->is_valid = false;
    *result = cudaErrorStreamCaptureIsolation;
    return true;
  }
  if (object->capture != nullptr && object->capture != capture) {
    object->capture->is_valid = capture->is_valid = false;
    *result = cudaErrorStreamCaptureMerge;
    return true;
  }
  if (object->capture == nullptr) {
    if (capture->origin->capture != capture) return true;  // that capture has ended
    if (reinterpret_cast<uintptr_t>(stream) <= 1) {        // which never captures
      capture->is_valid = false;
      *result = cudaErrorStreamCaptureUnsupported;
      return true;
    }
    object->capture = capture;
    object->capture_tail.clear();
    if (lane_of(*capture, object) == static_cast<int>(capture->streams.size()))
      capture->streams.push_back(object);
  }
  for (CUgraphNode node : event->capture_tail) {
    if (!contains(object->capture_tail, node)) object->capture_tail.push_back(node);
  }
  Step step{Kind::stream_wait_event, lane_of(*capture, object), {}};
  step.event_ordinal = event->capture_ordinal;
  capture->graph->steps.push_back(std::move(step));
  return true;
}

}  // namespace maya

using maya::runtime_result;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::begin_capture(stream, nullptr, mode));
}
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t* dependencies,
                                          const cudaGraphEdgeData* /*edges*/, size_t num_dependencies,
                                          cudaStreamCaptureMode mode) {
  MAYA_COUNT_CALL();
  if (graph == nullptr) return runtime_result(cudaErrorInvalidValue);
  cudaError_t result = maya::begin_capture(stream, graph, mode);
  if (result == cudaSuccess) {
    maya::stream_object(stream)->capture_tail.assign(dependencies, dependencies + num_dependencies);
  }
  return runtime_result(result);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::end_capture(stream, graph));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  MAYA_COUNT_CALL();
  if (cudaError_t result = maya::check_stream(stream); result != cudaSuccess) return runtime_result(result);
  if (!maya::is_capturing(stream)) {
    *status = cudaStreamCaptureStatusNone;
  } else {
    bool is_valid = maya::stream_object(stream)->capture->is_valid;
    *status = is_valid ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated;
  }
  return cudaSuccess;
}
// CUDA 13 gave the names of these three to their versions with edge data, which CUDA 12 calls _v2 and _v3.
// Its headers map the names to older versions, so that the functions below need the spelling of each release.
#if CUDART_VERSION >= 13000
#define MAYA_WITH_EDGES(name, version) name
#else
#define MAYA_WITH_EDGES(name, version) name##version
#endif
cudaError_t MAYA_WITH_EDGES(cudaStreamGetCaptureInfo,
                            _v3)(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                 cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
                                 const cudaGraphEdgeData** edges, size_t* num_dependencies) {
  if (cudaError_t result = cudaStreamIsCapturing(stream, status); result != cudaSuccess) return result;
  if (*status != cudaStreamCaptureStatusActive) return cudaSuccess;
  CUstream_st* object = maya::stream_object(stream);
  if (id != nullptr) *id = object->capture->id;
  if (graph != nullptr) *graph = object->capture->graph;
  if (dependencies != nullptr) *dependencies = object->capture_tail.data();
  if (edges != nullptr) *edges = nullptr;  // all edges are plain ones
  if (num_dependencies != nullptr) *num_dependencies = object->capture_tail.size();
  return cudaSuccess;
}
cudaError_t MAYA_WITH_EDGES(cudaStreamUpdateCaptureDependencies,
                            _v2)(cudaStream_t stream, cudaGraphNode_t* dependencies,
                                 const cudaGraphEdgeData* /*edges*/, size_t num_dependencies,
                                 unsigned flags) {
  MAYA_COUNT_CALL();
  if (!maya::is_capturing(stream)) return runtime_result(cudaErrorIllegalState);
  auto& tail = maya::stream_object(stream)->capture_tail;
  if (flags == cudaStreamSetCaptureDependencies) tail.clear();
  tail.insert(tail.end(), dependencies, dependencies + num_dependencies);
  return cudaSuccess;
}
#if CUDART_VERSION < 13000
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                        unsigned long long* id, cudaGraph_t* graph,
                                        const cudaGraphNode_t** dependencies, size_t* num_dependencies) {
  return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, nullptr, num_dependencies);
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* dependencies,
                                                size_t num_dependencies, unsigned flags) {
  return cudaStreamUpdateCaptureDependencies_v2(stream, dependencies, nullptr, num_dependencies, flags);
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* dependencies,
                                         size_t* num_dependencies) {
  return cudaGraphNodeGetDependencies_v2(node, dependencies, nullptr, num_dependencies);
}
#endif
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  MAYA_COUNT_CALL();
  std::swap(*mode, maya::thread_mode);
  return cudaSuccess;
}

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned /*flags*/) {
  MAYA_COUNT_CALL();
  std::lock_guard lock(maya::captures().mutex);
  *graph = new CUgraph_st{++maya::captures().num_graphs};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  MAYA_COUNT_CALL();
  if (graph == nullptr) return runtime_result(cudaErrorInvalidValue);
  for (auto [object, count] : graph->user_objects) maya::release_user_object(object, count);
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* num_nodes) {
  MAYA_COUNT_CALL();
  if (nodes == nullptr) {
    *num_nodes = graph->nodes.size();
    return cudaSuccess;
  }
  *num_nodes = std::min(*num_nodes, graph->nodes.size());
  for (size_t i = 0; i < *num_nodes; ++i) nodes[i] = graph->nodes[i].get();
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  MAYA_COUNT_CALL();
  *type = static_cast<cudaGraphNodeType>(node->type);
  return cudaSuccess;
}
cudaError_t MAYA_WITH_EDGES(cudaGraphNodeGetDependencies,
                            _v2)(cudaGraphNode_t node, cudaGraphNode_t* dependencies,
                                 cudaGraphEdgeData* edges, size_t* num_dependencies) {
  MAYA_COUNT_CALL();
  if (dependencies == nullptr) {
    *num_dependencies = node->dependencies.size();
    return cudaSuccess;
  }
  *num_dependencies = std::min(*num_dependencies, node->dependencies.size());
  for (size_t i = 0; i < *num_dependencies; ++i) {
    dependencies[i] = node->dependencies[i];
    if (edges != nullptr) edges[i] = {};
  }
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::instantiate(executable, graph));
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long /*flags*/) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::instantiate(executable, graph));
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::launch(executable, stream));
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  MAYA_COUNT_CALL();
  if (executable == nullptr) return runtime_result(cudaErrorInvalidValue);
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* data, cudaHostFn_t destroy,
                                 unsigned references, unsigned /*flags*/) {
  MAYA_COUNT_CALL();
  *object = new CUuserObject_st{destroy, data, references};
  return cudaSuccess;
}
cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned count) {
  MAYA_COUNT_CALL();
  object->references += count;
  return cudaSuccess;
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count) {
  MAYA_COUNT_CALL();
  maya::release_user_object(object, count);
  return cudaSuccess;
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count,
                                      unsigned flags) {
  MAYA_COUNT_CALL();
  if ((flags & cudaGraphUserObjectMove) == 0) object->references += count;
  graph->user_objects.emplace_back(object, count);
  return cudaSuccess;
}
cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count) {
  MAYA_COUNT_CALL();
  std::erase(graph->user_objects, std::pair<CUuserObject, int64_t>(object, count));
  maya::release_user_object(object, count);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetGraphMemAttribute(int /*device*/, cudaGraphMemAttributeType /*attribute*/,
                                           void* value) {
  MAYA_COUNT_CALL();
  *static_cast<uint64_t*>(value) = 0;  // stream-ordered allocations of a capture are ordinary ones here
  return cudaSuccess;
}

}  // extern "C"
