#include "payloads.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device.h"
#include "recorder.h"
#include "reduce.h"
#include "rendezvous_text.h"

namespace maya {
namespace {

using exchange::Rendezvous;
using exchange::Signature;
using trace::CollectiveOp;

// ---- What each participant gives and gets

struct Shape {
  size_t send_bytes = 0;                  // this rank's contribution, 0: none
  size_t receive_bytes = 0;               // this rank's output, 0: none
  size_t largest_contribution_bytes = 0;  // of any rank
  int source = -1;                        // slot whose contribution the output needs; -1: all
  int num_readers = 0;
};

Shape shape_of(const CollectiveCall& call) {
  const size_t bytes = call.count * element_bytes(call.dtype);
  const size_t all_bytes = bytes * static_cast<size_t>(call.comm->num_ranks);
  const int num_ranks = call.comm->num_ranks;
  const bool is_root = call.peer == call.comm->rank;
  const size_t if_root = is_root ? 1 : 0;
  switch (call.op) {
    case CollectiveOp::all_reduce:
      return {bytes, bytes, bytes, -1, num_ranks};
    case CollectiveOp::broadcast:
      return {bytes * if_root, bytes, bytes, call.peer, num_ranks};
    case CollectiveOp::reduce:
      return {bytes, bytes * if_root, bytes, -1, 1};
    case CollectiveOp::all_gather:
      return {bytes, all_bytes, bytes, -1, num_ranks};
    case CollectiveOp::reduce_scatter:
      return {all_bytes, bytes, all_bytes, -1, num_ranks};
    case CollectiveOp::all_to_all:
      return {all_bytes, all_bytes, all_bytes, -1, num_ranks};
    case CollectiveOp::gather:
      return {bytes, all_bytes * if_root, bytes, -1, 1};
    case CollectiveOp::scatter:
      return {all_bytes * if_root, bytes, all_bytes, call.peer, num_ranks};
    case CollectiveOp::send:
      return {bytes, 0, bytes, -1, 1};
    case CollectiveOp::recv:
      return {0, bytes, bytes, 0, 1};
  }
  return {};
}

bool is_message(CollectiveOp op) { return op == CollectiveOp::send || op == CollectiveOp::recv; }

// Whether [pointer, pointer + bytes) is memory of an emulated device or pinned host memory.
bool is_accessible(const void* pointer, size_t bytes) {
  auto address = reinterpret_cast<uintptr_t>(pointer);
  const uintptr_t end = address + bytes;
  while (address < end) {  // expandable segments: adjacent allocations
    const Allocation allocation = find_allocation(reinterpret_cast<const void*>(address));
    if (allocation.space == Space::unknown) return false;
    address = allocation.address + allocation.bytes;
  }
  return true;
}

// The contribution of this rank: its send buffer, pre-multiplied where the operator says so; zeros where the
// buffer is not known.
std::vector<char> contribution(const CollectiveCall& call, size_t bytes) {
  std::vector<char> data(bytes);
  if (!is_accessible(call.send, bytes)) return data;
  if (call.reduce_op >= ncclNumOps) {
    const double factor = call.comm->pre_mul_factors[call.reduce_op - ncclNumOps];
    scale(call.dtype, bytes / element_bytes(call.dtype), call.send, factor, data.data());
  } else {
    std::memcpy(data.data(), call.send, bytes);
  }
  return data;
}

ncclRedOp_t builtin(int reduce_op) {
  return reduce_op >= ncclNumOps ? ncclSum : static_cast<ncclRedOp_t>(reduce_op);
}

// ---- Solo: absent ranks hold the same data as this one

class Alone {
 public:
  void answer(const CollectiveCall& call) {
    const Shape shape = shape_of(call);
    if (shape.largest_contribution_bytes > kPayloadLimitBytes) return;
    std::vector<char> own;
    if (shape.send_bytes > 0) own = contribution(call, shape.send_bytes);
    if (call.op == CollectiveOp::send) return sent(call, std::move(own));
    if (shape.receive_bytes == 0 || !is_accessible(call.receive, shape.receive_bytes)) return;
    write_output(call, shape, own);
  }

