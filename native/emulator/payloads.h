// The data that small collectives move. Large ones move nothing and touch no page.
//
// Linked: a rank leaves its contribution in the mailbox when it makes the call and goes on; its outputs are
// written once all peers have arrived, at the latest when somebody may look at them (collectives.h).
// Solo: the outputs are written at once, as if all absent ranks held the same data as this one.
#pragma once

#include <span>

#include "../trace/format.h"
#include "collectives.h"
#include "communicator.h"

namespace maya {

struct CollectiveCall {
  ncclComm* comm;
  trace::CollectiveOp op;
  const void* send;
  void* receive;
  size_t count;  // of elements, as passed to NCCL
  ncclDataType_t dtype;
  int reduce_op;  // ncclRedOp_t; -1: none
  int peer;       // root, source or destination; -1: none
  cudaStream_t stream;
};

// Starts the data movement of calls that were launched together. Does not wait for peers.
void move_payloads(std::span<const CollectiveCall> calls);

// Waits until the pending calls of a communicator are done, or forgets them.
void complete_pending_collectives(const ncclComm& comm);
void forget_pending_collectives(const ncclComm& comm);

// Waits until all `rendezvous` slots have arrived; contributions of this process go on meanwhile. `action`
// says in a diagnosis what this rank is doing.
void wait_for_members(const ncclComm& comm, const exchange::Rendezvous& rendezvous, const char* action);

// Joins a rendezvous: creates or finds it, and ends the process with a diagnosis if the others disagree.
exchange::Rendezvous* join(const ncclComm& comm, const exchange::Key& key,
                           const exchange::Signature& signature, int num_slots);

}  // namespace maya
