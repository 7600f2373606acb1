// Device memory that NCCL takes for a communicator: its structures at once, buffers of connections when
// they are first used.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "../trace/format.h"
#include "nccl_api.h"

struct ncclComm;

namespace maya::nccl {

// What a communicator is connected for.
struct Connections {
  bool ring = false, tree = false, nvls = false;
  bool network_send = false, network_receive = false;
  std::unordered_set<int> sends{}, receives{};  // peers in the node
  int64_t device_bytes = 0;                     // taken by the communicator so far
};

// Takes the memory of a new communicator; false, with an out_of_memory record, where it does not fit.
bool take_setup_bytes(ncclComm& comm);

// Takes the memory of the connections that a call needs and that the communicator does not have yet. `bytes`
// is the size of the buffer of a reduction.
bool take_connection_bytes(ncclComm& comm, trace::CollectiveOp op, int peer, int64_t bytes);

// Gives back all that a communicator has taken.
void give_bytes(ncclComm& comm);

}  // namespace maya::nccl
