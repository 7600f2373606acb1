// The clock of the simulation: a queue of events in the total order (time, priority, sequence).
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

namespace maya::simulator {

// What happens first at one instant: a device resource is granted before a host thread goes on.
enum class Priority : uint8_t { device, host };

struct Event {
  int64_t time_ns;
  Priority priority;
  int64_t operation;  // the sequence: operations are numbered by rank, then in call order

  bool operator<(const Event& other) const {
    return std::tie(time_ns, priority, operation) < std::tie(other.time_ns, other.priority, other.operation);
  }
};

// Any order of `schedule` calls gives the same order of `step`s, since no two events are equal.
class EventQueue {
 public:
  int64_t now() const { return now_ns_; }
  bool empty() const { return !has_next_ && heap_.empty(); }

  // The earliest of the newest events stays out of the heap: most events of a host thread are the next to
  // run.
  void schedule(Event event) {
    if (!has_next_) {
      has_next_ = true;
      next_ = event;
      return;
    }
    if (event < next_) std::swap(event, next_);
    heap_.push_back(event);
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  // Takes the earliest event and moves the clock to it.
  Event step() {
    Event event;
    if (has_next_ && (heap_.empty() || next_ < heap_.front())) {
      event = next_;
      has_next_ = false;
    } else {
      std::pop_heap(heap_.begin(), heap_.end(), later);
      event = heap_.back();
      heap_.pop_back();
    }
    now_ns_ = event.time_ns;
    return event;
  }

 private:
  static bool later(const Event& a, const Event& b) { return b < a; }

  int64_t now_ns_ = 0;
  bool has_next_ = false;
  Event next_{};
  std::vector<Event> heap_;
};

}  // namespace maya::simulator
