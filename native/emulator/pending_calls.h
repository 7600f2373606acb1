// Collectives of linked ranks whose outputs are not written yet, or whose contributions have not left yet.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <vector>

#include "exchange.h"
#include "payload_plan.h"

namespace maya {

struct Range {
  uintptr_t begin, end;
  bool overlaps(const Range& other) const {
    return begin < end && other.begin < other.end && begin < other.end && other.begin < end;
  }
};

inline Range range_of(const void* pointer, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  return {begin, begin + bytes};
}

struct PendingCall {
  CollectiveCall call;
  PayloadPlan plan;
  exchange::Rendezvous* rendezvous;
  int slot;
  bool is_published;            // the contribution has left
  bool is_overwritten = false;  // a kernel has written to the output since

  Range input() const { return range_of(call.send, is_published ? 0 : plan.send_bytes); }
  Range output() const { return range_of(call.receive, plan.receive_bytes); }

  template <typename Function>
  void for_each_source(Function&& function) const {
    if (plan.source >= 0) return function(plan.source);
    for (int slot = 0; slot < rendezvous->num_slots; ++slot) function(slot);
  }
  bool sources_have_arrived() const {
    bool have_arrived = true;
    for_each_source([&](int slot) { have_arrived &= exchange::has_arrived(rendezvous, slot); });
    return have_arrived;
  }
};

class PendingCalls {
 public:
  // Takes a call on, and sends its contribution off unless that is the output of an earlier pending call.
  void add(PendingCall call);

  // Does what can be done without waiting, for the oldest `max_calls`.
  void advance(size_t max_calls = SIZE_MAX);

  // Waits until no pending call satisfies `blocks`.
  using Predicate = std::function<bool(const PendingCall&)>;
  void complete(const Predicate& blocks);

  // Like a device, which holds a limited number of launches: a rank far ahead of its peers waits here.
  void limit();

  void forget(const ncclComm& comm);

  // The outputs around these addresses will be lost to kernels.
  void overwrite(const std::vector<uintptr_t>& addresses);

 private:
  bool is_empty() const { return num_calls_.load(std::memory_order_relaxed) == 0; }
  void advance_locked(size_t max_calls);
  bool has_unpublished_locked() const;
  // Loop of a thread that sends contributions off as soon as they are there, also while the program
  // computes on the host or has ended: as a device would.
  void publish_in_background();
  [[noreturn]] void diagnose_locked(const Predicate& blocks) const;

  std::mutex mutex_;
  std::condition_variable unpublished_added_;
  bool has_background_thread_ = false;
  std::list<PendingCall> calls_;  // in the order of the calls
  std::atomic<size_t> num_calls_{0};
};

}  // namespace maya
