// Sizes as in NCCL 2.30.7 (NVIDIA/nccl@5067397) with cuMem allocations, the default of drivers for CUDA 12
// and later: every allocation is a page of its own at least, and connections are made when an algorithm
// first needs them (NCCL_RUNTIME_CONNECT). Sources are named at each number. How many channels a GPU has is
// in config/gpu.
//
// Nodes: a communicator of at most as many ranks as the node has GPUs is taken to lie within one node, a
// larger one to fill its nodes in the order of its ranks.
#include "nccl_memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <string>
#include <utility>

#include "allocations.h"
#include "communicator.h"
#include "device.h"
#include "device_table.h"
#include "nccl_group.h"
#include "recorder.h"

namespace maya::nccl {
namespace {

// Buffers of one connection, one for each protocol: src/init.cc, computeBuffSizes; src/include/device.h.
constexpr int64_t kSteps = 8;
constexpr int64_t kLlBytes = 8 * 512 * kSteps * 16;      // lines a thread, threads, bytes a line
constexpr int64_t kLl128Bytes = 120 * 640 * kSteps * 8;  // elements a thread, threads, bytes an element
constexpr int64_t kDefaultSimpleBytes = 4 << 20;
constexpr int64_t kFlagBytes = 4096;  // ncclSendMem, ncclRecvMem (src/include/comm.h)

constexpr int64_t kNvlsStepBytes = 128 << 10;  // NCCL_NVLS_CHUNKSIZE, src/transport/nvls.cc

// Messages between nodes share one pool a direction: src/transport/net.cc, sharedNetBuffersInit.
constexpr int64_t kSharedSteps = 16, kNetworkChunkBytes = 128 << 10;

// Between nodes the NICs limit the channels: 16, and 2 for a pair of ranks, on two AWS p5.48xlarge (log in
// the NCCL tests of aws-do-eks).
constexpr int kNetworkChannels = 16, kNetworkChannelsPerPeer = 2;

// From here NVLink SHARP is the faster one in NCCL's model of time for 8 H100 (src/graph/tuning.cc): 25 us at
// 306 GB/s against 15 us at 81 GB/s of a ring with the LL protocol.
constexpr int64_t kNvlsFromBytes = 1 << 20;

std::array<std::atomic<int64_t>, kMaxDevices> nccl_bytes, peak_nccl_bytes;

int64_t environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::atoll(text);
}

int64_t pages(int64_t bytes) { return static_cast<int64_t>(round_to_pages(static_cast<size_t>(bytes))); }

int node_size() { return std::max(num_installed_devices(), 1); }
bool spans_nodes(const ncclComm& comm) { return comm.num_ranks > node_size(); }
int ranks_in_node(const ncclComm& comm) { return std::min(comm.num_ranks, node_size()); }
bool is_in_node(const ncclComm& comm, int peer) { return peer / node_size() == comm.rank / node_size(); }

int num_channels(const ncclComm& comm) {
  int64_t channels = gpu().nccl_channels;
  if (spans_nodes(comm)) channels = std::min<int64_t>(channels, kNetworkChannels);
  channels = std::min(channels, environment("NCCL_MAX_NCHANNELS", channels));
  return static_cast<int>(std::max(channels, environment("NCCL_MIN_NCHANNELS", channels)));
}

// src/graph/paths.cc, ncclTopoComputeP2pChannels
int num_message_channels(const ncclComm& comm) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(num_channels(comm))));
}

int num_channels_per_peer(const ncclComm& comm) {
  const int channels = spans_nodes(comm) ? kNetworkChannelsPerPeer : gpu().nccl_channels_per_peer;
  return std::min(channels, num_message_channels(comm));
}

bool has_nvls(const ncclComm& comm) {
  return gpu().nccl_nvls_channels > 0 && ranks_in_node(comm) > 2 && environment("NCCL_NVLS_ENABLE", 2) != 0;
}

// The buffers of a connection in the memory of the sender and of the receiver. GPUs of compute capability
// 8.0 read from their peers, the others write to them: src/graph/paths.cc, ncclTopoCheckP2p;
// src/transport/p2p.cc, p2pSendSetup and p2pRecvSetup.
struct ConnectionBytes {
  int64_t send, receive;
};
ConnectionBytes connection_bytes() {
  const int64_t simple_bytes = environment("NCCL_BUFFSIZE", kDefaultSimpleBytes);
  const bool is_reading = gpu().compute_major == 8 && gpu().compute_minor == 0;
  return {pages(kFlagBytes + (is_reading ? simple_bytes : 0)),
          pages(kFlagBytes + kLlBytes + kLl128Bytes + (is_reading ? 0 : simple_bytes))};
}

// A send and a receive connection on every channel. The neighbours of a ring are in the node for all but the
// ranks at its border, whose network buffers are about as large.
int64_t neighbour_bytes(const ncclComm& comm) {
  const ConnectionBytes bytes = connection_bytes();
  return num_channels(comm) * (bytes.send + bytes.receive);
}

