// Managed memory: where a program wants its pages to be. They are anonymous memory that the host reads and
// writes directly; moving them costs nothing here.
#include "device_table.h"
#include "recorder.h"
#include "runtime.h"

namespace maya {
namespace {

cudaError_t check_managed(const void* pointer, size_t bytes) {
  const Allocation allocation = find_allocation(pointer);
  if (bytes == 0 || allocation.space != Space::managed) return cudaErrorInvalidValue;
  const size_t offset = reinterpret_cast<uintptr_t>(pointer) - allocation.address;
  return bytes <= allocation.bytes - offset ? cudaSuccess : cudaErrorInvalidValue;
}

bool is_processor(int device) { return device == cudaCpuDeviceId || (device >= 0 && device < num_devices()); }

// Advice to read mostly is for all processors alike.
cudaError_t advise(const void* pointer, size_t bytes, cudaMemoryAdvise advice, int device) {
  if (advice < cudaMemAdviseSetReadMostly || advice > cudaMemAdviseUnsetAccessedBy)
    return cudaErrorInvalidValue;
  const bool names_device = advice == cudaMemAdviseSetPreferredLocation ||
                            advice == cudaMemAdviseSetAccessedBy || advice == cudaMemAdviseUnsetAccessedBy;
  if (names_device && !is_processor(device)) return cudaErrorInvalidDevice;
  return check_managed(pointer, bytes);
}

cudaError_t prefetch(const void* pointer, size_t bytes, int device, CUstream stream) {
  if (!is_processor(device)) return cudaErrorInvalidDevice;
  if (cudaError_t result = check_stream(stream); result != cudaSuccess) return result;
  return check_managed(pointer, bytes);
}

#if CUDART_VERSION >= 13000
int device_of(cudaMemLocation location) {
  return location.type == cudaMemLocationTypeDevice ? location.id : cudaCpuDeviceId;
}
#endif

}  // namespace
}  // namespace maya

using maya::runtime_result;

extern "C" {

#if CUDART_VERSION >= 13000
cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t bytes, cudaMemLocation location,
                                 unsigned /*flags*/, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::prefetch(pointer, bytes, maya::device_of(location), stream));
}
cudaError_t cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise advice,
                          cudaMemLocation location) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::advise(pointer, bytes, advice, maya::device_of(location)));
}
#else
cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t bytes, int device, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::prefetch(pointer, bytes, device, stream));
}
cudaError_t cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise advice, int device) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::advise(pointer, bytes, advice, device));
}
#endif

}  // extern "C"
