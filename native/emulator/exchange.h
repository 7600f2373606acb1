// The shared mailbox in which linked ranks leave the payloads of small collectives for each other.
//
// One sparse file, mapped by all ranks (MAYA_EXCHANGE):
//
//   Header | heads of hash chains | arena of rendezvous and payloads
//
// All zeros is a valid empty mailbox, so that nobody has to initialise it. A Rendezvous is one collective of
// one communicator, or one message from one rank to another; its first arrival creates it. It has a slot for
// each participant, which says whether that one has arrived and where its payload is. Payload blocks are
// used again once all readers are done; rendezvous stay. No locks: a killed rank blocks nobody.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "known_bytes.h"

namespace maya::exchange {

enum class Purpose : int32_t { init, split, collective, message };

struct Key {
  int64_t unique_id;  // of the communicator, as in its comm_init record
  int64_t number;     // how many rendezvous of this purpose (and pair) came before
  Purpose purpose;
  int32_t source = -1, destination = -1;  // communicator ranks of a message
  bool operator==(const Key&) const = default;
};

// What all participants have to agree on. Fields that do not apply are -1.
struct Signature {
  int32_t op;         // trace::CollectiveOp; -1 for init and split
  int32_t dtype;      // ncclDataType_t
  int32_t reduce_op;  // ncclRedOp_t, all PreMulSum operators alike
  int32_t root;
  int64_t count;  // of elements; number of ranks for init and split
};

inline constexpr size_t kSiteBytes = 128;

struct Rendezvous {
  uint64_t next;  // offset of the next in the hash chain
  Key key;
  Signature signature;  // of the first to arrive
  int32_t first_rank;   // global rank of the first to arrive
  int32_t num_slots;
  char first_site[kSiteBytes];    // its call site
  std::atomic<int32_t> num_read;  // participants that have read all they need
  std::atomic<uint64_t> slots[];  // 0: not arrived; kArrived: without payload; else offset of the payload
};

// The rendezvous of this key, created with this signature and call site where it does not exist yet.
Rendezvous* meet(const Key& key, const Signature& signature, int num_slots, const std::string& site);

// What this process does on the mailbox, for the diagnoses of others; and what another rank did last, empty
// where that is not known.
void set_newest_call(const std::string& text);
std::string newest_call(int global_rank);

// Marks the arrival of a participant, with its payload if `payload` is not null.
void arrive(Rendezvous* rendezvous, int slot, const void* payload, size_t bytes,
            Origin origin = Origin::program);
bool has_arrived(const Rendezvous* rendezvous, int slot);
// The payload of a participant that has arrived, null if it came without one, and its origin.
const void* payload(const Rendezvous* rendezvous, int slot);
Origin payload_origin(const Rendezvous* rendezvous, int slot);
// One of `num_readers` participants has read what it needs; the last one releases the payloads.
void finish_reading(Rendezvous* rendezvous, int num_readers);

// Global rank of this process (RANK, 0 if unset), for diagnoses.
int global_rank();

// Waits in steps for a peer: spins a little, then sleeps. Ends the process when another rank has failed.
class Wait {
 public:
  Wait();
  void step();
  bool is_over() const;  // MAYA_EXCHANGE_TIMEOUT_S (300) have passed
  static double timeout_s();

 private:
  int num_steps_ = 0;
  int64_t deadline_ns_;
};

// Prints the diagnosis and ends the process with exit code 87, and all ranks that wait on this mailbox
// with 88.
[[noreturn]] void fail(const std::string& diagnosis);
inline constexpr int kExitCode = 87;
inline constexpr int kFollowerExitCode = 88;

}  // namespace maya::exchange
