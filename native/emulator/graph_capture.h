// Stream capture as the recorder sees it: while a stream captures, records of its operations become
// nodes of a graph.
#pragma once

#include <cstdint>

#include "recorder.h"

namespace maya {

int num_captures_open();
// True when the record belongs to a capturing stream and was kept in its graph. Inside a Call.
bool capture_record(Kind kind, const int64_t* fields, int num_fields);
// True while the calling thread re-issues the operations of a launched graph.
bool is_replaying_graph();

}  // namespace maya