 private:
  void write_output(const CollectiveCall& call, const Shape& shape, const std::vector<char>& own) {
    const size_t bytes = call.count * element_bytes(call.dtype);
    const int num_ranks = call.comm->num_ranks;
    auto* output = static_cast<char*>(call.receive);
    switch (call.op) {
      case CollectiveOp::all_reduce:
      case CollectiveOp::reduce:
        return reduce_copies(builtin(call.reduce_op), call.dtype, call.count, own.data(), num_ranks, output);
      case CollectiveOp::reduce_scatter:
        return reduce_copies(builtin(call.reduce_op), call.dtype, call.count,
                             own.data() + bytes * call.comm->rank, num_ranks, output);
      case CollectiveOp::all_gather:
      case CollectiveOp::gather:
        for (int i = 0; i < num_ranks; ++i) std::memcpy(output + bytes * i, own.data(), bytes);
        return;
      case CollectiveOp::all_to_all:  // as much comes back as was given away
        std::memcpy(output, own.data(), shape.receive_bytes);
        return;
      case CollectiveOp::broadcast:
        // What an absent root holds cannot be known; frameworks broadcast what all ranks hold alike.
        if (own.empty() && is_accessible(call.send, bytes)) own_copy(call, bytes);
        if (!own.empty()) std::memcpy(output, own.data(), bytes);
        return;
      case CollectiveOp::scatter:
        if (!own.empty()) std::memcpy(output, own.data() + bytes * call.comm->rank, bytes);
        return;
      case CollectiveOp::recv:
        return received(call, bytes);
      case CollectiveOp::send:
        return;
    }
  }

  static void own_copy(const CollectiveCall& call, size_t bytes) {
    if (call.send != call.receive) std::memmove(call.receive, call.send, bytes);
  }

  void sent(const CollectiveCall& call, std::vector<char> payload) {
    std::lock_guard lock(mutex_);
    if (call.peer == call.comm->rank) to_self_[call.comm->unique_id].push_back(payload);
    last_sent_[payload.size()] = std::move(payload);
  }

  // A message of an absent rank reads as the last one of its size that this rank has sent itself: shapes
  // and counts which neighbours tell each other are alike. Else as zeros.
  void received(const CollectiveCall& call, size_t bytes) {
    std::lock_guard lock(mutex_);
    if (call.peer == call.comm->rank) {
      auto& messages = to_self_[call.comm->unique_id];
      if (!messages.empty()) {
        std::memcpy(call.receive, messages.front().data(), std::min(bytes, messages.front().size()));
        messages.pop_front();
        return;
      }
    }
    if (const auto last = last_sent_.find(bytes); last != last_sent_.end()) {
      std::memcpy(call.receive, last->second.data(), bytes);
    } else {
      std::memset(call.receive, 0, bytes);
    }
  }

  std::mutex mutex_;
  std::map<int64_t, std::deque<std::vector<char>>> to_self_;  // by communicator
  std::map<size_t, std::vector<char>> last_sent_;             // by size
};

// ---- Linked: contributions at once, outputs when the peers have arrived

struct Range {
  uintptr_t begin, end;
  bool overlaps(const Range& other) const {
    return begin < end && other.begin < other.end && begin < other.end && other.begin < end;
  }
};

Range range(const void* pointer, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  return {begin, begin + bytes};
}

struct PendingCall {
  CollectiveCall call;
  Shape shape;
  Rendezvous* rendezvous;
  int slot;
  bool is_published;  // the contribution has left

  Range input() const { return range(call.send, is_published ? 0 : shape.send_bytes); }
  Range output() const { return range(call.receive, shape.receive_bytes); }

