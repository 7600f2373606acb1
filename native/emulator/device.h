// State of the emulated devices of this process: properties, memory, streams, events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace maya {

// What config/gpu/<name>.yaml says, handed over by the capture as MAYA_GPU (see gpu_properties.cpp).
struct GpuProperties {
  std::string name;  // as cudaDeviceProp.name
  int compute_major, compute_minor;
  int num_sms;
  int64_t memory_bytes;  // cudaDeviceProp.totalGlobalMem
  int64_t l2_bytes;
  int64_t shared_bytes_per_block, shared_bytes_per_block_optin, shared_bytes_per_sm;
  int max_threads_per_sm, max_blocks_per_sm;
  int sm_clock_khz, memory_clock_khz, memory_bus_bits;
  int async_engines;
  int64_t context_bytes;  // device memory that a CUDA context takes
  // Channels of NCCL in a node: of rings, of messages to one peer, of NVLink SHARP (0: without).
  int nccl_channels, nccl_channels_per_peer, nccl_nvls_channels;
};
const GpuProperties& gpu();
int num_devices();     // visible devices: LOCAL_WORLD_SIZE of the emulated node
int current_device();  // of the calling thread
void set_current_device(int device);

// Device addresses come from anonymous mappings without reserve: only touched pages cost memory.
enum class Space { unknown, device, pinned_host, managed };
struct Allocation {
  uintptr_t address = 0;
  size_t bytes = 0;
  Space space = Space::unknown;
  int device = 0;
};
// Finds the allocation an address (also an interior one) belongs to; space unknown if none.
Allocation find_allocation(const void* pointer);

// Memory that a library takes for itself (communicator buffers, handles) without handing it out:
// it counts against the capacity of the device. False when it does not fit.
bool take_device_bytes(int device, int64_t bytes);
void give_device_bytes(int device, int64_t bytes);

// Small ids for the trace. Stream 0 is the legacy default stream, 1 the per-thread default stream.
// Handles given to the program are pointers or the reserved small values; the ids are dense.
int64_t stream_id(const void* stream_handle);
int64_t event_id(const void* event_handle);

// Bytes up to which payloads are really moved (copies, memsets, collectives).
inline constexpr size_t kPayloadLimitBytes = 64 << 10;

// Known integers move in collectives up to this: routing maps, of tokens times experts bytes.
inline constexpr size_t kIntegerPayloadLimitBytes = 4 << 20;

}  // namespace maya
