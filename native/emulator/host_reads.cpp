#include "host_reads.h"

#include <string.h>

#include <atomic>
#include <deque>

#include "device.h"
#include "solo_answers.h"

namespace maya {
namespace {

using Observer = void (*)(int64_t bytes, int origin);
std::atomic<Observer> observer{nullptr};

// Values that the next reads of a thread are answered with.
thread_local std::deque<int64_t> answers;

}  // namespace

void finish_host_read(void* target, size_t bytes, Origin origin) {
  if (!answers.empty() && bytes <= sizeof(int64_t)) {
    memcpy(target, &answers.front(), bytes);  // little endian: also right for narrower integers
    answers.pop_front();
    return;
  }
  if (origin == Origin::absent) fail_for_absent_ranks();
  const Observer notify = observer.load(std::memory_order_relaxed);
  if (origin != Origin::program && bytes <= kPayloadLimitBytes && notify != nullptr) {
    notify(static_cast<int64_t>(bytes), static_cast<int>(origin));
  }
}

}  // namespace maya

extern "C" {

// For the start-up hook. The observer is called on the thread that reads.
void maya_observe_reads(void (*observer)(int64_t bytes, int origin)) { maya::observer = observer; }

// Integers that the operator which this thread is about to run reads of its own intermediate results, as the
// number of elements that `nonzero` finds. Replaces what is left of earlier ones.
void maya_answer_reads(const int64_t* values, int count) { maya::answers.assign(values, values + count); }

void maya_keep_known(const void* address, size_t bytes, int origin) {
  maya::keep_known_bytes(address, bytes, static_cast<maya::Origin>(origin));
}

void maya_keep_zeros(const void* address, size_t bytes) {
  maya::overwrite_known_bytes(address, bytes);
  maya::keep_known_bytes(address, bytes);
}

int maya_origin(const void* address, size_t bytes) {
  return static_cast<int>(maya::origin_of_bytes(address, bytes));
}

}  // extern "C"
