// NCCL: groups, collectives and point-to-point calls, reduction operators, buffers, version and errors.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "communicator.h"
#include "device.h"
#include "nccl_group.h"
#include "nccl_memory.h"
#include "payloads.h"
#include "recorder.h"
#include "recorder_state.h"
#include "reduce.h"
#include "runtime.h"

namespace maya::nccl {
namespace {

struct Group {
  int depth = 0;
  std::vector<CollectiveCall> calls;
  std::vector<std::function<ncclResult_t()>> waiting_steps;
};
thread_local Group group;
thread_local std::string last_error;

// Records calls that were made together and starts their payloads. Calls of one communicator in one group
// are one device operation with one sequence number (NCCL src/enqueue.cc, ncclLaunchPrepare).
// Fails, as NCCL does, where the device has no room for the buffers of a new connection.
ncclResult_t launch_together(const std::vector<CollectiveCall>& calls, bool is_group) {
  static std::atomic<int64_t> num_launches{0}, num_groups{0};
  if (calls.empty()) return ncclSuccess;
  for (const CollectiveCall& call : calls) {
    const auto bytes =
        static_cast<int64_t>(call.count * element_bytes(static_cast<ncclDataType_t>(call.dtype)));
    if (!take_connection_bytes(*call.comm, call.op, call.peer, bytes)) return ncclUnhandledCudaError;
  }
  {
    Call record;
    const int64_t launch = num_launches++;
    const int64_t group_id = is_group ? ++num_groups : 0;
    for (const CollectiveCall& call : calls) {
      ncclComm& comm = *call.comm;
      if (comm.last_launch != launch) {
        comm.last_launch = launch;
        ++comm.num_launches;
      }
      record.record(Kind::collective, {stream_id(call.stream), comm.id, static_cast<int64_t>(call.op),
                                       static_cast<int64_t>(call.count), call.dtype,
                                       std::min<int64_t>(call.reduce_op, ncclNumOps), call.peer,
                                       comm.num_launches - 1, group_id});
    }
  }
  UntimedSection moving;
  run_or_capture(calls.front().stream, [calls] { move_payloads(calls); });
  return ncclSuccess;
}

}  // namespace

ncclResult_t launch(const CollectiveCall& call) {
  if (group.depth == 0) return launch_together({call}, /*is_group=*/false);
  group.calls.push_back(call);
  return ncclSuccess;
}

ncclResult_t wait_at_group_end(std::function<ncclResult_t()> step) {
  if (group.depth > 0) {
    group.waiting_steps.push_back(std::move(step));
    return ncclSuccess;
  }
  UntimedSection waiting;
  return step();
}

void set_last_error(std::string text) { last_error = std::move(text); }

namespace {

ncclResult_t start(const CollectiveCall& call) {
  const ncclComm* comm = call.comm;
  if (comm == nullptr || call.dtype < 0 || call.dtype >= ncclNumTypes) return ncclInvalidArgument;
  const int num_operators = ncclNumOps + static_cast<int>(comm->pre_mul_factors.size());
  if (call.peer < -1 || call.peer >= comm->num_ranks || call.reduce_op >= num_operators)
    return ncclInvalidArgument;
  const bool is_message = call.op == trace::CollectiveOp::send || call.op == trace::CollectiveOp::recv;
  if (call.count == 0 && !is_message) return ncclSuccess;  // as NCCL: empty collectives are discarded
  return launch(call);
}

bool is_rooted_at_rank(int root, ncclComm_t comm) {
  return comm != nullptr && root >= 0 && root < comm->num_ranks;
}

}  // namespace
}  // namespace maya::nccl

using namespace maya;
using trace::CollectiveOp;

