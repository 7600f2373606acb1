// What the engine takes and gives: columns with one entry per operation, all ranks one after another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace maya::simulator {

inline constexpr int64_t kNone = -1;  // no row, no stream; a time that was never reached

// The part of a device that an operation occupies. Operations of one rank on `compute` or on one copy
// engine run one after another, in the order in which they become ready; all others run side by side.
enum class Unit : uint8_t {
  none,           // a call that puts nothing on a stream
  marker,         // event record, event wait: takes its place in the stream, no time
  compute,        // kernels, memsets, copies within the device
  copy_in,        // host to device
  copy_out,       // device to host, to a peer
  host_function,  // runs on the CPU, holds its stream
  collective,     // meets other ranks
};
inline constexpr int kNumUnits = 7;

// What the calling thread waits for inside the call.
enum class HostWait : uint8_t {
  none,
  operation,   // the device part of row `waits_on` (event_sync)
  stream,      // all work in `stream`
  device,      // all work of the rank
  completion,  // the operation itself (blocking copies)
};

enum class StreamKind : uint8_t { legacy_default, blocking, non_blocking };

// Row numbers, lanes and streams are global: they count over all ranks.
struct Operations {
  std::span<const int64_t> rank_begin;        // first row of each rank, and the number of rows
  std::span<const int32_t> lane;              // host thread; lanes of a rank are its own
  std::span<const int32_t> stream;            // kNone where unit is none and nothing is waited for
  std::span<const uint8_t> unit;              // Unit
  std::span<const uint8_t> host_wait;         // HostWait
  std::span<const int64_t> gap_ns;            // host time between the thread's previous call and this one
  std::span<const int64_t> call_ns;           // host time of the call
  std::span<const int64_t> duration_ns;       // device time
  std::span<const int64_t> waits_on;          // row whose device part this row needs, kNone for no need
  std::span<const int64_t> handoff;           // row whose call must end before this thread goes on
  std::span<const int32_t> communicator;      // one number per rank and communicator
  std::span<const int64_t> rendezvous_begin;  // slice of `rendezvous`
  std::span<const int64_t> rendezvous_end;
  std::span<const int64_t> rendezvous;           // ids
  std::span<const int64_t> rendezvous_arrivals;  // by id: rows that meet
  std::span<const uint8_t> stream_kind;          // StreamKind by stream
  std::span<const int32_t> stream_rank;          // rank by stream
  int32_t num_lanes;
  int32_t num_communicators;
};

struct Parameters {
  int64_t launch_latency_ns;  // return of a launch call to the start of its kernel on an idle device
  int64_t dependency_gap_ns;  // end of the last operation waited for to the start of the next
  int64_t queue_depth;        // operations of one stream that are issued and unfinished before a call blocks
};

// Times in ns from the start of the job; kNone where the moment never came.
struct Timeline {
  std::vector<int64_t> host_start;
  std::vector<int64_t> host_end;
  std::vector<int64_t> start;  // device part; a collective starts when it arrives, not when all are there
  std::vector<int64_t> end;
};

Timeline simulate(const Operations& operations, const Parameters& parameters);

}  // namespace maya::simulator
