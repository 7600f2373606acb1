// NCCL groups: calls between the outermost ncclGroupStart and ncclGroupEnd of a thread are launched together.
#pragma once

#include <functional>
#include <string>

#include "payloads.h"

namespace maya::nccl {

// Launches a call, at the end of the group where one is open on this thread.
ncclResult_t launch(const CollectiveCall& call);

// Runs a step that waits for other ranks, at the end of the group where one is open on this thread, which
// then has the result of the first step that failed.
ncclResult_t wait_at_group_end(std::function<ncclResult_t()> step);

// What ncclGetLastError tells this thread.
void set_last_error(std::string text);

}  // namespace maya::nccl
