#include "payload_plan.h"

#include <cstdint>
#include <cstring>
#include <utility>

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
  const size_t limit_bytes = is_integer ? kIntegerPayloadLimitBytes : kPayloadLimitBytes;
  return largest_contribution_bytes <= limit_bytes && largest_output_bytes <= kOutputLimitBytes;
}

PayloadPlan plan_payload(const CollectiveCall& call) {
  using enum trace::CollectiveOp;
  const int num_ranks = call.comm->num_ranks;
  const size_t one = call.count * element_bytes(call.dtype);
  const size_t all = one * static_cast<size_t>(num_ranks);
  const bool is_root = call.peer == call.comm->rank;
  const bool is_integer = is_integer_type(call.dtype);
  switch (call.op) {
    case all_reduce:
      return {one, one, one, one, is_integer, -1, num_ranks};
    case broadcast:
      return {is_root ? one : 0, one, one, one, is_integer, call.peer, num_ranks};
    case reduce:
      return {one, is_root ? one : 0, one, one, is_integer, -1, 1};
    case all_gather:
      return {one, all, one, all, is_integer, -1, num_ranks};
    case reduce_scatter:
      return {all, one, all, one, is_integer, -1, num_ranks};
    case all_to_all:
      return {all, all, all, all, is_integer, -1, num_ranks};
    case gather:
      return {one, is_root ? all : 0, one, all, is_integer, -1, 1};
    case scatter:
      return {is_root ? all : 0, one, all, one, is_integer, call.peer, num_ranks};
    case send:
      return {one, 0, one, one, is_integer, -1, 1};
    case recv:
      return {0, one, one, one, is_integer, 0, 1};
  }
  return {};
}

bool is_accessible(const void* pointer, size_t bytes) {
  auto address = reinterpret_cast<uintptr_t>(pointer);
  uintptr_t end;
  if (__builtin_add_overflow(address, bytes, &end)) return false;
  while (address < end) {  // expandable segments: adjacent allocations
    const Allocation allocation = find_allocation(reinterpret_cast<const void*>(address));
    if (allocation.space == Space::unknown) return false;
    address = allocation.address + allocation.bytes;
  }
  return true;
}

Contribution contribution(const CollectiveCall& call, size_t bytes) {
  if (!is_accessible(call.send, bytes)) return {std::vector<char>(bytes), Origin::kernel};
  const Origin origin = origin_of_bytes(call.send, bytes);
  if (origin == Origin::kernel && bytes > kPayloadLimitBytes) return {{}, origin};
  std::vector<char> data(bytes);
  if (call.reduce_op >= ncclNumOps) {
    const double factor = call.comm->pre_mul_factors[call.reduce_op - ncclNumOps];
    scale(call.dtype, bytes / element_bytes(call.dtype), call.send, factor, data.data());
  } else {
    std::memcpy(data.data(), call.send, bytes);
  }
  return {std::move(data), origin};
}

ncclRedOp_t builtin_operator(int reduce_op) {
  return reduce_op >= ncclNumOps ? ncclSum : static_cast<ncclRedOp_t>(reduce_op);
}

}  // namespace maya
