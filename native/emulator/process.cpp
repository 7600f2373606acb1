// Life of the process (fork, exit) and the C functions for the start-up hook of the capture.
#include <pthread.h>
#include <unistd.h>

#include <string>

#include "allocations.h"
#include "collectives.h"
#include "device_table.h"
#include "recorder.h"
#include "recorder_state.h"
#include "runtime.h"

namespace maya {

// Used where the collectives are not built in.
__attribute__((weak)) void complete_pending_collectives() {}
__attribute__((weak)) void complete_pending_collectives(const void* /*address*/, size_t /*bytes*/) {}
__attribute__((weak)) void overwrite_pending_collectives(const std::vector<uintptr_t>& /*addresses*/) {}

namespace {

void after_fork_in_child() {
  reset_after_fork_in_child();
  reset_host_functions_after_fork();
  forget_devices();
}

// Cheap, as shells and helpers of the program load this library too.
__attribute__((constructor)) void set_up() {
  pthread_atfork(lock_for_fork, unlock_after_fork_in_parent, after_fork_in_child);
}

// A program that ends without maya_flush leaves a complete file as well.
__attribute__((destructor)) void tear_down() { finish_trace(); }

}  // namespace
}  // namespace maya

extern "C" {

void maya_discount(int64_t ns) { maya::discount_host_time(ns); }
void maya_mark(const char* name, int64_t value) { maya::record_mark(name, value); }
void maya_flush() { maya::finish_trace(); }
int64_t maya_repetitions() { return maya::count_repetitions(); }
int64_t maya_matrix_operations() { return maya::count_matrix_operations(); }
// The most memory of the thread's device that this process held, without the context.
int64_t maya_peak_device_bytes() { return maya::peak_device_bytes_used(maya::current_device()); }
// The text lives until the next call of this function in the same thread.
const char* maya_call_counts() {
  thread_local std::string text;
  text = maya::call_counts_json();
  return text.c_str();
}

}  // extern "C"
