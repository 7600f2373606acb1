// Host gaps, the global order of calls, and the way of records into the trace or a captured graph.
#include "recorder.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "call_site.h"
#include "device.h"
#include "graph_capture.h"
#include "overhead.h"
#include "recorder_state.h"
#include "repetitions.h"
#include "trace_writer.h"

namespace maya {
namespace {

// Reading the CPU clock of a thread is a system call, so it is read where the thread may have slept.
constexpr int64_t kLongGapNs = 30'000;
constexpr int64_t kLongCallNs = 20'000;
constexpr int64_t kBlockedNs = 20'000;
constexpr int kMaxFields = 24;
constexpr int kStrictExitCode = 86;

// The modelled device clock: a launch and the traffic of copies; see cuda event timing in docs.
constexpr int64_t kNominalOperationNs = 5'000;

struct ThreadState {
  int64_t last_end_ns;     // monotonic clock at the end of the newest call
  int64_t cpu_read_at_ns;  // monotonic clock at the newest reading of the CPU clock
  int64_t cpu_ns;          // that reading
  int64_t carried_gap_ns;  // of calls that left no record
  int64_t begin_ns;        // monotonic clock at the begin of the newest call
  bool has_recorded;       // that call left a record
  bool is_timed;           // its time is the cost of recording alone
  int depth;               // Calls open on this thread
  int index;               // thread number in the trace plus one; 0: none yet
  uint8_t carried_flags;
  uint8_t role_flags;
};
// Zero-initialised and initial-exec: access costs one instruction and needs no constructor.
thread_local ThreadState thread_state __attribute__((tls_model("initial-exec")));

enum class WriterState : uint8_t { unknown, writing, off };

struct Recorder {
  std::mutex mutex;  // held by the thread with an open Call
  TraceWriter writer;
  WriterState writer_state = WriterState::unknown;
  int num_threads = 0;
  std::atomic<int> last_thread = 0;  // index of the thread that made the newest call
  int64_t num_calls = 0;
  int64_t num_recorded_calls = 0;
  int64_t device_clock_ns = 0;
  std::unordered_map<std::string_view, int64_t> string_ids;
  std::vector<std::string*> strings;  // by id - 1
  std::map<std::string, uint64_t> unemulated_counts;
  std::map<std::string, std::string> unemulated_callers;  // of the first call
  Repetitions repetitions;
  int64_t num_matrix_operations = 0;
  OverheadHistogram overhead;
};

// Never destroyed: library threads may call during the exit of the process.
Recorder& recorder() {
  static Recorder& instance = *new Recorder;
  return instance;
}

std::atomic<CallCounter*> counters{nullptr};

int64_t clock_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void read_cpu_clock(ThreadState& state) {
  state.cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  state.cpu_read_at_ns = clock_ns(CLOCK_MONOTONIC);
}

void name_thread(Recorder& r, ThreadState& state) {
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  // ProcessGroupNCCL polls from these threads whether or not the program works.
  if (strcmp(name, "pt_nccl_watchdg") == 0 || strcmp(name, "pt_nccl_heartbt") == 0) {
    state.role_flags = trace::kNotWorkload;
  }
  state.index = ++r.num_threads;
}

int64_t env_int(const char* name, int64_t fallback) {
  const char* text = getenv(name);
  return text != nullptr && *text != '\0' ? strtoll(text, nullptr, 10) : fallback;
}

// Asks the scheduler for time slices as long as it grants (100 ms, sched(7); Linux before 6.12 has no say in
// this): what other ranks leave in the caches of a core that is shared then costs host time less often.
// Threads that this one starts inherit it.
void take_long_time_slices() {
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
  } attributes{};
  attributes.size = sizeof(attributes);
  attributes.nice = getpriority(PRIO_PROCESS, 0);
  attributes.runtime_ns = 100'000'000;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

// Opens the trace at the first record, with the texts known so far. Environment is read here and not
// earlier, as a rank may be forked from a process that has imported everything already.
bool writing(Recorder& r) {
  if (r.writer_state != WriterState::unknown) return r.writer_state == WriterState::writing;
  const char* dir = getenv("MAYA_TRACE_DIR");
  if (dir == nullptr || *dir == '\0' || !r.writer.open(dir, env_int("RANK", 0))) {
    r.writer_state = WriterState::off;
    return false;
  }
  r.writer_state = WriterState::writing;
  take_long_time_slices();
  for (size_t i = 0; i < r.strings.size(); ++i) {
    r.writer.append_text(Kind::string, 0, static_cast<int64_t>(i) + 1, *r.strings[i]);
  }
  return true;
}

// The `thread` record goes in front of the thread's first record.
thread_local bool thread_announced __attribute__((tls_model("initial-exec")));

void announce_thread(Recorder& r, const ThreadState& state) {
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  r.writer.append_text(Kind::thread, static_cast<uint16_t>(state.index - 1), state.index - 1, name);
  thread_announced = true;
}

constexpr bool is_device_operation(Kind kind) { return kind >= Kind::kernel && kind <= Kind::graph_launch; }

// Leading fields that tell operations apart; the rest (scalars, sequence numbers) differs between
// iterations that are otherwise alike.
int num_identity_fields(Kind kind, int num_fields) {
  switch (kind) {
    case Kind::kernel:
      return std::min(num_fields, 10);
    case Kind::collective:
      return std::min(num_fields, 7);
    default:
      return num_fields;
  }
}

int64_t nominal_duration_ns(Kind kind, const int64_t* fields, int num_fields) {
  int64_t bytes = 0;
  if (kind == Kind::memcpy && num_fields > 2) bytes = fields[2];
  if (kind == Kind::memset && num_fields > 1) bytes = fields[1];
  return kNominalOperationNs + bytes / 1000;  // 1 TB/s
}

void count_operation(Recorder& r, Kind kind, const int64_t* fields, int num_fields) {
  r.device_clock_ns += nominal_duration_ns(kind, fields, num_fields);
  uint64_t hash = static_cast<uint64_t>(kind);
  for (int i = 0; i < num_identity_fields(kind, num_fields); ++i) {
    hash = (hash ^ static_cast<uint64_t>(fields[i])) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 29;
  }
  bool is_matrix_work = kind == Kind::gemm || kind == Kind::conv || kind == Kind::attention;
  r.num_matrix_operations += is_matrix_work ? 1 : 0;
  r.repetitions.push(hash, is_matrix_work);
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  out += '"';
}

}  // namespace

Call::Call() {
  ThreadState& state = thread_state;
  gap_ns_ = 0;
  flags_ = state.role_flags;
  if (state.depth++ > 0) return;  // a library entry point that calls another one: time inside is in no gap

  int64_t now_ns = clock_ns(CLOCK_MONOTONIC);
  Recorder& r = recorder();
  bool is_first = state.index == 0;
  int64_t gap_ns = now_ns - state.last_end_ns;
  if (is_first) {
    // What the thread did before its first call is known from its CPU clock alone.
    read_cpu_clock(state);
    gap_ns = state.cpu_ns;
    if (gettid() != getpid()) flags_ |= trace::kBlocked;
  } else if (gap_ns > kLongGapNs || r.last_thread.load(std::memory_order_relaxed) != state.index) {
    int64_t cpu_before_ns = state.cpu_ns, read_before_ns = state.cpu_read_at_ns;
    read_cpu_clock(state);
    int64_t off_cpu_ns = (state.cpu_read_at_ns - read_before_ns) - (state.cpu_ns - cpu_before_ns);
    if (off_cpu_ns > kBlockedNs) flags_ |= trace::kBlocked;
    // Reading the clock is where a thread often loses its core, after the end of the gap was stamped: then
    // that time is not the gap's.
    int64_t on_cpu_ns = state.cpu_read_at_ns - state.last_end_ns - std::max<int64_t>(off_cpu_ns, 0);
    gap_ns = std::clamp<int64_t>(on_cpu_ns, 0, gap_ns);
  }
  gap_ns += state.carried_gap_ns;
  flags_ |= state.carried_flags;
  gap_ns_ = static_cast<uint32_t>(std::clamp<int64_t>(gap_ns, 0, UINT32_MAX));

  r.mutex.lock();
  // The end of a call is stamped once it has let go of the lock, so its successor counts it.
  if (state.has_recorded && state.is_timed) r.overhead.add(state.last_end_ns - state.begin_ns);
  state.begin_ns = now_ns;
  state.has_recorded = false;
  state.is_timed = true;
  if (is_first) name_thread(r, state);
  flags_ |= state.role_flags;
  ++r.num_calls;
}

Call::~Call() {
  ThreadState& state = thread_state;
  if (--state.depth > 0) return;
  Recorder& r = recorder();
  state.carried_gap_ns = gap_ns_;
  state.carried_flags = gap_ns_ > 0 ? flags_ & trace::kBlocked : 0;
  int previous_thread = r.last_thread.load(std::memory_order_relaxed);
  r.last_thread.store(state.index, std::memory_order_relaxed);
  r.mutex.unlock();
  state.last_end_ns = clock_ns(CLOCK_MONOTONIC);
  // Start a fresh window of CPU time where this very call may have waited or lost its core: that time is in
  // no gap and must not be taken off the next long one.
  if (previous_thread != state.index || state.last_end_ns - state.begin_ns > kLongCallNs) {
    read_cpu_clock(state);
    state.last_end_ns = state.cpu_read_at_ns;
  }
}

void Call::record(Kind kind, std::initializer_list<int64_t> fields) {
  record(kind, fields.begin(), static_cast<int>(fields.size()));
}

void Call::record(Kind kind, const int64_t* fields, int num_fields) {
  if (num_captures_open() > 0 && capture_record(kind, fields, num_fields)) return;
  Recorder& r = recorder();
  if (is_device_operation(kind)) count_operation(r, kind, fields, num_fields);
  if (writing(r)) {
    const ThreadState& state = thread_state;
    if (!thread_announced) announce_thread(r, state);
    uint8_t flags = flags_ | (is_replaying_graph() ? trace::kFromGraph : 0);
    r.writer.append(kind, flags, static_cast<uint16_t>(state.index - 1), gap_ns_, fields, num_fields);
  }
  gap_ns_ = 0;
  flags_ &= static_cast<uint8_t>(~trace::kBlocked);
  if (!thread_state.has_recorded) ++r.num_recorded_calls;
  thread_state.has_recorded = true;
}

UntimedSection::~UntimedSection() {
  ThreadState& state = thread_state;
  read_cpu_clock(state);
  state.last_end_ns = state.cpu_read_at_ns;
  state.is_timed = false;
}

void discount_host_time(int64_t ns) {
  ThreadState& state = thread_state;
  state.last_end_ns = std::min(state.last_end_ns + ns, clock_ns(CLOCK_MONOTONIC));
}

int64_t intern(std::string_view text) {
  Recorder& r = recorder();
  if (auto found = r.string_ids.find(text); found != r.string_ids.end()) return found->second;
  const int64_t id = add_text(text);
  r.string_ids.emplace(*r.strings.back(), id);
  return id;
}

int64_t add_text(std::string_view text) {
  Recorder& r = recorder();
  auto* kept = new std::string(text);
  r.strings.push_back(kept);
  int64_t id = static_cast<int64_t>(r.strings.size());
  if (writing(r)) {
    if (!thread_announced) announce_thread(r, thread_state);
    r.writer.append_text(Kind::string, static_cast<uint16_t>(thread_state.index - 1), id, *kept);
  }
  return id;
}

CallCounter::CallCounter(const char* counter_name) : name(counter_name) {
  next = counters.load(std::memory_order_relaxed);
  while (!counters.compare_exchange_weak(next, this, std::memory_order_release)) {
  }
}

void CallCounter::increment() { std::atomic_ref<uint64_t>(count).fetch_add(1, std::memory_order_relaxed); }

void unemulated(const char* name) {
  const std::string library = calling_library(), site = call_site();
  Call call;
  Recorder& r = recorder();
  if (r.unemulated_counts[name]++ == 0) {
    r.unemulated_callers[name] = library + at_call_site(site);
    warn(
        "%s, called by %s%s, is not emulated; the program gets its library's error code for an unsupported "
        "call",
        name, library.c_str(), at_call_site(site).c_str());
  }
  call.record(Kind::unemulated, {intern(name)});
  if (env_int("MAYA_STRICT", 0) == 1) {
    warn("MAYA_STRICT is set: the process ends here");
    finish_trace();
    _exit(kStrictExitCode);
  }
}

void warn(const char* format, ...) {
  char text[4096];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  if (length >= 0) dprintf(STDERR_FILENO, "maya: %s\n", text);
}

int64_t device_clock_ns() { return recorder().device_clock_ns; }

void finish_trace() {
  Call call;
  Recorder& r = recorder();
  if (r.writer_state == WriterState::writing) {
    call.record(Kind::end, {r.num_calls});
    r.writer.close();
  }
  r.writer_state = WriterState::off;
}

int64_t count_repetitions() {
  Call call;
  return recorder().repetitions.count();
}

int64_t count_matrix_operations() {
  Call call;
  return recorder().num_matrix_operations;
}

void record_mark(const char* name, int64_t value) {
  Call call;
  call.record(Kind::mark, {intern(name), value});
}

std::string call_counts_json() {
  Call call;
  // One name may be counted from several places.
  std::map<std::string, uint64_t> counts;
  for (CallCounter* c = counters.load(std::memory_order_acquire); c != nullptr; c = c->next) {
    uint64_t count = std::atomic_ref<uint64_t>(c->count).load(std::memory_order_relaxed);
    if (count > 0) counts[c->name] += count;
  }
  auto members = [](const std::map<std::string, uint64_t>& values) {
    std::string out;
    for (const auto& [name, count] : values) {
      if (!out.empty()) out += ", ";
      append_json_string(out, name);
      out += ": " + std::to_string(count);
    }
    return out;
  };
  std::string calls = members(counts);
  if (!calls.empty()) calls += ", ";
  std::string callers;
  for (const auto& [name, caller] : recorder().unemulated_callers) {
    if (!callers.empty()) callers += ", ";
    append_json_string(callers, name);
    callers += ": ";
    append_json_string(callers, caller);
  }
  const OverheadHistogram& overhead = recorder().overhead;
  return "{" + calls + "\"unemulated\": {" + members(recorder().unemulated_counts) +
         "}, \"unemulated_callers\": {" + callers +
         "}, \"recorded\": " + std::to_string(recorder().num_recorded_calls) +
         ", \"overhead_ns_median\": " + std::to_string(overhead.median_ns()) + "}";
}

void lock_for_fork() { recorder().mutex.lock(); }

void unlock_after_fork_in_parent() { recorder().mutex.unlock(); }

void reset_after_fork_in_child() {
  Recorder& r = recorder();
  r.mutex.unlock();
  if (r.writer_state == WriterState::writing) {
    r.writer.abandon();
    r.writer_state = WriterState::off;
  } else {
    r.writer_state = WriterState::unknown;
  }
  thread_state = ThreadState{};
  thread_announced = false;
  r.num_threads = 0;
  r.last_thread = 0;
  r.num_calls = 0;
  r.num_recorded_calls = 0;
  r.device_clock_ns = 0;
  r.repetitions = Repetitions{};
  r.num_matrix_operations = 0;
  r.overhead = OverheadHistogram{};
  r.unemulated_counts.clear();
  r.unemulated_callers.clear();
  for (CallCounter* c = counters.load(); c != nullptr; c = c->next) c->count = 0;
}

}  // namespace maya
