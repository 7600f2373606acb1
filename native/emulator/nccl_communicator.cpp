// NCCL: making, splitting and closing communicators.
//
// A communicator's unique id is the FNV-1a hash of the ids passed to its initialisation, so that all ranks,
// also ones captured apart, derive the same number. For a split it is the hash of three int64: the unique id
// of the parent, how many splits (and shrinks) the parent had before, and the colour.
#include <sys/random.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../trace/hash.h"
#include "allocations.h"
#include "communicator.h"
#include "device.h"
#include "nccl_group.h"
#include "payloads.h"
#include "recorder.h"
#include "recorder_state.h"

namespace maya {
namespace {

using exchange::Purpose;
using exchange::Signature;

constexpr int kShrinkColor = -2;  // in the trace and the hash; no colour of a program, those are not negative

// Where a communicator comes from.
struct Origin {
  int64_t parent = trace::kMissing;  // id in the trace
  int64_t color = trace::kMissing;
  int64_t split_index = trace::kMissing;
};

bool is_blocking(const ncclConfig_t* config) { return config == nullptr || config->blocking != 0; }

// Null when the device has no room for the buffers, which NCCL reports as a failure of CUDA.
ncclComm* make_communicator(int64_t unique_id, int num_ranks, int rank, const Origin& origin) {
  static int64_t num_communicators = 0;  // guarded by the open Call
  auto* comm =
      new ncclComm{.unique_id = unique_id, .num_ranks = num_ranks, .rank = rank, .device = current_device()};
  if (!nccl::take_setup_bytes(*comm)) {
    delete comm;
    return nullptr;
  }
  Call call;
  comm->id = num_communicators++;
  const int64_t fields[] = {comm->id,      unique_id,    num_ranks,         rank,
                            origin.parent, origin.color, origin.split_index};
  call.record(Kind::comm_init, fields, origin.parent == trace::kMissing ? 4 : 7);
  return comm;
}

// Tells the other members that this rank is there.
void enter(ncclComm& comm) {
  if (!is_linked()) return;
  const exchange::Key key{.unique_id = comm.unique_id, .number = 0, .purpose = Purpose::init};
  const Signature signature{.op = -1, .dtype = -1, .reduce_op = -1, .root = -1, .count = comm.num_ranks};
  comm.start = join(comm, key, signature, comm.num_ranks);
  if (exchange::has_arrived(comm.start, comm.rank)) {
    exchange::fail("rank " + std::to_string(exchange::global_rank()) + " and " +
                   member_name(comm, comm.rank) + " both initialise communicator rank " +
                   std::to_string(comm.rank) + " of " + std::to_string(comm.num_ranks) +
                   " with the same unique id; each rank has to appear once.");
  }
  const int32_t rank = exchange::global_rank();
  exchange::arrive(comm.start, comm.rank, &rank, sizeof rank);
}

ncclResult_t initialise(ncclComm_t* new_comm, int num_ranks, int rank, uint64_t unique_id,
                        const ncclConfig_t* config) {
  if (new_comm == nullptr || num_ranks < 1 || rank < 0 || rank >= num_ranks) return ncclInvalidArgument;
  *new_comm = nullptr;
  ncclComm* comm = make_communicator(static_cast<int64_t>(unique_id), num_ranks, rank, {});
  if (comm == nullptr) return ncclUnhandledCudaError;
  enter(*comm);
  *new_comm = comm;
  if (!is_linked() || !is_blocking(config)) return ncclSuccess;
  return nccl::wait_at_group_end([comm] {
    wait_for_members(*comm, *comm->start, "ncclCommInitRank");
    return ncclSuccess;
  });
}

int64_t child_unique_id(const ncclComm& parent, int64_t split_index, int64_t color) {
  const int64_t parts[] = {parent.unique_id, split_index, color};
  return static_cast<int64_t>(fnv1a(parts, sizeof parts));
}

ncclComm* make_child(const ncclComm& parent, int64_t split_index, int color, int num_ranks, int rank) {
  ncclComm* child = make_communicator(child_unique_id(parent, split_index, color), num_ranks, rank,
                                      {.parent = parent.id, .color = color, .split_index = split_index});
  if (child != nullptr) enter(*child);
  return child;
}

struct AnnouncedSplit {
  int num_ranks, rank;
};
std::mutex announced_mutex;
std::unordered_map<int, AnnouncedSplit> announced_splits;  // by colour

AnnouncedSplit announced_or_all(const ncclComm& parent, int color) {
  std::lock_guard lock(announced_mutex);
  const auto announced = announced_splits.find(color);
  return announced == announced_splits.end() ? AnnouncedSplit{parent.num_ranks, parent.rank}
                                             : announced->second;
}

struct SplitWish {
  int32_t color, key;
};

// The child that the wishes of all members of the parent lead to.
AnnouncedSplit resolve_split(const ncclComm& parent, const exchange::Rendezvous& rendezvous, int color) {
  std::vector<std::pair<int32_t, int>> members;  // key, rank in the parent
  for (int rank = 0; rank < parent.num_ranks; ++rank) {
    const auto& wish = *static_cast<const SplitWish*>(exchange::payload(&rendezvous, rank));
    if (wish.color == color) members.emplace_back(wish.key, rank);
  }
  std::sort(members.begin(), members.end());
  const auto self = std::find_if(members.begin(), members.end(),
                                 [&](const auto& member) { return member.second == parent.rank; });
  return {static_cast<int>(members.size()), static_cast<int>(self - members.begin())};
}

void close(ncclComm* comm) {
  {
    Call call;
    call.record(Kind::comm_destroy, {comm->id});
    nccl::give_bytes(*comm);
  }
  delete comm;
}

}  // namespace
}  // namespace maya

