// What each participant of a collective gives and gets.
#pragma once

#include <cstddef>
#include <vector>

#include "known_bytes.h"
#include "payloads.h"

namespace maya {

struct PayloadPlan {
  size_t send_bytes;     // this rank's contribution, 0: none
  size_t receive_bytes;  // this rank's output, 0: none
  // The largest contribution and the largest output of any rank: what decides, alike on all ranks, whether
  // data are moved.
  size_t largest_contribution_bytes;
  size_t largest_output_bytes;
  bool is_integer;
  int source;       // slot whose contribution the output needs; -1: all
  int num_readers;  // ranks that have an output

  bool moves_data() const;
};
PayloadPlan plan_payload(const CollectiveCall& call);

inline bool is_message(trace::CollectiveOp op) {
  return op == trace::CollectiveOp::send || op == trace::CollectiveOp::recv;
}

// Whether [pointer, pointer + bytes) is memory of an emulated device or pinned host memory.
bool is_accessible(const void* pointer, size_t bytes);

// The contribution of this rank: its send buffer, pre-multiplied where the operator says so; zeros where the
// buffer is not accessible, nothing where it is above kPayloadLimitBytes and not known.
struct Contribution {
  std::vector<char> data;
  Origin origin;
};
Contribution contribution(const CollectiveCall& call, size_t bytes);

// The operator with which contributions are reduced.
ncclRedOp_t builtin_operator(int reduce_op);

}  // namespace maya
