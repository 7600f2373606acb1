// Writes the trace file of this process through a moving memory-mapped window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "../trace/format.h"

namespace maya {

// Not thread-safe: the recorder serialises its callers.
class TraceWriter {
 public:
  // Creates `dir`/rank<rank>.trace. False, after a warning, when the file exists already (another
  // process of this rank writes it) or cannot be made.
  bool open(const char* dir, int64_t rank);
  bool is_open() const { return descriptor_ >= 0; }

  void append(trace::Kind kind, uint8_t flags, uint16_t thread, uint32_t gap_ns, const int64_t* fields,
              int num_fields);
  // A `string` or `thread` record; texts beyond kMaxTextBytes are cut.
  void append_text(trace::Kind kind, uint16_t thread, int64_t id, std::string_view text);

  // Cuts the file to the records it holds.
  void close();
  // Lets go of the file without changing it: for the child of a fork.
  void abandon();

 private:
  char* reserve(size_t bytes);
  bool move_window();
  void commit(char* record, trace::Kind kind, uint8_t flags, uint16_t thread, uint32_t gap_ns,
              size_t payload_bytes);

  int descriptor_ = -1;
  char* window_ = nullptr;
  uint64_t window_offset_ = 0;  // of the window in the file
  size_t position_ = 0;         // of the next record in the window
  std::string path_;
};

}  // namespace maya