using namespace maya;

extern "C" {

// Announces the size of the next child communicator of a colour and this rank's place in it, which a rank
// that runs alone cannot learn from the other members.
void maya_announce_split(int color, int num_ranks, int rank) {
  std::lock_guard lock(announced_mutex);
  announced_splits[color] = {num_ranks, rank};
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* unique_id) {
  MAYA_COUNT_CALL();
  if (unique_id == nullptr) return ncclInvalidArgument;
  return getrandom(unique_id, sizeof *unique_id, 0) == sizeof *unique_id ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int num_ranks, ncclUniqueId unique_id, int rank,
                                    ncclConfig_t* config) {
  MAYA_COUNT_CALL();
  return initialise(comm, num_ranks, rank, fnv1a(&unique_id, sizeof unique_id), config);
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int num_ranks, ncclUniqueId unique_id, int rank) {
  MAYA_COUNT_CALL();
  return initialise(comm, num_ranks, rank, fnv1a(&unique_id, sizeof unique_id), nullptr);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int num_ranks, int rank, int num_ids,
                                      ncclUniqueId* unique_ids, ncclConfig_t* config) {
  MAYA_COUNT_CALL();
  if (unique_ids == nullptr || num_ids < 1) return ncclInvalidArgument;
  return initialise(comm, num_ranks, rank,
                    fnv1a(unique_ids, sizeof *unique_ids * static_cast<size_t>(num_ids)), config);
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int num_devices, const int* devices) {
  MAYA_COUNT_CALL();
  if (comms == nullptr || num_devices < 1 || num_devices > maya::num_devices()) return ncclInvalidArgument;
  ncclUniqueId unique_id;
  ncclResult_t result = ncclGetUniqueId(&unique_id);
  if (result != ncclSuccess) return result;
  const int device_before = current_device();
  ncclGroupStart();
  for (int i = 0; i < num_devices; ++i) {
    set_current_device(devices == nullptr ? i : devices[i]);
    const ncclResult_t made =
        initialise(&comms[i], num_devices, i, fnv1a(&unique_id, sizeof unique_id), nullptr);
    if (result == ncclSuccess) result = made;
  }
  set_current_device(device_before);
  const ncclResult_t joined = ncclGroupEnd();
  return result == ncclSuccess ? joined : result;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* new_comm, ncclConfig_t*) {
  MAYA_COUNT_CALL();
  if (parent == nullptr || new_comm == nullptr || color < NCCL_SPLIT_NOCOLOR) return ncclInvalidArgument;
  const int64_t split_index = parent->num_splits++;
  *new_comm = nullptr;
  if (!is_linked()) {
    if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
    const AnnouncedSplit split = announced_or_all(*parent, color);
    *new_comm = make_child(*parent, split_index, color, split.num_ranks, split.rank);
    return *new_comm == nullptr ? ncclUnhandledCudaError : ncclSuccess;
  }
  const Signature signature{.op = -1, .dtype = -1, .reduce_op = -1, .root = -1, .count = parent->num_ranks};
  exchange::Rendezvous* rendezvous =
      join(*parent, {.unique_id = parent->unique_id, .number = split_index, .purpose = Purpose::split},
           signature, parent->num_ranks);
  const SplitWish wish{color, key};
  exchange::arrive(rendezvous, parent->rank, &wish, sizeof wish);
  return nccl::wait_at_group_end([=] {
    wait_for_members(*parent, *rendezvous, "ncclCommSplit");
    if (color != NCCL_SPLIT_NOCOLOR) {
      const AnnouncedSplit split = resolve_split(*parent, *rendezvous, color);
      *new_comm = make_child(*parent, split_index, color, split.num_ranks, split.rank);
    }
    exchange::finish_reading(rendezvous, parent->num_ranks);
    const bool lacks_memory = color != NCCL_SPLIT_NOCOLOR && *new_comm == nullptr;
    return lacks_memory ? ncclUnhandledCudaError : ncclSuccess;
  });
}

ncclResult_t ncclCommShrink(ncclComm_t parent, int* excluded_ranks, int num_excluded, ncclComm_t* new_comm,
                            ncclConfig_t* config, int) {
  MAYA_COUNT_CALL();
  if (parent == nullptr || new_comm == nullptr || num_excluded < 1) return ncclInvalidArgument;
  int rank = parent->rank;
  for (int i = 0; i < num_excluded; ++i) {
    if (excluded_ranks[i] == parent->rank) return ncclInvalidArgument;  // only those that stay call it
    if (excluded_ranks[i] < parent->rank) --rank;
  }
  ncclComm* child =
      make_child(*parent, parent->num_splits++, kShrinkColor, parent->num_ranks - num_excluded, rank);
  *new_comm = child;
  if (child == nullptr) return ncclUnhandledCudaError;
  if (!is_linked() || !is_blocking(config)) return ncclSuccess;
  return nccl::wait_at_group_end([child] {
    wait_for_members(*child, *child->start, "ncclCommShrink");
    return ncclSuccess;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  MAYA_COUNT_CALL();
  if (comm == nullptr) return ncclInvalidArgument;
  UntimedSection waiting;
  complete_pending_collectives(*comm);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  MAYA_COUNT_CALL();
  if (comm == nullptr) return ncclSuccess;
  {
    UntimedSection waiting;
    complete_pending_collectives(*comm);
  }
  close(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  MAYA_COUNT_CALL();
  if (comm == nullptr) return ncclSuccess;
  forget_pending_collectives(*comm);
  close(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  MAYA_COUNT_CALL();
  if (comm == nullptr || result == nullptr) return ncclInvalidArgument;
  *result = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  MAYA_COUNT_CALL();
  if (comm == nullptr || count == nullptr) return ncclInvalidArgument;
  *count = comm->num_ranks;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  MAYA_COUNT_CALL();
  if (comm == nullptr || device == nullptr) return ncclInvalidArgument;
  *device = comm->device;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  MAYA_COUNT_CALL();
  if (comm == nullptr || rank == nullptr) return ncclInvalidArgument;
  *rank = comm->rank;
  return ncclSuccess;
}

}  // extern "C"
