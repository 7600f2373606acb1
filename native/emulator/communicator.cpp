#include "communicator.h"

#include <cstdlib>
#include <cstring>
#include <string>

namespace maya {

bool is_linked() {
  static const bool linked = [] {
    const char* mode = std::getenv("MAYA_MODE");
    if (mode != nullptr && *mode != '\0') return std::strcmp(mode, "linked") == 0;
    // A program run by hand: with other processes around but no mailbox, their answers are made up.
    const char* world_size = std::getenv("WORLD_SIZE");
    return std::getenv("MAYA_EXCHANGE") != nullptr || world_size == nullptr || std::atoi(world_size) == 1;
  }();
  return linked;
}

int global_rank_of(const ncclComm& comm, int rank) {
  if (comm.start == nullptr || !exchange::has_arrived(comm.start, rank)) return -1;
  return *static_cast<const int32_t*>(exchange::payload(comm.start, rank));
}

std::string member_name(const ncclComm& comm, int rank) {
  const int global_rank = global_rank_of(comm, rank);
  if (global_rank < 0) return "communicator rank " + std::to_string(rank);
  return "rank " + std::to_string(global_rank);
}

}  // namespace maya
