#include "payload_plan.h"

#include <cstdint>
#include <cstring>

#include "device.h"
#include "known_bytes.h"
#include "reduce.h"

namespace maya {
namespace {

// Outputs above this are left alone even if each contribution is small, as those of gathers of small shards
// among a thousand ranks: nobody reads them on the host, and their pages would have to be filled.
constexpr size_t kOutputLimitBytes = 16 << 20;

}  // namespace

bool PayloadPlan::moves_data() const {
  return largest_contribution_bytes <= kPayloadLimitBytes && largest_output_bytes <= kOutputLimitBytes;
}

PayloadPlan plan_payload(const CollectiveCall& call) {
  using enum trace::CollectiveOp;
  const int num_ranks = call.comm->num_ranks;
  const size_t one = call.count * element_bytes(call.dtype);
  const size_t all = one * static_cast<size_t>(num_ranks);
  const bool is_root = call.peer == call.comm->rank;
  switch (call.op) {
    case all_reduce:
      return {one, one, one, one, -1, num_ranks};
    case broadcast:
      return {is_root ? one : 0, one, one, one, call.peer, num_ranks};
    case reduce:
      return {one, is_root ? one : 0, one, one, -1, 1};
    case all_gather:
      return {one, all, one, all, -1, num_ranks};
    case reduce_scatter:
      return {all, one, all, one, -1, num_ranks};
    case all_to_all:
      return {all, all, all, all, -1, num_ranks};
    case gather:
      return {one, is_root ? all : 0, one, all, -1, 1};
    case scatter:
      return {is_root ? all : 0, one, all, one, call.peer, num_ranks};
    case send:
      return {one, 0, one, one, -1, 1};
    case recv:
      return {0, one, one, one, 0, 1};
  }
  return {};
}

bool is_accessible(const void* pointer, size_t bytes) {
  auto address = reinterpret_cast<uintptr_t>(pointer);
  const uintptr_t end = address + bytes;
  while (address < end) {  // expandable segments: adjacent allocations
    const Allocation allocation = find_allocation(reinterpret_cast<const void*>(address));
    if (allocation.space == Space::unknown) return false;
    address = allocation.address + allocation.bytes;
  }
  return true;
}

std::vector<char> contribution(const CollectiveCall& call, size_t bytes) {
  std::vector<char> data(bytes);
  if (!is_accessible(call.send, bytes)) return data;
  settle_known_bytes(call.send, bytes);
  if (call.reduce_op >= ncclNumOps) {
    const double factor = call.comm->pre_mul_factors[call.reduce_op - ncclNumOps];
    scale(call.dtype, bytes / element_bytes(call.dtype), call.send, factor, data.data());
  } else {
    std::memcpy(data.data(), call.send, bytes);
  }
  return data;
}

ncclRedOp_t builtin_operator(int reduce_op) {
  return reduce_op >= ncclNumOps ? ncclSum : static_cast<ncclRedOp_t>(reduce_op);
}

}  // namespace maya
