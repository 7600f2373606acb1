#include "engine.h"

#include <utility>

namespace maya::simulator {

Engine::Engine(const Operations& operations, const Parameters& parameters)
    : operations_(operations),
      parameters_(parameters),
      streams_(operations.stream_kind, operations.stream_rank,
               static_cast<int64_t>(operations.rank_begin.size()) - 1, parameters.queue_depth),
      rendezvous_(operations.rendezvous_arrivals),
      lanes_(operations.num_lanes),
      rank_of_lane_(operations.num_lanes, 0),
      last_of_communicator_(operations.num_communicators, kNone) {
  size_t num_rows = operations.lane.size();
  size_t num_ranks = operations.rank_begin.size() - 1;
  timeline_.host_start.assign(num_rows, kNone);
  timeline_.host_end.assign(num_rows, kNone);
  timeline_.start.assign(num_rows, kNone);
  timeline_.end.assign(num_rows, kNone);
  rows_.resize(num_rows);
  handoffs_.resize(num_ranks);
  unit_free_ns_.resize(num_ranks);  // all zero: units are free at the start
  next_in_lane_ = next_in_lane(operations, first_in_lane_);
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    for (int64_t row = operations.rank_begin[rank]; row < operations.rank_begin[rank + 1]; ++row) {
      rank_of_lane_[operations.lane[row]] = static_cast<int32_t>(rank);
    }
  }
}

Timeline Engine::run() {
  for (int64_t row : first_in_lane_) {
    if (row != kNone) start_lane(row, 0);
  }
  while (!queue_.empty()) {
    Event event = queue_.step();
    switch (event.priority) {
      case Priority::device:
        take_unit(event.operation);
        break;
      case Priority::host:
        begin_call(event.operation);
        break;
    }
    tell_dependants();
  }
  return std::move(timeline_);
}

// --- Host lanes
// ---------------------------------------------------------------------------------------------

void Engine::start_lane(int64_t row, int64_t lane_free_ns) {
  int64_t after = operations_.handoff[row];
  if (after != kNone) {
    if (timeline_.host_end[after] == kNone) {
      handoffs_[rank_of_lane_[operations_.lane[row]]].push_back({after, row, lane_free_ns});
      return;
    }
    lane_free_ns = std::max(lane_free_ns, timeline_.host_end[after]);
  }
  queue_.schedule({lane_free_ns + operations_.gap_ns[row], Priority::host, row});
}

void Engine::begin_call(int64_t row) {
  HostLane& lane = lane_of(row);
  lane.row = row;
  lane.num_missing = 0;
  timeline_.host_start[row] = queue_.now();
  if (unit(row) == Unit::none) {
    synchronise(row);
  } else {
    enqueue(row);
    wait_for_queue(row);
  }
}

void Engine::wait_for_queue(int64_t row) {
  int64_t before =
      unit(row) == Unit::marker ? kNone : streams_.take_queue_place(operations_.stream[row], row);
  HostLane& lane = lane_of(row);
  lane.ready_ns = queue_.now() + operations_.call_ns[row];
  lane.phase = Phase::queue_full;
  if (before != kNone) host_depend(lane, before);
  if (lane.num_missing == 0) lane_ready(lane);
}

void Engine::synchronise(int64_t row) {
  HostLane& lane = lane_of(row);
  lane.ready_ns = queue_.now();
  lane.phase = Phase::synchronise;
  auto wait_for = [&](int64_t other) { host_depend(lane, other); };
  switch (HostWait{operations_.host_wait[row]}) {
    case HostWait::operation:
      if (operations_.waits_on[row] != kNone) wait_for(operations_.waits_on[row]);
      break;
    case HostWait::stream:
      streams_.for_each_pending(operations_.stream[row], wait_for);
      break;
    case HostWait::device:
      streams_.for_each_last_of_rank(rank_of_lane_[operations_.lane[row]], wait_for);
      break;
    case HostWait::none:
    case HostWait::completion:
      break;
  }
  if (lane.num_missing == 0) lane_ready(lane);
}

void Engine::lane_ready(HostLane& lane) {
  int64_t row = lane.row;
  switch (std::exchange(lane.phase, Phase::running)) {
    case Phase::queue_full:
      issued(row, lane.ready_ns);
      break;
    case Phase::synchronise:
      end_call(row, lane.ready_ns + operations_.call_ns[row]);
      break;
    case Phase::completion:
      end_call(row, lane.ready_ns);
      break;
    case Phase::running:
      break;
  }
}

void Engine::issued(int64_t row, int64_t time_ns) {
  int64_t latency_ns = unit(row) == Unit::marker ? 0 : parameters_.launch_latency_ns;
  rows_[row].ready_ns = std::max(rows_[row].ready_ns, time_ns + latency_ns);
  satisfied(row);
  if (HostWait{operations_.host_wait[row]} != HostWait::completion) {
    end_call(row, time_ns);
    return;
  }
  HostLane& lane = lane_of(row);
  lane.phase = Phase::completion;
  lane.ready_ns = time_ns;
  host_depend(lane, row);
  if (lane.num_missing == 0) lane_ready(lane);
}

