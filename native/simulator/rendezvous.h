// Rendezvous: where collectives, sends and receives of several ranks meet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "operations.h"

namespace maya::simulator {

// A rendezvous is ready when all its rows have arrived, and ends the longest of their durations later.
class RendezvousTable {
 public:
  explicit RendezvousTable(std::span<const int64_t> arrivals) : entries_(arrivals.size()) {
    for (size_t i = 0; i < arrivals.size(); ++i) entries_[i].missing = arrivals[i];
  }

  // Returns true when `row` was the last to arrive; then `rows_of(id)` and `end_ns(id)` hold.
  bool arrive(int64_t id, int64_t row, int64_t time_ns, int64_t duration_ns) {
    Entry& entry = entries_[id];
    if (entry.missing == 0) {
      throw std::invalid_argument("rendezvous " + std::to_string(id) + " has more rows than arrivals");
    }
    entry.ready_ns = std::max(entry.ready_ns, time_ns);
    entry.duration_ns = std::max(entry.duration_ns, duration_ns);
    entry.rows.push_back(row);
    return --entry.missing == 0;
  }

  int64_t end_ns(int64_t id) const { return entries_[id].ready_ns + entries_[id].duration_ns; }
  std::vector<int64_t> take_rows(int64_t id) { return std::move(entries_[id].rows); }

 private:
  struct Entry {
    int64_t missing = 0;
    int64_t ready_ns = 0;
    int64_t duration_ns = 0;
    std::vector<int64_t> rows;
  };
  std::vector<Entry> entries_;
};

}  // namespace maya::simulator
