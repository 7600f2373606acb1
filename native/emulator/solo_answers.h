// Collectives of a rank that runs alone.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "payload_plan.h"

namespace maya {

// Writes outputs at once, as if all absent ranks held the same data as this one.
class SoloAnswers {
 public:
  void answer(const CollectiveCall& call);

 private:
  void write_output(const CollectiveCall& call, const PayloadPlan& plan, const std::vector<char>& own);
  void sent(const CollectiveCall& call, std::vector<char> payload);
  void received(const CollectiveCall& call, size_t bytes);

  std::mutex mutex_;
  std::map<int64_t, std::deque<std::vector<char>>> to_self_;  // by unique id of the communicator
  std::map<size_t, std::vector<char>> last_sent_;             // by size in bytes
};

// Ends the process: the host reads what only absent ranks could have sent, as the parts of an all-to-all of
// integers where this rank's own parts are not alike.
[[noreturn]] void fail_for_absent_ranks();

}  // namespace maya
