// NCCL groups: calls between the outermost ncclGroupStart and ncclGroupEnd of a thread are launched together.
#pragma once

#include <functional>

#include "payloads.h"

namespace maya::nccl {

// Launches a call, at the end of the group where one is open on this thread.
void launch(const CollectiveCall& call);

// Runs a step that waits for other ranks, at the end of the group where one is open on this thread.
void wait_at_group_end(std::function<void()> step);

}  // namespace maya::nccl
