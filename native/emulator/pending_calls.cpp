#include "pending_calls.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "known_bytes.h"
#include "reduce.h"
#include "rendezvous_text.h"

namespace maya {
namespace {

void publish(PendingCall& pending) {
  const Contribution own = contribution(pending.call, pending.plan.send_bytes);
  exchange::arrive(pending.rendezvous, pending.slot, own.data.empty() ? nullptr : own.data.data(),
                   own.data.size(), own.origin);
  pending.is_published = true;
}

void write_output(const PendingCall& pending) {
  using enum trace::CollectiveOp;
  const CollectiveCall& call = pending.call;
  auto* output = static_cast<char*>(call.receive);
  Origin origin = Origin::program;
  bool is_complete = true;
  pending.for_each_source([&](int slot) {
    origin = std::max(origin, exchange::payload_origin(pending.rendezvous, slot));
    is_complete &= exchange::payload(pending.rendezvous, slot) != nullptr;
  });
  if (!is_complete) {
    overwrite_known_bytes(output, pending.plan.receive_bytes);
  } else if (is_accessible(output, pending.plan.receive_bytes)) {
    const size_t bytes = call.count * element_bytes(call.dtype);
    auto input = [&](int slot) {
      return static_cast<const char*>(exchange::payload(pending.rendezvous, slot));
    };
    const size_t own_offset = bytes * static_cast<size_t>(call.comm->rank);
    switch (call.op) {
      case all_reduce:
      case reduce:
      case reduce_scatter: {
        const size_t offset = call.op == reduce_scatter ? own_offset : 0;
        std::vector<const void*> inputs;
        pending.for_each_source([&](int slot) { inputs.push_back(input(slot) + offset); });
        maya::reduce(builtin_operator(call.reduce_op), call.dtype, call.count, inputs, output);
        break;
      }
      case all_gather:
      case gather:
        pending.for_each_source([&](int slot) { std::memcpy(output + bytes * slot, input(slot), bytes); });
        break;
      case all_to_all:
        pending.for_each_source(
            [&](int slot) { std::memcpy(output + bytes * slot, input(slot) + own_offset, bytes); });
        break;
      case broadcast:
      case recv:
        std::memcpy(output, input(pending.plan.source), bytes);
        break;
      case scatter:
        std::memcpy(output, input(pending.plan.source) + own_offset, bytes);
        break;
      case send:
        break;
    }
    if (pending.is_overwritten) {
      std::memset(output, 0, pending.plan.receive_bytes);
      origin = Origin::kernel;
    }
    keep_known_bytes(output, pending.plan.receive_bytes, origin);
  }
  exchange::finish_reading(pending.rendezvous, pending.plan.num_readers);
}

}  // namespace

void PendingCalls::add(PendingCall call) {
  std::lock_guard lock(mutex_);
  const bool is_ready = std::none_of(calls_.begin(), calls_.end(), [&](const PendingCall& earlier) {
    return earlier.output().overlaps(call.input());
  });
  if (!call.is_published && is_ready) publish(call);
  const bool is_published = call.is_published;
  calls_.push_back(std::move(call));
  num_calls_.store(calls_.size(), std::memory_order_relaxed);
  if (is_published) return;
  if (!has_background_thread_) std::thread([this] { publish_in_background(); }).detach();
  has_background_thread_ = true;
  unpublished_added_.notify_one();
}

bool PendingCalls::has_unpublished_locked() const {
  return std::any_of(calls_.begin(), calls_.end(),
                     [](const PendingCall& pending) { return !pending.is_published; });
}

void PendingCalls::publish_in_background() {
  constexpr timespec kPause = {0, 1'000'000};
  prctl(PR_SET_NAME, "maya_exchange");
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      unpublished_added_.wait(lock, [this] { return has_unpublished_locked(); });
      advance_locked(SIZE_MAX);
    }
    nanosleep(&kPause, nullptr);
  }
}

void PendingCalls::advance(size_t max_calls) {
  if (is_empty()) return;
  std::lock_guard lock(mutex_);
  advance_locked(max_calls);
}

void PendingCalls::complete(const Predicate& blocks) {
  if (is_empty()) return;
  for (exchange::Wait wait;; wait.step()) {
    std::lock_guard lock(mutex_);
    advance_locked(SIZE_MAX);
    if (std::none_of(calls_.begin(), calls_.end(), blocks)) return;
    if (wait.is_over()) diagnose_locked(blocks);
  }
}

void PendingCalls::limit() {
  constexpr size_t kMaxCalls = 1024;
  if (num_calls_.load(std::memory_order_relaxed) <= kMaxCalls) return;
  complete([this](const PendingCall&) { return calls_.size() > kMaxCalls; });
}

void PendingCalls::forget(const ncclComm& comm) {
  std::lock_guard lock(mutex_);
  calls_.remove_if([&](const PendingCall& pending) { return pending.call.comm == &comm; });
  num_calls_.store(calls_.size(), std::memory_order_relaxed);
}

void PendingCalls::overwrite(const std::vector<uintptr_t>& addresses) {
  if (is_empty()) return;
  std::lock_guard lock(mutex_);
  for (PendingCall& pending : calls_) {
    const Range output = pending.output();
    for (uintptr_t address : addresses) {
      if (address >= output.begin && address < output.end) pending.is_overwritten = true;
    }
  }
}

// A call must not overtake an earlier one that writes what it reads or writes, or still reads what it
// writes: stream order, for the buffers where it can be seen.
void PendingCalls::advance_locked(size_t max_calls) {
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
    if (may_write && (pending.plan.receive_bytes == 0 || pending.sources_have_arrived())) {
      if (pending.plan.receive_bytes > 0) write_output(pending);
      it = calls_.erase(it);
      continue;
    }
    earlier_inputs.push_back(pending.input());
    earlier_outputs.push_back(pending.output());
    ++it;
  }
  num_calls_.store(calls_.size(), std::memory_order_relaxed);
}

void PendingCalls::diagnose_locked(const Predicate& blocks) const {
  auto is_stuck = [](const PendingCall& pending) { return !pending.sources_have_arrived(); };
  auto stuck = std::find_if(calls_.begin(), calls_.end(),
                            [&](const PendingCall& pending) { return blocks(pending) && is_stuck(pending); });
  if (stuck == calls_.end()) stuck = std::find_if(calls_.begin(), calls_.end(), is_stuck);
  const ncclComm& comm = *stuck->call.comm;
  std::vector<int> missing;
  stuck->for_each_source([&](int slot) {
    if (exchange::has_arrived(stuck->rendezvous, slot)) return;
    missing.push_back(is_message(stuck->call.op) ? stuck->call.peer : slot);
  });
  const std::string action = text::describe(comm, *stuck->rendezvous);
  exchange::fail(text::missing_members(comm, action, missing));
}

}  // namespace maya
