// Recording of device calls: the one interface between the emulated libraries and the trace file.
//
// Every emulated entry point that matters to the timeline opens a `Call` first: it stamps the host
// gap of the calling thread, serialises the callers (the order of records is the global order) and
// on destruction stamps the end of the call, so that time inside the emulator is in no gap.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "../trace/format.h"

namespace maya {

using trace::Kind;

class Call {
 public:
  Call();
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Appends one record. The first record of a Call carries the host gap, further ones a gap of 0.
  // In a stream capture the record of a device operation goes to the graph instead.
  void record(Kind kind, std::initializer_list<int64_t> fields);
  void record(Kind kind, const int64_t* fields, int num_fields);

 private:
  uint32_t gap_ns_;
  uint8_t flags_;
};

// Id of an interned text (a kernel or range name); writes its `string` record at first use.
// The caller must be inside a Call.
int64_t intern(std::string_view text);
// Id of its own for a text that may be there already.
int64_t add_text(std::string_view text);

// Counts a call that leaves no record (queries, getters): for the call counts of the manifest.
// Costs one relaxed increment; `name` must be a string literal.
#define MAYA_COUNT_CALL()                               \
  do {                                                  \
    static ::maya::CallCounter maya_counter_{__func__}; \
    maya_counter_.increment();                          \
  } while (0)
class CallCounter {
 public:
  explicit CallCounter(const char* name);
  void increment();
  const char* name;
  uint64_t count = 0;
  CallCounter* next;
};

// Records that a call is not emulated, warns once on descriptor 2, and ends the process in strict
// mode (MAYA_STRICT=1). Returns after recording otherwise; the caller then returns its library's
// own "not supported" code.
void unemulated(const char* name);

// A message on descriptor 2: "maya: <text>". Never throws.
void warn(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace maya
