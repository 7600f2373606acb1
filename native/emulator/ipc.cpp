// Memory and events of one process in another one.
//
// A block of which a handle is taken becomes a shared file without a name. Processes that open the handle
// map it, so that what one of them writes the other one reads; it is counted once, for its owner. What a
// kernel may have written is only known to the process of the launch.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <tuple>

#include "allocations.h"
#include "device_table.h"
#include "known_bytes.h"
#include "recorder.h"
#include "runtime.h"

namespace maya {
namespace {

// What a memory handle holds: the block, and the file as a descriptor of its process.
struct Shared {
  int64_t process_id;
  uint64_t address, bytes;
  int64_t descriptor;
  auto key() const { return std::tuple(process_id, address, descriptor); }
};
static_assert(sizeof(Shared) <= sizeof(cudaIpcMemHandle_t));

struct Import {
  void* address;
  int num_opened;
};

struct SharedMemory {
  std::mutex mutex;
  std::map<uintptr_t, int> descriptors;  // of exported blocks, by address
  std::map<decltype(Shared().key()), Import> imports;
};

SharedMemory& shared_memory() {
  static SharedMemory& instance = *new SharedMemory;
  return instance;
}

bool map_shared(void* address, size_t bytes, int descriptor) {
  constexpr int kFlags = MAP_SHARED | MAP_FIXED | MAP_NORESERVE;
  return mmap(address, round_to_pages(bytes), PROT_READ | PROT_WRITE, kFlags, descriptor, 0) != MAP_FAILED;
}

// Puts a file under the block, with what is known of its contents; -1 when there is no room for it.
int make_shared(const Allocation& block) {
  const int descriptor = memfd_create("maya-ipc", MFD_CLOEXEC);
  if (descriptor < 0) return -1;
  bool is_made = ftruncate(descriptor, static_cast<off_t>(round_to_pages(block.bytes))) == 0;
  visit_known_bytes(block.address, block.bytes, [&](uintptr_t begin, size_t bytes) {
    const auto offset = static_cast<off_t>(begin - block.address);
    is_made &= pwrite(descriptor, reinterpret_cast<const void*>(begin), bytes, offset) ==
               static_cast<ssize_t>(bytes);
  });
  if (is_made && map_shared(reinterpret_cast<void*>(block.address), block.bytes, descriptor))
    return descriptor;
  close(descriptor);
  return -1;
}

cudaError_t export_memory(cudaIpcMemHandle_t* handle, void* address) {
  const Allocation block = find_allocation(address);
  if (handle == nullptr || block.space != Space::device) return cudaErrorInvalidValue;
  SharedMemory& all = shared_memory();
  std::lock_guard lock(all.mutex);
  auto found = all.descriptors.find(block.address);
  if (found == all.descriptors.end()) {
    const int descriptor = make_shared(block);
    if (descriptor < 0) return cudaErrorMemoryAllocation;
    found = all.descriptors.emplace(block.address, descriptor).first;
  }
  const Shared fields{getpid(), block.address, block.bytes, found->second};
  memset(handle, 0, sizeof(*handle));
  memcpy(handle, &fields, sizeof(fields));
  return cudaSuccess;
}

// Maps the file of another process; null when that has ended or freed the block.
void* import_memory(const Shared& fields) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%lld/fd/%lld", static_cast<long long>(fields.process_id),
           static_cast<long long>(fields.descriptor));
  const int descriptor = open(path, O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  struct stat status;
  const bool is_block =
      fstat(descriptor, &status) == 0 && static_cast<size_t>(status.st_size) == round_to_pages(fields.bytes);
  void* address = is_block ? map_pages(fields.bytes, true) : nullptr;
  if (address != nullptr && !map_shared(address, fields.bytes, descriptor)) {
    unmap_pages(address, fields.bytes);
    address = nullptr;
  }
  close(descriptor);
  if (address == nullptr) return nullptr;
  AllocationEntry entry;
  entry.allocation = {reinterpret_cast<uintptr_t>(address), fields.bytes, Space::device, current_device()};
  entry.released_by = ReleasedBy::ipc_close;
  add_allocation(entry);
  return address;
}

// A handle that is open already gives the same address again (documented at cudaIpcOpenMemHandle).
cudaError_t open_memory(void** address, const cudaIpcMemHandle_t& handle, unsigned flags) {
  if (address == nullptr || flags != cudaIpcMemLazyEnablePeerAccess) return cudaErrorInvalidValue;
  Shared fields;
  memcpy(&fields, &handle, sizeof(fields));
  if (fields.process_id == getpid()) return cudaErrorDeviceUninitialized;
  SharedMemory& all = shared_memory();
  std::lock_guard lock(all.mutex);
  auto found = all.imports.find(fields.key());
  if (found == all.imports.end()) {
    void* mapped = import_memory(fields);
    if (mapped == nullptr) return cudaErrorMapBufferObjectFailed;
    found = all.imports.emplace(fields.key(), Import{mapped, 0}).first;
  }
  ++found->second.num_opened;
  *address = found->second.address;
  return cudaSuccess;
}

cudaError_t close_memory(void* address) {
  SharedMemory& all = shared_memory();
  std::lock_guard lock(all.mutex);
  for (auto import = all.imports.begin(); import != all.imports.end(); ++import) {
    if (import->second.address != address) continue;
    if (--import->second.num_opened > 0) return cudaSuccess;
    all.imports.erase(import);
    AllocationEntry entry;
    remove_allocation(address, ReleasedBy::ipc_close, &entry);
    forget_known_bytes(address, entry.allocation.bytes);
    unmap_pages(address, entry.allocation.bytes);
    return cudaSuccess;
  }
  return cudaErrorInvalidValue;
}

}  // namespace

void withdraw_ipc_handle(void* address) {
  SharedMemory& all = shared_memory();
  std::lock_guard lock(all.mutex);
  auto found = all.descriptors.find(reinterpret_cast<uintptr_t>(address));
  if (found == all.descriptors.end()) return;
  close(found->second);
  all.descriptors.erase(found);
}

}  // namespace maya

using maya::runtime_result;

extern "C" {

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::export_memory(handle, address));
}
cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned flags) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::open_memory(address, handle, flags));
}
cudaError_t cudaIpcCloseMemHandle(void* address) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::close_memory(address));
}
// The importer's event is one that was never recorded: complete, and waits on it are no-ops.
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  MAYA_COUNT_CALL();
  if (!maya::is_alive(event) || (event->flags & cudaEventInterprocess) == 0) {
    return runtime_result(cudaErrorInvalidResourceHandle);
  }
  memset(handle, 0, sizeof(*handle));
  memcpy(handle, &event->id, sizeof(event->id));
  return cudaSuccess;
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t /*handle*/) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::create_event(event, cudaEventDisableTiming | cudaEventInterprocess));
}

}  // extern "C"
