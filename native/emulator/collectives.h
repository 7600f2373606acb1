// Hooks between the copies of the runtime and the payload exchange of small collectives.
#pragma once

#include <cstddef>

namespace maya {

// Small collectives complete lazily: their payload is fetched from the peers when somebody may look.
// Waits until the outputs of all pending collectives of this process are written. Called by the
// runtime before device-to-host copies and at stream, event and device synchronisation.
void complete_pending_collectives();

// Completes those pending collectives whose output overlaps [address, address + bytes). Called
// before host-to-device and device-to-device copies and memsets of up to kPayloadLimitBytes.
void complete_pending_collectives(const void* address, size_t bytes);

}  // namespace maya
