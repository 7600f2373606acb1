// Recorder functions for the runtime's own files only: waits, the modelled device clock, life of the process.
#pragma once

#include <cstdint>
#include <string>

namespace maya {

// Time that a blocking call spends inside the emulator after its Call was closed, as waiting for the
// payload of a collective: the destructor stamps the end of the call again, so that it is in no gap.
class UntimedSection {
 public:
  UntimedSection() = default;
  ~UntimedSection();
  UntimedSection(const UntimedSection&) = delete;
  UntimedSection& operator=(const UntimedSection&) = delete;
};

// Takes time that the start-up hook has spent on this thread since its newest call out of the next gap.
void discount_host_time(int64_t ns);

// A device clock that advances with the work issued (see recorder.cpp), the same in every run: what
// elapsed times of events are answered from. Inside a Call.
int64_t device_clock_ns();

// Writes the `end` record and completes the file; nothing is recorded afterwards.
void finish_trace();

// How often the newest period of device operations has repeated; 0 below two.
int64_t count_repetitions();

// Matrix products, convolutions and attention so far.
int64_t count_matrix_operations();

// JSON object of call counts, with the calls that were not emulated under "unemulated", and
// the number of recorded calls and the median time inside of one under "recorded" and "overhead_ns_median".
std::string call_counts_json();

void record_mark(const char* name, int64_t value);

// Around a fork: no thread is inside the recorder while the process is copied, and the child of a
// recording process records nothing.
void lock_for_fork();
void unlock_after_fork_in_parent();
void reset_after_fork_in_child();

}  // namespace maya