  template <typename Function>
  void for_each_source(Function&& function) const {
    if (shape.source >= 0) return function(shape.source);
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
  void add(PendingCall call) {
    std::lock_guard lock(mutex_);
    const bool is_ready = std::none_of(calls_.begin(), calls_.end(), [&](const PendingCall& earlier) {
      return earlier.output().overlaps(call.input());
    });
    if (!call.is_published && is_ready) publish(call);
    calls_.push_back(std::move(call));
    num_calls_.store(calls_.size(), std::memory_order_relaxed);
  }

  bool is_empty() const { return num_calls_.load(std::memory_order_relaxed) == 0; }

  // Does what can be done without waiting, for the oldest `max_calls`.
  void advance(size_t max_calls = SIZE_MAX) {
    if (is_empty()) return;
    std::lock_guard lock(mutex_);
    advance_locked(max_calls);
  }

  // Waits until no pending call satisfies `blocks`.
  void complete(const std::function<bool(const PendingCall&)>& blocks) {
    if (is_empty()) return;
    for (exchange::Wait wait;; wait.step()) {
      std::lock_guard lock(mutex_);
      advance_locked(SIZE_MAX);
      if (std::none_of(calls_.begin(), calls_.end(), blocks)) return;
      if (wait.is_over()) diagnose_locked();
    }
  }

  // Like a device, which holds a limited number of launches: a rank far ahead of its peers waits here.
  void limit() {
    constexpr size_t kMaxCalls = 1024;
    if (num_calls_.load(std::memory_order_relaxed) <= kMaxCalls) return;
    complete([this](const PendingCall&) { return calls_.size() > kMaxCalls; });
  }

  void forget(const ncclComm& comm) {
    std::lock_guard lock(mutex_);
    calls_.remove_if([&](const PendingCall& pending) { return pending.call.comm == &comm; });
    num_calls_.store(calls_.size(), std::memory_order_relaxed);
  }

 private:
  // A call must not overtake an earlier one that writes what it reads or writes, or still reads what it
  // writes: stream order, for the buffers where it can be seen.
  void advance_locked(size_t max_calls) {
    std::vector<Range> earlier_inputs, earlier_outputs;
    auto overlaps = [](const std::vector<Range>& ranges, const Range& range) {
      return std::any_of(ranges.begin(), ranges.end(),
                         [&](const Range& other) { return other.overlaps(range); });
    };
    size_t num_seen = 0;
    for (auto it = calls_.begin(); it != calls_.end() && num_seen < max_calls; ++num_seen) {
      PendingCall& pending = *it;
      if (!pending.is_published && !overlaps(earlier_outputs, pending.input())) publish(pending);
      const bool may_write = pending.is_published && !overlaps(earlier_outputs, pending.output()) &&
                             !overlaps(earlier_inputs, pending.output());
      if (may_write && (pending.shape.receive_bytes == 0 || pending.sources_have_arrived())) {
        if (pending.shape.receive_bytes > 0) write_output(pending);
        it = calls_.erase(it);
        continue;
      }
      earlier_inputs.push_back(pending.input());
      earlier_outputs.push_back(pending.output());
      ++it;
    }
    num_calls_.store(calls_.size(), std::memory_order_relaxed);
  }

  static void publish(PendingCall& pending) {
    const std::vector<char> own = contribution(pending.call, pending.shape.send_bytes);
    exchange::arrive(pending.rendezvous, pending.slot, own.data(), own.size());
    pending.is_published = true;
  }

  static void write_output(const PendingCall& pending) {
    const CollectiveCall& call = pending.call;
    auto* output = static_cast<char*>(call.receive);
    if (is_accessible(output, pending.shape.receive_bytes)) {
      const size_t bytes = call.count * element_bytes(call.dtype);
      auto input = [&](int slot) {
        return static_cast<const char*>(exchange::payload(pending.rendezvous, slot));
      };
      const size_t own_offset = bytes * static_cast<size_t>(call.comm->rank);
      switch (call.op) {
        case CollectiveOp::all_reduce:
        case CollectiveOp::reduce:
        case CollectiveOp::reduce_scatter: {
          const size_t offset = call.op == CollectiveOp::reduce_scatter ? own_offset : 0;
          std::vector<const void*> inputs;
          pending.for_each_source([&](int slot) { inputs.push_back(input(slot) + offset); });
          reduce(builtin(call.reduce_op), call.dtype, call.count, inputs, output);
          break;
        }
        case CollectiveOp::all_gather:
        case CollectiveOp::gather:
          pending.for_each_source([&](int slot) { std::memcpy(output + bytes * slot, input(slot), bytes); });
          break;
        case CollectiveOp::all_to_all:
          pending.for_each_source(
              [&](int slot) { std::memcpy(output + bytes * slot, input(slot) + own_offset, bytes); });
          break;
        case CollectiveOp::broadcast:
        case CollectiveOp::recv:
          std::memcpy(output, input(pending.shape.source), bytes);
          break;
        case CollectiveOp::scatter:
          std::memcpy(output, input(pending.shape.source) + own_offset, bytes);
          break;
        case CollectiveOp::send:
          break;
      }
    }
    exchange::finish_reading(pending.rendezvous, pending.shape.num_readers);
  }

  [[noreturn]] void diagnose_locked() const {
    // The oldest call is the one that holds up the others.
    const PendingCall& pending = calls_.front();
    const ncclComm& comm = *pending.call.comm;
    std::vector<int> missing;
    pending.for_each_source([&](int slot) {
      if (!exchange::has_arrived(pending.rendezvous, slot)) {
        missing.push_back(is_message(pending.call.op) ? pending.call.peer : slot);
      }
    });
    exchange::fail(text::missing_members(
        comm, text::describe(comm, pending.rendezvous->key, pending.rendezvous->signature), missing));
  }

  std::mutex mutex_;
  std::list<PendingCall> calls_;  // in the order of the calls
  std::atomic<size_t> num_calls_{0};
};

PendingCalls& pending_calls() {
  static auto* calls = new PendingCalls;  // outlives exit handlers
  return *calls;
}

void start_linked(const CollectiveCall& call) {
  ncclComm& comm = *call.comm;
  exchange::Key key{.unique_id = comm.unique_id, .number = 0, .purpose = exchange::Purpose::collective};
  CollectiveOp op = call.op;
  int slot = comm.rank;
  int num_slots = comm.num_ranks;
  if (is_message(call.op)) {
    const bool is_sender = call.op == CollectiveOp::send;
    key.purpose = exchange::Purpose::message;
    key.number = (is_sender ? comm.num_sent : comm.num_received)[call.peer]++;
    key.source = is_sender ? comm.rank : call.peer;
    key.destination = is_sender ? call.peer : comm.rank;
    op = CollectiveOp::send;
    slot = is_sender ? 0 : 1;
    num_slots = 2;
  } else {
    key.number = comm.num_collectives++;
  }
  const Signature signature{.op = static_cast<int32_t>(op),
                            .dtype = call.dtype,
                            .reduce_op = std::min<int32_t>(call.reduce_op, ncclNumOps),
                            .root = is_message(call.op) ? -1 : call.peer,
                            .count = static_cast<int64_t>(call.count)};
  Rendezvous* rendezvous = join(comm, key, signature, num_slots);
  const Shape shape = shape_of(call);
  const bool is_small = shape.largest_contribution_bytes <= kPayloadLimitBytes;
  const bool contributes = is_small && shape.send_bytes > 0;
  if (!contributes) exchange::arrive(rendezvous, slot, nullptr, 0);
  if (!is_small || (shape.send_bytes == 0 && shape.receive_bytes == 0)) return;
  pending_calls().add({call, shape, rendezvous, slot, !contributes});
}

}  // namespace

void move_payloads(std::span<const CollectiveCall> calls) {
  static Alone alone;
  // What a group sends is there before what it receives, in whatever order the calls were made.
  for (const bool is_receiving : {false, true}) {
    for (const CollectiveCall& call : calls) {
      if ((call.op == CollectiveOp::recv) != is_receiving) continue;
      is_linked() ? start_linked(call) : alone.answer(call);
    }
  }
  constexpr size_t kMaxAdvancedCalls = 64;  // bounds the cost of a call; whoever waits looks at all
  pending_calls().advance(kMaxAdvancedCalls);
  pending_calls().limit();
}

void complete_pending_collectives() {
  pending_calls().complete([](const PendingCall& pending) { return !is_message(pending.call.op); });
}

void complete_pending_collectives(const void* address, size_t bytes) {
  const Range touched = range(address, bytes);
  pending_calls().complete([&](const PendingCall& pending) {
    return pending.output().overlaps(touched) || pending.input().overlaps(touched);
  });
}

void complete_pending_collectives(const ncclComm& comm) {
  pending_calls().complete([&](const PendingCall& pending) { return pending.call.comm == &comm; });
}

void forget_pending_collectives(const ncclComm& comm) { pending_calls().forget(comm); }

void wait_for_members(const ncclComm& comm, const Rendezvous& rendezvous, const char* action) {
  for (exchange::Wait wait;; wait.step()) {
    pending_calls().advance();
    std::vector<int> missing;
    for (int slot = 0; slot < rendezvous.num_slots; ++slot) {
      if (!exchange::has_arrived(&rendezvous, slot)) missing.push_back(slot);
    }
    if (missing.empty()) return;
    if (wait.is_over()) exchange::fail(text::missing_members(comm, action, missing));
  }
}

Rendezvous* join(const ncclComm& comm, const exchange::Key& key, const Signature& signature, int num_slots) {
  Rendezvous* rendezvous = exchange::meet(key, signature, num_slots);
  if (!text::agree(rendezvous->signature, signature)) {
    exchange::fail(text::disagreement(comm, *rendezvous, signature));
  }
  return rendezvous;
}

}  // namespace maya
