#include "streams.h"

namespace maya::simulator {

Streams::Streams(std::span<const uint8_t> kind, std::span<const int32_t> rank, int64_t num_ranks,
                 int64_t queue_depth)
    : kind_(kind),
      rank_(rank),
      queue_depth_(queue_depth),
      last_(kind.size(), kNone),
      streams_of_rank_(num_ranks),
      blocking_of_rank_(num_ranks),
      legacy_of_rank_(num_ranks, kNone),
      queues_(kind.size()) {
  for (int32_t stream = 0; stream < static_cast<int32_t>(kind.size()); ++stream) {
    streams_of_rank_[rank[stream]].push_back(stream);
    switch (this->kind(stream)) {
      case StreamKind::legacy_default:
        legacy_of_rank_[rank[stream]] = stream;
        break;
      case StreamKind::blocking:
        blocking_of_rank_[rank[stream]].push_back(stream);
        break;
      case StreamKind::non_blocking:
        break;
    }
  }
}

int64_t Streams::take_queue_place(int32_t stream, int64_t row) {
  LaunchQueue& queue = queues_[stream];
  if (static_cast<int64_t>(queue.rows.size()) < queue_depth_) {
    queue.rows.push_back(row);
    return kNone;
  }
  int64_t before = queue.rows[queue.oldest];
  queue.rows[queue.oldest] = row;
  if (++queue.oldest == queue.rows.size()) queue.oldest = 0;
  return before;
}

}  // namespace maya::simulator