void Engine::end_call(int64_t row, int64_t time_ns) {
  timeline_.host_end[row] = time_ns;
  std::vector<Handoff>& handoffs = handoffs_[rank_of_lane_[operations_.lane[row]]];
  for (size_t i = 0; i < handoffs.size();) {
    if (handoffs[i].after != row) {
      ++i;
      continue;
    }
    Handoff handoff = handoffs[i];
    handoffs.erase(handoffs.begin() + static_cast<std::ptrdiff_t>(i));
    start_lane(handoff.row, handoff.lane_free_ns);
  }
  if (int64_t next = next_in_lane_[row]; next != kNone) start_lane(next, time_ns);
}

void Engine::host_depend(HostLane& lane, int64_t on) {
  if (timeline_.end[on] != kNone) {
    lane.ready_ns = std::max(lane.ready_ns, timeline_.end[on]);
  } else {
    add_edge(on, ~(&lane - lanes_.data()));
    ++lane.num_missing;
  }
}

// --- Device
// -------------------------------------------------------------------------------------------------

void Engine::enqueue(int64_t row) {
  rows_[row].num_missing = 1;  // the call itself
  int32_t stream = operations_.stream[row];
  streams_.for_each_predecessor(stream, [&](int64_t other) { depend(row, other); });
  streams_.append(stream, row);
  if (operations_.waits_on[row] != kNone) depend(row, operations_.waits_on[row]);
  if (unit(row) == Unit::collective) {
    int64_t& last = last_of_communicator_[operations_.communicator[row]];
    if (last != kNone) depend(row, last);
    last = row;
  }
}

void Engine::depend(int64_t row, int64_t on) {
  if (timeline_.end[on] != kNone) {
    rows_[row].ready_ns = std::max(rows_[row].ready_ns, timeline_.end[on] + gap_before_ns(row));
  } else {
    add_edge(on, row);
    ++rows_[row].num_missing;
  }
}

void Engine::satisfied(int64_t row) {
  RowState& state = rows_[row];
  if (--state.num_missing > 0) return;
  switch (unit(row)) {
    case Unit::compute:
    case Unit::copy_in:
    case Unit::copy_out:
      queue_.schedule({state.ready_ns, Priority::device, row});
      break;
    case Unit::collective:
      arrive(row);
      break;
    case Unit::marker:
    case Unit::host_function:
      timeline_.start[row] = state.ready_ns;
      complete(row, state.ready_ns + operations_.duration_ns[row]);
      break;
    case Unit::none:
      break;
  }
}

void Engine::take_unit(int64_t row) {
  int64_t& free_ns = unit_free_ns_[rank_of_lane_[operations_.lane[row]]][operations_.unit[row]];
  int64_t start_ns = std::max(queue_.now(), free_ns);
  timeline_.start[row] = start_ns;
  free_ns = start_ns + operations_.duration_ns[row];
  complete(row, free_ns);
}

void Engine::arrive(int64_t row) {
  RowState& state = rows_[row];
  int64_t arrival_ns = state.ready_ns;
  int64_t duration_ns = operations_.duration_ns[row];
  timeline_.start[row] = arrival_ns;
  int64_t begin = operations_.rendezvous_begin[row];
  int64_t end = operations_.rendezvous_end[row];
  if (begin == end) {  // all other ranks of the communicator are the row's own class
    complete(row, arrival_ns + duration_ns);
    return;
  }
  state.num_missing = static_cast<int32_t>(end - begin);
  for (int64_t i = begin; i < end; ++i) {
    int64_t id = operations_.rendezvous[i];
    if (!rendezvous_.arrive(id, row, arrival_ns, duration_ns)) continue;
    int64_t end_ns = rendezvous_.end_ns(id);
    for (int64_t other : rendezvous_.take_rows(id)) {
      RowState& participant = rows_[other];
      participant.ready_ns = std::max(participant.ready_ns, end_ns);
      if (--participant.num_missing == 0) complete(other, participant.ready_ns);
    }
  }
}

void Engine::complete(int64_t row, int64_t end_ns) {
  timeline_.end[row] = end_ns;
  if (rows_[row].first_edge != kNone) ended_.push_back(row);
}

// Chains of markers and collectives end at one instant of the clock; a list instead of recursion keeps the
// stack flat.
void Engine::tell_dependants() {
  while (!ended_.empty()) {
    int64_t row = ended_.back();
    ended_.pop_back();
    int64_t end_ns = timeline_.end[row];
    int32_t edge = std::exchange(rows_[row].first_edge, kNone);
    while (edge != kNone) {
      int64_t dependant = edges_[edge].dependant;
      int32_t next = std::exchange(edges_[edge].next, free_edge_);
      free_edge_ = edge;
      edge = next;
      if (dependant >= 0) {
        RowState& state = rows_[dependant];
        state.ready_ns = std::max(state.ready_ns, end_ns + gap_before_ns(dependant));
        satisfied(dependant);
      } else {
        HostLane& lane = lanes_[~dependant];
        lane.ready_ns = std::max(lane.ready_ns, end_ns);
        if (--lane.num_missing == 0) lane_ready(lane);
      }
    }
  }
}

void Engine::add_edge(int64_t on, int64_t dependant) {
  int32_t edge = free_edge_;
  if (edge != kNone) {
    free_edge_ = edges_[edge].next;
  } else {
    edge = static_cast<int32_t>(edges_.size());
    edges_.emplace_back();
  }
  edges_[edge] = {dependant, rows_[on].first_edge};
  rows_[on].first_edge = edge;
}

Timeline simulate(const Operations& operations, const Parameters& parameters) {
  return Engine(operations, parameters).run();
}

}  // namespace maya::simulator
