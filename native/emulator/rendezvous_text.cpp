#include "rendezvous_text.h"

#include "../trace/format.h"
#include "call_site.h"
#include "reduce.h"

namespace maya::text {
namespace {

using exchange::Purpose;
using exchange::Signature;
using trace::CollectiveOp;

const char* op_name(int32_t op) {
  switch (static_cast<CollectiveOp>(op)) {
    case CollectiveOp::all_reduce:
      return "all_reduce";
    case CollectiveOp::broadcast:
      return "broadcast";
    case CollectiveOp::reduce:
      return "reduce";
    case CollectiveOp::all_gather:
      return "all_gather";
    case CollectiveOp::reduce_scatter:
      return "reduce_scatter";
    case CollectiveOp::all_to_all:
      return "all_to_all";
    case CollectiveOp::gather:
      return "gather";
    case CollectiveOp::scatter:
      return "scatter";
    case CollectiveOp::send:
      return "message";
    case CollectiveOp::recv:
      return "message";
  }
  return "?";
}

const char* dtype_name(int32_t dtype) {
  static constexpr const char* kNames[ncclNumTypes] = {"int8",    "uint8",    "int32",      "uint32",
                                                       "int64",   "uint64",   "float16",    "float32",
                                                       "float64", "bfloat16", "float8e4m3", "float8e5m2"};
  return kNames[dtype];
}

const char* reduce_op_name(int32_t op) {
  static constexpr const char* kNames[] = {"sum", "prod", "max", "min", "avg", "pre-multiplied sum"};
  return kNames[op];
}

std::string name(const Signature& signature) {
  if (signature.op < 0) return "the creation of a communicator";
  std::string text = std::string(op_name(signature.op)) + " of " + std::to_string(signature.count) + " x " +
                     dtype_name(signature.dtype);
  if (signature.reduce_op >= 0) text += std::string(" (") + reduce_op_name(signature.reduce_op) + ")";
  if (signature.root >= 0) text += " with root " + std::to_string(signature.root);
  return text;
}

std::string communicator_text(const ncclComm& comm) {
  return "communicator " + std::to_string(comm.id) + " (" + std::to_string(comm.num_ranks) + " ranks)";
}

}  // namespace

bool agree(const Signature& left, const Signature& right) {
  if (left.op != right.op || left.reduce_op != right.reduce_op || left.root != right.root) return false;
  if (left.op < 0) return left.count == right.count;
  if (left.reduce_op >= 0) return left.count == right.count && left.dtype == right.dtype;
  auto bytes = [](const Signature& signature) {
    return static_cast<uint64_t>(signature.count) *
           element_bytes(static_cast<ncclDataType_t>(signature.dtype));
  };
  return bytes(left) == bytes(right);
}

std::string describe(const ncclComm& comm, const exchange::Key& key, const Signature& signature) {
  std::string text = name(signature) + ", number " + std::to_string(key.number);
  if (key.purpose == Purpose::message) {
    return text + " from " + member_name(comm, key.source) + " to " + member_name(comm, key.destination) +
           " on " + communicator_text(comm);
  }
  return text + " on " + communicator_text(comm);
}

std::string describe(const ncclComm& comm, const exchange::Rendezvous& rendezvous) {
  const std::string text = describe(comm, rendezvous.key, rendezvous.signature);
  return rendezvous.first_rank == exchange::global_rank() ? text + at_call_site(rendezvous.first_site) : text;
}

std::string missing_members(const ncclComm& comm, const std::string& action,
                            const std::vector<int>& missing) {
  constexpr size_t kMaxNames = 16;
  std::string names, newest_calls;
  for (size_t i = 0; i < missing.size() && i < kMaxNames; ++i) {
    names += (i > 0 ? ", " : "") + member_name(comm, missing[i]);
    const std::string newest = exchange::newest_call(global_rank_of(comm, missing[i]));
    if (!newest.empty())
      newest_calls += " The newest call of " + member_name(comm, missing[i]) + " is " + newest + ".";
  }
  if (missing.size() > kMaxNames) names += " and " + std::to_string(missing.size() - kMaxNames) + " more";
  return "rank " + std::to_string(exchange::global_rank()) + " waits in " + action + " for " + names +
         ", which did "
         "not get there within " +
         std::to_string(static_cast<int64_t>(exchange::Wait::timeout_s())) + " s." + newest_calls +
         " On GPUs this program would hang: look for a rank that left early or took another branch. If "
         "the ranks "
         "are just slow, raise capture.timeout_s.";
}

std::string disagreement(const ncclComm& comm, const exchange::Rendezvous& rendezvous, const Signature& own,
                         const std::string& own_site) {
  const std::string own_rank = "rank " + std::to_string(exchange::global_rank());
  const std::string first_rank = "rank " + std::to_string(rendezvous.first_rank);
  const std::string ranks = own_rank + " and " + first_rank;
  if (rendezvous.key.purpose == Purpose::init || rendezvous.key.purpose == Purpose::split) {
    return ranks + " disagree on the size of a communicator: " + std::to_string(own.count) + " and " +
           std::to_string(rendezvous.signature.count) + " ranks.";
  }
  std::string where = "number " + std::to_string(rendezvous.key.number) + " on " + communicator_text(comm);
  const bool is_message = rendezvous.key.purpose == Purpose::message;
  return ranks + " disagree on " + (is_message ? "the message between them, " : "a collective, ") + where +
         ": " + own_rank + " calls " + name(own) + at_call_site(own_site) + ", " + first_rank + " calls " +
         name(rendezvous.signature) + at_call_site(rendezvous.first_site) +
         ". On GPUs this program would hang or compute garbage: all ranks of a communicator have to make the "
         "same "
         "calls in the same order.";
}

}  // namespace maya::text
