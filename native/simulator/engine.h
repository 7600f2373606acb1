// The engine: brings host lanes, streams, units and rendezvous together.
//
// A row passes through: its lane reaches the call (host event), the row is put at the end of its stream,
// the call ends, the row's dependencies end, its unit takes it (device event), it ends. An end is known as
// soon as the unit takes the row, so dependants are told at once, with a time in the future; only two things
// need the clock: the order in which threads issue to streams, and the order in which rows take a unit.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "event_queue.h"
#include "host_lanes.h"
#include "operations.h"
#include "rendezvous.h"
#include "streams.h"

namespace maya::simulator {

class Engine {
 public:
  Engine(const Operations& operations, const Parameters& parameters);
  Timeline run();

 private:
  // One row, or the call in progress of one lane, waits for the end of another row.
  struct Edge {
    int64_t dependant;  // row, or ~lane
    int32_t next;
  };
  struct RowState {
    int64_t ready_ns = 0;  // latest of the ends known; for a collective that has arrived, of its rendezvous
    int32_t num_missing = 0;  // dependencies whose end is not known yet; likewise
    int32_t first_edge = kNone;
  };

  void start_lane(int64_t row, int64_t lane_free_ns);
  void begin_call(int64_t row);
  void wait_for_queue(int64_t row);
  void synchronise(int64_t row);
  void issued(int64_t row, int64_t time_ns);
  void end_call(int64_t row, int64_t time_ns);
  void lane_ready(HostLane& lane);

  void enqueue(int64_t row);
  void depend(int64_t row, int64_t on);
  void satisfied(int64_t row);
  void take_unit(int64_t row);
  void arrive(int64_t row);
  void complete(int64_t row, int64_t end_ns);
  void tell_dependants();

  void host_depend(HostLane& lane, int64_t on);
  void add_edge(int64_t on, int64_t dependant);

  Unit unit(int64_t row) const { return Unit{operations_.unit[row]}; }
  int64_t gap_before_ns(int64_t row) const {
    return unit(row) == Unit::marker ? 0 : parameters_.dependency_gap_ns;
  }
  HostLane& lane_of(int64_t row) { return lanes_[operations_.lane[row]]; }

  const Operations& operations_;
  const Parameters parameters_;
  EventQueue queue_;
  Streams streams_;
  RendezvousTable rendezvous_;
  Timeline timeline_;
  std::vector<RowState> rows_;
  std::vector<HostLane> lanes_;
  std::vector<int64_t> next_in_lane_;
  std::vector<int64_t> first_in_lane_;
  std::vector<int32_t> rank_of_lane_;
  std::vector<std::vector<Handoff>> handoffs_;                // by rank
  std::vector<std::array<int64_t, kNumUnits>> unit_free_ns_;  // by rank
  std::vector<int64_t> last_of_communicator_;
  std::vector<Edge> edges_;
  int32_t free_edge_ = kNone;
  std::vector<int64_t> ended_;  // rows whose dependants are not told yet
};

}  // namespace maya::simulator
