// NCCL communicators of this process.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "exchange.h"
#include "nccl_api.h"
#include "nccl_memory.h"

struct ncclComm {
  int64_t id;         // dense, in the trace
  int64_t unique_id;  // the same on all ranks
  int num_ranks;
  int rank;
  int device;
  int64_t num_launches = 0;  // device operations so far: the next sequence number
  int64_t num_splits = 0;
  int64_t last_launch = -1;  // launch (of this process) that the communicator took part in last

  // Rendezvous so far. Ranks of one communicator agree on these numbers but not on launches, since a
  // message between two ranks is no launch on the others.
  int64_t num_collectives = 0;
  std::unordered_map<int, int64_t> num_sent{}, num_received{};  // by peer

  maya::nccl::Connections connections{};

  std::vector<double> pre_mul_factors{};        // of operator ncclNumOps + i
  maya::exchange::Rendezvous* start = nullptr;  // with the global rank of each member; linked mode only
};

namespace maya {

// Global rank of a member, -1 where it is not known (yet).
int global_rank_of(const ncclComm& comm, int rank);

// "rank 5" where the global rank of the member is known, else "communicator rank 1".
std::string member_name(const ncclComm& comm, int rank);

// Whether the ranks of other processes are there (MAYA_MODE=linked) or are answered for (solo).
bool is_linked();

}  // namespace maya
