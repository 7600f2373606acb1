// Host lanes: one per thread of a rank, each with one call in progress at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "operations.h"

namespace maya::simulator {

// Why the call in progress has not ended.
enum class Phase : uint8_t {
  running,
  queue_full,   // the launch has no place in its stream's queue
  synchronise,  // the device has not caught up
  completion,   // the call's own operation has not ended
};

struct HostLane {
  Phase phase = Phase::running;
  int64_t row = kNone;      // the call in progress
  int32_t num_missing = 0;  // rows it waits for whose end is not known yet
  int64_t ready_ns = 0;     // latest of the ends known
};

// A thread that was woken by another one: `row` waits for the end of the call `after`.
struct Handoff {
  int64_t after;
  int64_t row;
  int64_t lane_free_ns;  // when the thread's previous call ended
};

// Row after each row in the same lane, kNone at the end.
inline std::vector<int64_t> next_in_lane(const Operations& operations, std::vector<int64_t>& first_in_lane) {
  auto num_rows = static_cast<int64_t>(operations.lane.size());
  first_in_lane.assign(operations.num_lanes, kNone);
  std::vector<int64_t> next(num_rows);
  for (int64_t row = num_rows - 1; row >= 0; --row) {
    next[row] = first_in_lane[operations.lane[row]];
    first_in_lane[operations.lane[row]] = row;
  }
  return next;
}

}  // namespace maya::simulator
