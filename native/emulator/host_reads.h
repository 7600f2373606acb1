// What the host reads of device memory, and which of it was made up.
#pragma once

#include <cstddef>

#include "known_bytes.h"

namespace maya {

// Called after `bytes` at `target` were read from device memory, with their origin. Puts an answer there that
// the start-up hook has left for this read, and tells the hook of values that no real device would have
// given.
void finish_host_read(void* target, size_t bytes, Origin origin);

}  // namespace maya
