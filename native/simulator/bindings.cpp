// The Python module maya.simulator._engine: one call, arrays in and out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

#include "operations.h"

namespace nb = nanobind;
namespace sim = maya::simulator;

namespace {

template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::span<const T> span(const Column<T>& column) {
  return {column.data(), column.size()};
}

nb::object to_numpy(std::vector<int64_t>&& values) {
  auto* owned = new std::vector<int64_t>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<int64_t>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>(owned->data(), {owned->size()}, owner));
}

void check(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(std::string("simulation input: ") + what);
}

// The engine trusts its input; what would read outside of an array is refused here.
void validate(const sim::Operations& o, const sim::Parameters& p) {
  size_t n = o.lane.size();
  check(!o.rank_begin.empty() && o.rank_begin.front() == 0 && o.rank_begin.back() == int64_t(n),
        "rank_begin must go from 0 to the number of rows");
  for (size_t size : {o.stream.size(), o.unit.size(), o.host_wait.size(), o.gap_ns.size(), o.call_ns.size(),
                      o.duration_ns.size(), o.waits_on.size(), o.handoff.size(), o.communicator.size(),
                      o.rendezvous_begin.size(), o.rendezvous_end.size()}) {
    check(size == n, "columns differ in length");
  }
  check(o.stream_kind.size() == o.stream_rank.size(), "stream tables differ in length");
  check(p.queue_depth > 0, "queue_depth must be positive");
  auto num_ranks = int32_t(o.rank_begin.size()) - 1;
  for (int32_t rank : o.stream_rank) check(rank >= 0 && rank < num_ranks, "stream_rank out of range");
  for (uint8_t kind : o.stream_kind) check(kind <= 2, "stream_kind out of range");
  for (int64_t id : o.rendezvous) {
    check(id >= 0 && id < int64_t(o.rendezvous_arrivals.size()), "rendezvous out of range");
  }
  for (size_t i = 0; i < n; ++i) {
    auto row = int64_t(i);
    auto unit = sim::Unit{o.unit[i]};
    check(o.lane[i] >= 0 && o.lane[i] < o.num_lanes, "lane out of range");
    check(o.unit[i] < sim::kNumUnits && o.host_wait[i] <= 4, "unit or host_wait out of range");
    bool needs_stream = unit != sim::Unit::none || sim::HostWait{o.host_wait[i]} == sim::HostWait::stream;
    check(!needs_stream || (o.stream[i] >= 0 && o.stream[i] < int32_t(o.stream_kind.size())),
          "stream out of range");
    check(o.gap_ns[i] >= 0 && o.call_ns[i] >= 0 && o.duration_ns[i] >= 0, "a negative time");
    check(o.waits_on[i] >= sim::kNone && o.waits_on[i] < int64_t(n), "waits_on out of range");
    check(o.waits_on[i] == sim::kNone || sim::Unit{o.unit[o.waits_on[i]]} != sim::Unit::none,
          "waits_on names a row without a device part");
    check(o.handoff[i] >= sim::kNone && o.handoff[i] < row, "handoff must name an earlier row");
    if (unit != sim::Unit::collective) continue;
    check(o.communicator[i] >= 0 && o.communicator[i] < o.num_communicators, "communicator out of range");
    check(o.rendezvous_begin[i] >= 0 && o.rendezvous_begin[i] <= o.rendezvous_end[i] &&
              o.rendezvous_end[i] <= int64_t(o.rendezvous.size()),
          "rendezvous slice out of range");
  }
}

nb::tuple simulate(Column<int64_t> rank_begin, Column<int32_t> lane, Column<int32_t> stream,
                   Column<uint8_t> unit, Column<uint8_t> host_wait, Column<int64_t> gap_ns,
                   Column<int64_t> call_ns, Column<int64_t> duration_ns, Column<int64_t> waits_on,
                   Column<int64_t> handoff, Column<int32_t> communicator, Column<int64_t> rendezvous_begin,
                   Column<int64_t> rendezvous_end, Column<int64_t> rendezvous,
                   Column<int64_t> rendezvous_arrivals, Column<uint8_t> stream_kind,
                   Column<int32_t> stream_rank, int32_t num_lanes, int32_t num_communicators,
                   int64_t launch_latency_ns, int64_t dependency_gap_ns, int64_t queue_depth) {
  sim::Operations operations{
      .rank_begin = span(rank_begin),
      .lane = span(lane),
      .stream = span(stream),
      .unit = span(unit),
      .host_wait = span(host_wait),
      .gap_ns = span(gap_ns),
      .call_ns = span(call_ns),
      .duration_ns = span(duration_ns),
      .waits_on = span(waits_on),
      .handoff = span(handoff),
      .communicator = span(communicator),
      .rendezvous_begin = span(rendezvous_begin),
      .rendezvous_end = span(rendezvous_end),
      .rendezvous = span(rendezvous),
      .rendezvous_arrivals = span(rendezvous_arrivals),
      .stream_kind = span(stream_kind),
      .stream_rank = span(stream_rank),
      .num_lanes = num_lanes,
      .num_communicators = num_communicators,
  };
  sim::Parameters parameters{launch_latency_ns, dependency_gap_ns, queue_depth};
  sim::Timeline timeline;
  {
    nb::gil_scoped_release release;
    validate(operations, parameters);
    timeline = sim::simulate(operations, parameters);
  }
  return nb::make_tuple(to_numpy(std::move(timeline.host_start)), to_numpy(std::move(timeline.host_end)),
                        to_numpy(std::move(timeline.start)), to_numpy(std::move(timeline.end)));
}

}  // namespace

NB_MODULE(_engine, m) {
  m.doc() = "The discrete-event engine; see native/simulator/operations.h for the columns.";
  m.attr("UNITS") =
      nb::make_tuple("none", "marker", "compute", "copy_in", "copy_out", "host_function", "collective");
  m.attr("HOST_WAITS") = nb::make_tuple("none", "operation", "stream", "device", "completion");
  m.attr("STREAM_KINDS") = nb::make_tuple("legacy_default", "blocking", "non_blocking");
  m.def(
      "simulate", &simulate, nb::kw_only(), nb::arg("rank_begin"), nb::arg("lane"), nb::arg("stream"),
      nb::arg("unit"), nb::arg("host_wait"), nb::arg("gap_ns"), nb::arg("call_ns"), nb::arg("duration_ns"),
      nb::arg("waits_on"), nb::arg("handoff"), nb::arg("communicator"), nb::arg("rendezvous_begin"),
      nb::arg("rendezvous_end"), nb::arg("rendezvous"), nb::arg("rendezvous_arrivals"),
      nb::arg("stream_kind"), nb::arg("stream_rank"), nb::arg("num_lanes"), nb::arg("num_communicators"),
      nb::arg("launch_latency_ns"), nb::arg("dependency_gap_ns"), nb::arg("queue_depth"),
      "Simulates all ranks; returns host_start, host_end, start, end in ns by row, -1 where never reached.");
}
