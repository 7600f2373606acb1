// Device variables of the program's fat binaries.
#include <cstring>
#include <map>
#include <mutex>

#include "allocations.h"
#include "recorder.h"
#include "runtime.h"

namespace maya {
namespace {

struct Variable {
  size_t bytes;
  void* device_address = nullptr;  // mapped at first use
};

struct Variables {
  std::mutex mutex;
  std::map<const void*, Variable> by_host_address;
};

Variables& variables() {
  static Variables& instance = *new Variables;
  return instance;
}

// Variables are part of the module's image, which counts to the memory of the context.
void* device_address(const void* symbol, size_t* bytes) {
  Variables& all = variables();
  std::lock_guard lock(all.mutex);
  auto found = all.by_host_address.find(symbol);
  if (found == all.by_host_address.end()) return nullptr;
  Variable& variable = found->second;
  if (variable.device_address == nullptr) {
    variable.device_address = map_pages(variable.bytes, true);
    AllocationEntry entry;
    entry.allocation = {reinterpret_cast<uintptr_t>(variable.device_address), variable.bytes, Space::device,
                        current_device()};
    entry.released_by = ReleasedBy::nothing;
    add_allocation(entry);
  }
  *bytes = variable.bytes;
  return variable.device_address;
}

cudaError_t copy_symbol(const void* symbol, const void* other, size_t count, size_t offset,
                        cudaMemcpyKind kind, CUstream stream, bool is_synchronous, bool is_to_symbol) {
  size_t bytes = 0;
  auto* address = static_cast<char*>(device_address(symbol, &bytes));
  if (address == nullptr) return cudaErrorInvalidSymbol;
  if (offset > bytes || count > bytes - offset) return cudaErrorInvalidValue;
  if (is_to_symbol) return copy(address + offset, other, count, kind, stream, is_synchronous);
  return copy(const_cast<void*>(other), address + offset, count, kind, stream, is_synchronous);
}

}  // namespace
}  // namespace maya

using maya::runtime_result;

extern "C" {

void __cudaRegisterVar(void** /*handle*/, char* host_variable, char* /*device_address*/,
                       const char* /*device_name*/, int /*is_external*/, size_t bytes, int /*is_constant*/,
                       int /*is_global*/) {
  maya::Variables& all = maya::variables();
  std::lock_guard lock(all.mutex);
  all.by_host_address[host_variable] = {bytes};
}

cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  MAYA_COUNT_CALL();
  size_t bytes = 0;
  *address = maya::device_address(symbol, &bytes);
  return runtime_result(*address != nullptr ? cudaSuccess : cudaErrorInvalidSymbol);
}
cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::device_address(symbol, bytes) != nullptr ? cudaSuccess
                                                                       : cudaErrorInvalidSymbol);
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* source, size_t count, size_t offset,
                               cudaMemcpyKind kind) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::copy_symbol(symbol, source, count, offset, kind, nullptr, true, true));
}
cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* source, size_t count, size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::copy_symbol(symbol, source, count, offset, kind, stream, false, true));
}
cudaError_t cudaMemcpyFromSymbol(void* target, const void* symbol, size_t count, size_t offset,
                                 cudaMemcpyKind kind) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::copy_symbol(symbol, target, count, offset, kind, nullptr, true, false));
}
cudaError_t cudaMemcpyFromSymbolAsync(void* target, const void* symbol, size_t count, size_t offset,
                                      cudaMemcpyKind kind, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::copy_symbol(symbol, target, count, offset, kind, stream, false, false));
}

}  // extern "C"