extern "C" {

// For the start-up hook, before it reads device memory past the runtime.
void maya_complete_collectives(const void* address, size_t bytes) {
  complete_pending_collectives(address, bytes);
}

ncclResult_t ncclGroupStart() {
  MAYA_COUNT_CALL();
  ++nccl::group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  MAYA_COUNT_CALL();
  nccl::Group& group = nccl::group;
  if (group.depth == 0) return ncclInvalidUsage;
  if (--group.depth > 0) return ncclSuccess;
  const auto steps = std::exchange(group.waiting_steps, {});
  const auto calls = std::exchange(group.calls, {});
  ncclResult_t result = ncclSuccess;
  if (!steps.empty()) {
    UntimedSection waiting;
    for (const auto& step : steps) {
      if (const ncclResult_t made = step(); result == ncclSuccess) result = made;
    }
  }
  const ncclResult_t launched = nccl::launch_together(calls, /*is_group=*/true);
  return result == ncclSuccess ? launched : result;
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return nccl::start({comm, CollectiveOp::all_reduce, send, receive, count, dtype, op, -1, stream});
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t dtype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  if (!nccl::is_rooted_at_rank(root, comm)) return ncclInvalidArgument;
  return nccl::start({comm, CollectiveOp::broadcast, send, receive, count, dtype, -1, root, stream});
}

ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  MAYA_COUNT_CALL();
  if (!nccl::is_rooted_at_rank(root, comm)) return ncclInvalidArgument;
  return nccl::start({comm, CollectiveOp::broadcast, buffer, buffer, count, dtype, -1, root, stream});
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t dtype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  if (!nccl::is_rooted_at_rank(root, comm)) return ncclInvalidArgument;
  return nccl::start({comm, CollectiveOp::reduce, send, receive, count, dtype, op, root, stream});
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                           ncclComm_t comm, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return nccl::start({comm, CollectiveOp::all_gather, send, receive, count, dtype, -1, -1, stream});
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return nccl::start({comm, CollectiveOp::reduce_scatter, send, receive, count, dtype, op, -1, stream});
}

ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count, ncclDataType_t dtype,
                          ncclComm_t comm, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return nccl::start({comm, CollectiveOp::all_to_all, send, receive, count, dtype, -1, -1, stream});
}

ncclResult_t ncclGather(const void* send, void* receive, size_t count, ncclDataType_t dtype, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  if (!nccl::is_rooted_at_rank(root, comm)) return ncclInvalidArgument;
  return nccl::start({comm, CollectiveOp::gather, send, receive, count, dtype, -1, root, stream});
}

ncclResult_t ncclScatter(const void* send, void* receive, size_t count, ncclDataType_t dtype, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  if (!nccl::is_rooted_at_rank(root, comm)) return ncclInvalidArgument;
  return nccl::start({comm, CollectiveOp::scatter, send, receive, count, dtype, -1, root, stream});
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  MAYA_COUNT_CALL();
  if (!nccl::is_rooted_at_rank(peer, comm)) return ncclInvalidArgument;
  return nccl::start({comm, CollectiveOp::send, send, nullptr, count, dtype, -1, peer, stream});
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  MAYA_COUNT_CALL();
  if (!nccl::is_rooted_at_rank(peer, comm)) return ncclInvalidArgument;
  return nccl::start({comm, CollectiveOp::recv, nullptr, receive, count, dtype, -1, peer, stream});
}

// Operators live as long as their communicator: ones that were destroyed may still be used by pending calls.
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t dtype,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  MAYA_COUNT_CALL();
  if (op == nullptr || scalar == nullptr || comm == nullptr) return ncclInvalidArgument;
  if (residence == ncclScalarDevice) {
    UntimedSection waiting;
    complete_pending_collectives(scalar, element_bytes(dtype));
  }
  *op = static_cast<ncclRedOp_t>(ncclNumOps + comm->pre_mul_factors.size());
  comm->pre_mul_factors.push_back(load_scalar(dtype, scalar));
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  MAYA_COUNT_CALL();
  return op >= ncclNumOps && comm != nullptr ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
  MAYA_COUNT_CALL();
  return cudaMalloc(pointer, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* pointer) {
  MAYA_COUNT_CALL();
  return cudaFree(pointer) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

// Registration changes the algorithm of later calls, not their results; the handle is the buffer itself.
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buffer, size_t, void** handle) {
  MAYA_COUNT_CALL();
  if (comm == nullptr || handle == nullptr) return ncclInvalidArgument;
  *handle = buffer;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void*) {
  MAYA_COUNT_CALL();
  return comm == nullptr ? ncclInvalidArgument : ncclSuccess;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t, ncclWindow_t* window, int) {
  MAYA_COUNT_CALL();
  if (comm == nullptr || window == nullptr) return ncclInvalidArgument;
  *window = reinterpret_cast<ncclWindow_t>(buffer);
  return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t) {
  MAYA_COUNT_CALL();
  return comm == nullptr ? ncclInvalidArgument : ncclSuccess;
}

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void** pointer) {
  MAYA_COUNT_CALL();
  if (comm == nullptr || pointer == nullptr) return ncclInvalidArgument;
  *pointer = window;
  return ncclSuccess;
}

ncclResult_t ncclGetVersion(int* version) {
  MAYA_COUNT_CALL();
  if (version == nullptr) return ncclInvalidArgument;
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  MAYA_COUNT_CALL();
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    case 8:  // ncclTimeout of NCCL 2.30
      return "NCCL operation timed out";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  MAYA_COUNT_CALL();
  return nccl::last_error.c_str();
}

}  // extern "C"
