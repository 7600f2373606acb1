// Streams: order of issue, the joins of the legacy default stream, and the bounded launch queue.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "operations.h"

namespace maya::simulator {

class Streams {
 public:
  Streams(std::span<const uint8_t> kind, std::span<const int32_t> rank, int64_t num_ranks,
          int64_t queue_depth);

  // The rows that must end before the next row of `stream` may start: the last one of the stream, and
  // for the legacy default stream those of all blocking streams; for a blocking stream that of the legacy
  // one. Also what synchronising with `stream` waits for, but for the last (CUDA runtime API, "Stream
  // synchronization behavior").
  template <typename Visitor>
  void for_each_predecessor(int32_t stream, Visitor visit) const {
    for_each_pending(stream, visit);
    int32_t legacy = legacy_of_rank_[rank_[stream]];
    if (kind(stream) == StreamKind::blocking && legacy != kNone) visit_last(legacy, visit);
  }

  // The rows that a host waits for when it synchronises with `stream`.
  template <typename Visitor>
  void for_each_pending(int32_t stream, Visitor visit) const {
    visit_last(stream, visit);
    if (kind(stream) != StreamKind::legacy_default) return;
    for (int32_t other : blocking_of_rank_[rank_[stream]]) visit_last(other, visit);
  }

  template <typename Visitor>
  void for_each_last_of_rank(int32_t rank, Visitor visit) const {
    for (int32_t stream : streams_of_rank_[rank]) visit_last(stream, visit);
  }

  void append(int32_t stream, int64_t row) { last_[stream] = row; }

  // Takes a place in the launch queue of `stream`; returns the row that must have ended before the place is
  // free, or kNone.
  int64_t take_queue_place(int32_t stream, int64_t row);

 private:
  StreamKind kind(int32_t stream) const { return StreamKind{kind_[stream]}; }

  template <typename Visitor>
  void visit_last(int32_t stream, Visitor visit) const {
    if (last_[stream] != kNone) visit(last_[stream]);
  }

  std::span<const uint8_t> kind_;
  std::span<const int32_t> rank_;
  int64_t queue_depth_;
  std::vector<int64_t> last_;  // newest row by stream
  std::vector<std::vector<int32_t>> streams_of_rank_;
  std::vector<std::vector<int32_t>> blocking_of_rank_;
  std::vector<int32_t> legacy_of_rank_;
  struct LaunchQueue {
    std::vector<int64_t> rows;  // a ring of the newest `queue_depth` rows
    size_t oldest = 0;
  };
  std::vector<LaunchQueue> queues_;
};

}  // namespace maya::simulator
