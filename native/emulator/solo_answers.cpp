#include "solo_answers.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "call_site.h"
#include "exchange.h"
#include "known_bytes.h"
#include "reduce.h"
#include "rendezvous_text.h"

namespace maya {
namespace {

std::mutex exchange_mutex;
std::string newest_exchange;  // whose parts cannot be made up

void remember_exchange(const CollectiveCall& call) {
  const exchange::Key key{.unique_id = call.comm->unique_id,
                          .number = call.comm->num_launches - 1,
                          .purpose = exchange::Purpose::collective};
  const exchange::Signature signature{.op = static_cast<int32_t>(call.op),
                                      .dtype = call.dtype,
                                      .reduce_op = -1,
                                      .root = -1,
                                      .count = static_cast<int64_t>(call.count)};
  std::lock_guard lock(exchange_mutex);
  newest_exchange = text::describe(*call.comm, key, signature) + at_call_site(call_site());
}

bool has_equal_parts(const CollectiveCall& call, const std::vector<char>& data) {
  const size_t bytes = call.count * element_bytes(call.dtype);
  return std::memcmp(data.data(), data.data() + bytes, data.size() - bytes) == 0;
}

}  // namespace

void fail_for_absent_ranks() {
  const std::string site = call_site();
  std::lock_guard lock(exchange_mutex);
  exchange::fail("rank " + std::to_string(exchange::global_rank()) + " runs alone, and reads on the host" +
                 at_call_site(site) + " what absent ranks sent it in " + newest_exchange +
                 ". Its own parts differ, so theirs cannot be told from them. Capture all ranks together: "
                 "capture.mode=linked.");
}

void SoloAnswers::answer(const CollectiveCall& call) {
  using enum trace::CollectiveOp;
  const PayloadPlan plan = plan_payload(call);
  if (!plan.moves_data()) return;
  Contribution own{{}, Origin::program};
  if (plan.send_bytes > 0) {
    own = contribution(call, plan.send_bytes);
    if (own.data.empty()) return overwrite_known_bytes(call.receive, plan.receive_bytes);
  }
  if (call.op == all_to_all && plan.is_integer && own.origin == Origin::program &&
      !has_equal_parts(call, own.data)) {
    own.origin = Origin::absent;
    remember_exchange(call);
  }
  if (call.op == send) return sent(call, std::move(own.data));
  if (plan.receive_bytes == 0 || !is_accessible(call.receive, plan.receive_bytes)) return;
  settle_known_bytes(call.receive, plan.receive_bytes);
  write_output(call, plan, own.data);
  keep_known_bytes(call.receive, plan.receive_bytes, own.origin);
}

void SoloAnswers::write_output(const CollectiveCall& call, const PayloadPlan& plan,
                               const std::vector<char>& own) {
  using enum trace::CollectiveOp;
  const size_t bytes = call.count * element_bytes(call.dtype);
  const int num_ranks = call.comm->num_ranks;
  const size_t own_offset = bytes * static_cast<size_t>(call.comm->rank);
  auto* output = static_cast<char*>(call.receive);
  auto reduce_own = [&](const char* input) {
    reduce_copies(builtin_operator(call.reduce_op), call.dtype, call.count, input, num_ranks, output);
  };
  switch (call.op) {
    case all_reduce:
    case reduce:
      return reduce_own(own.data());
    case reduce_scatter:
      return reduce_own(own.data() + own_offset);
    case all_gather:
    case gather:
      for (int i = 0; i < num_ranks; ++i) std::memcpy(output + bytes * i, own.data(), bytes);
      return;
    case all_to_all:
      for (int i = 0; i < num_ranks; ++i) std::memcpy(output + bytes * i, own.data() + own_offset, bytes);
      return;
    case broadcast:
      // What an absent root holds cannot be known; frameworks broadcast what all ranks hold alike.
      if (call.send != call.receive && is_accessible(call.send, bytes)) {
        settle_known_bytes(call.send, bytes);
        std::memmove(call.receive, call.send, bytes);
      }
      return;
    case scatter:
      if (!own.empty()) std::memcpy(output, own.data() + own_offset, bytes);
      return;
    case recv:
      return received(call, bytes);
    case send:
      return;
  }
}

void SoloAnswers::sent(const CollectiveCall& call, std::vector<char> payload) {
  std::lock_guard lock(mutex_);
  if (call.peer == call.comm->rank) to_self_[call.comm->unique_id].push_back(payload);
  last_sent_[payload.size()] = std::move(payload);
}

// A message of an absent rank reads as the last one of its size that this rank has sent itself: shapes
// and counts which neighbours tell each other are alike. Else as zeros.
void SoloAnswers::received(const CollectiveCall& call, size_t bytes) {
  std::lock_guard lock(mutex_);
  if (call.peer == call.comm->rank) {
    auto& messages = to_self_[call.comm->unique_id];
    if (!messages.empty()) {
      std::memcpy(call.receive, messages.front().data(), std::min(bytes, messages.front().size()));
      messages.pop_front();
      return;
    }
  }
  if (const auto last = last_sent_.find(bytes); last != last_sent_.end()) {
    std::memcpy(call.receive, last->second.data(), bytes);
  } else {
    std::memset(call.receive, 0, bytes);
  }
}

}  // namespace maya