// src/transport/nvls.cc, ncclNvlsBufferSetup
int64_t nvls_bytes(const ncclComm& comm) {
  return pages(int64_t{2} * gpu().nccl_nvls_channels * kSteps * kNvlsStepBytes * ranks_in_node(comm));
}

int64_t add_send(ncclComm& comm, int peer) {
  Connections& connections = comm.connections;
  if (is_in_node(comm, peer)) {
    return connections.sends.insert(peer).second ? num_channels_per_peer(comm) * connection_bytes().send : 0;
  }
  if (std::exchange(connections.network_send, true)) return 0;
  return num_message_channels(comm) * kSharedSteps * kNetworkChunkBytes;
}

int64_t add_receive(ncclComm& comm, int peer) {
  Connections& connections = comm.connections;
  if (is_in_node(comm, peer)) {
    return connections.receives.insert(peer).second ? num_channels_per_peer(comm) * connection_bytes().receive
                                                    : 0;
  }
  if (std::exchange(connections.network_receive, true)) return 0;
  return num_message_channels(comm) * kSharedSteps * kNetworkChunkBytes;
}

// Bytes of what a call connects anew.
int64_t connect(ncclComm& comm, trace::CollectiveOp op, int peer, int64_t bytes) {
  using trace::CollectiveOp;
  Connections& connections = comm.connections;
  const auto with_peers = [&](bool sends, bool receives) {
    int64_t added = 0;
    for (int other = 0; other < comm.num_ranks; ++other) {
      if (other == comm.rank) continue;
      if (sends) added += add_send(comm, other);
      if (receives) added += add_receive(comm, other);
    }
    return added;
  };
  switch (op) {
    case CollectiveOp::send:
      return peer == comm.rank ? 0 : add_send(comm, peer);
    case CollectiveOp::recv:
      return peer == comm.rank ? 0 : add_receive(comm, peer);
    case CollectiveOp::all_to_all:
      return with_peers(true, true);
    case CollectiveOp::gather:
      return comm.rank == peer ? with_peers(false, true) : add_send(comm, peer);
    case CollectiveOp::scatter:
      return comm.rank == peer ? with_peers(true, false) : add_receive(comm, peer);
    default:
      break;
  }
  const bool is_large_reduction = op == CollectiveOp::all_reduce && bytes >= kNvlsFromBytes;
  if (is_large_reduction && has_nvls(comm)) {
    return std::exchange(connections.nvls, true) ? 0 : nvls_bytes(comm);
  }
  // Trees serve reductions between nodes; in a node they are chains along the ring, in the other direction.
  const bool is_tree = op == CollectiveOp::all_reduce && spans_nodes(comm);
  return std::exchange(is_tree ? connections.tree : connections.ring, true) ? 0 : neighbour_bytes(comm);
}

bool take(ncclComm& comm, int64_t bytes) {
  if (bytes == 0) return true;
  if (!take_device_bytes(comm.device, bytes)) {
    Call call;
    call.record(trace::Kind::out_of_memory,
                {bytes, device_bytes_used(comm.device), device_bytes_capacity(comm.device)});
    set_last_error("CUDA error: out of memory (" + std::to_string(bytes) +
                   " bytes for the buffers of a communicator of " + std::to_string(comm.num_ranks) +
                   " ranks)");
    return false;
  }
  comm.connections.device_bytes += bytes;
  const auto device = static_cast<size_t>(comm.device);
  const int64_t now = nccl_bytes[device].fetch_add(bytes) + bytes;
  raise_to(peak_nccl_bytes[device], now);
  return true;
}

}  // namespace

// Structures in device memory, each a page: two of the communicator (src/init.cc, devCommSetup), three of a
// channel (src/channel.cc, initChannel), and for NVLink SHARP one of a channel and one for all credits
// (initNvlsChannel; src/transport/nvls.cc, ncclNvlsSetup).
bool take_setup_bytes(ncclComm& comm) {
  if (comm.num_ranks == 1) return true;
  const int channels = std::max(num_channels(comm), num_message_channels(comm));
  int64_t num_pages = 2 + int64_t{3} * channels;
  if (has_nvls(comm)) num_pages += gpu().nccl_nvls_channels + 1;
  return take(comm, num_pages * static_cast<int64_t>(kDevicePageBytes));
}

bool take_connection_bytes(ncclComm& comm, trace::CollectiveOp op, int peer, int64_t bytes) {
  return comm.num_ranks == 1 || take(comm, connect(comm, op, peer, bytes));
}

void give_bytes(ncclComm& comm) {
  give_device_bytes(comm.device, comm.connections.device_bytes);
  nccl_bytes[static_cast<size_t>(comm.device)].fetch_sub(comm.connections.device_bytes);
  comm.connections = {};
}

}  // namespace maya::nccl

// For the start-up hook: the most that communicators held of the thread's device.
extern "C" int64_t maya_peak_nccl_bytes() {
  return maya::nccl::peak_nccl_bytes[static_cast<size_t>(maya::current_device())].load();
}
