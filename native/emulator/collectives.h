// Hooks between the copies of the runtime and the payload exchange of small collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace maya {

// Small collectives complete lazily: their payload is fetched from the peers when somebody may look.
// Waits until the outputs of all pending collectives of this process are written. Called by the
// runtime at stream, event and device synchronisation: all ranks of a barrier have reached it then.
// Does not wait for messages: a receive may be posted early on a stream that the host does not wait for.
void complete_pending_collectives();

// Completes those pending collectives and messages whose output overlaps [address, address + bytes),
// or whose input does and has not left yet. Called before copies and memsets of up to
// kPayloadLimitBytes, for source and target.
void complete_pending_collectives(const void* address, size_t bytes);

// A kernel may write to these addresses: pending outputs around them will read as zero, as if the collective
// had been complete before.
void overwrite_pending_collectives(const std::vector<uintptr_t>& addresses);

}  // namespace maya
