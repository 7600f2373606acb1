#include "payloads.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "call_site.h"
#include "known_bytes.h"
#include "pending_calls.h"
#include "rendezvous_text.h"
#include "solo_answers.h"

namespace maya {
namespace {

using exchange::Rendezvous;
using exchange::Signature;
using trace::CollectiveOp;

PendingCalls& pending_calls() {
  static auto* calls = new PendingCalls;  // outlives exit handlers
  return *calls;
}

void start_linked(const CollectiveCall& call) {
  ncclComm& comm = *call.comm;
  exchange::Key key{.unique_id = comm.unique_id, .number = 0, .purpose = exchange::Purpose::collective};
  CollectiveOp op = call.op;
  int slot = comm.rank;
  int num_slots = comm.num_ranks;
  if (is_message(call.op)) {
    const bool is_sender = call.op == CollectiveOp::send;
    key.purpose = exchange::Purpose::message;
    key.number = (is_sender ? comm.num_sent : comm.num_received)[call.peer]++;
    key.source = is_sender ? comm.rank : call.peer;
    key.destination = is_sender ? call.peer : comm.rank;
    op = CollectiveOp::send;
    slot = is_sender ? 0 : 1;
    num_slots = 2;
  } else {
    key.number = comm.num_collectives++;
  }
  const Signature signature{.op = static_cast<int32_t>(op),
                            .dtype = call.dtype,
                            .reduce_op = std::min<int32_t>(call.reduce_op, ncclNumOps),
                            .root = is_message(call.op) ? -1 : call.peer,
                            .count = static_cast<int64_t>(call.count)};
  Rendezvous* rendezvous = join(comm, key, signature, num_slots);
  const PayloadPlan plan = plan_payload(call);
  const bool contributes = plan.moves_data() && plan.send_bytes > 0;
  if (!contributes) exchange::arrive(rendezvous, slot, nullptr, 0);
  if (!plan.moves_data() || (plan.send_bytes == 0 && plan.receive_bytes == 0)) return;
  pending_calls().add({call, plan, rendezvous, slot, !contributes});
}

}  // namespace

void move_payloads(std::span<const CollectiveCall> calls) {
  static auto* solo = new SoloAnswers;  // outlives exit handlers
  // What a group sends is there before what it receives, in whatever order the calls were made.
  for (const bool is_receiving : {false, true}) {
    for (const CollectiveCall& call : calls) {
      if ((call.op == CollectiveOp::recv) != is_receiving) continue;
      is_linked() ? start_linked(call) : solo->answer(call);
      const PayloadPlan plan = plan_payload(call);
      if (!plan.moves_data()) overwrite_known_bytes(call.receive, plan.receive_bytes);
    }
  }
  constexpr size_t kMaxAdvancedCalls = 64;  // bounds the cost of a call; whoever waits looks at all
  pending_calls().advance(kMaxAdvancedCalls);
  pending_calls().limit();
}

void complete_pending_collectives() {
  pending_calls().complete([](const PendingCall& pending) { return !is_message(pending.call.op); });
}

void complete_pending_collectives(const void* address, size_t bytes) {
  const Range touched = range_of(address, bytes);
  pending_calls().complete([&](const PendingCall& pending) {
    return pending.output().overlaps(touched) || pending.input().overlaps(touched);
  });
}

void overwrite_pending_collectives(const std::vector<uintptr_t>& addresses) {
  pending_calls().overwrite(addresses);
}

void complete_pending_collectives(const ncclComm& comm) {
  pending_calls().complete([&](const PendingCall& pending) { return pending.call.comm == &comm; });
}

void forget_pending_collectives(const ncclComm& comm) { pending_calls().forget(comm); }

void wait_for_members(const ncclComm& comm, const Rendezvous& rendezvous, const char* action) {
  for (exchange::Wait wait;; wait.step()) {
    pending_calls().advance();
    std::vector<int> missing;
    for (int slot = 0; slot < rendezvous.num_slots; ++slot) {
      if (!exchange::has_arrived(&rendezvous, slot)) missing.push_back(slot);
    }
    if (missing.empty()) return;
    if (wait.is_over()) exchange::fail(text::missing_members(comm, action, missing));
  }
}

Rendezvous* join(const ncclComm& comm, const exchange::Key& key, const Signature& signature, int num_slots) {
  const std::string site = call_site();
  exchange::set_newest_call(text::describe(comm, key, signature) + at_call_site(site));
  Rendezvous* rendezvous = exchange::meet(key, signature, num_slots, site);
  if (!text::agree(rendezvous->signature, signature)) {
    exchange::fail(text::disagreement(comm, *rendezvous, signature, site));
  }
  return rendezvous;
}

}  // namespace maya
