// Devices, contexts, errors and versions of the runtime.
#include "runtime.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <array>
#include <atomic>
#include <mutex>
#include <string>

#include "device_table.h"
#include "recorder.h"

namespace maya {
namespace {

thread_local cudaError_t last_error __attribute__((tls_model("initial-exec")));

std::array<std::atomic<bool>, kMaxDevices> contexts;
std::array<std::array<std::atomic<bool>, kMaxDevices>, kMaxDevices> peer_access;

bool is_device(int device) { return device >= 0 && device < num_devices(); }

struct ErrorText {
  cudaError_t code;
  const char* name;
  const char* text;
};
// Texts as the runtime gives them for the codes that the emulator answers with.
constexpr ErrorText kErrorTexts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorCudartUnloading, "cudaErrorCudartUnloading", "driver shutting down"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorMissingConfiguration, "cudaErrorMissingConfiguration",
     "__global__ function call is not configured"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorMapBufferObjectFailed, "cudaErrorMapBufferObjectFailed", "mapping of buffer object failed"},
    {cudaErrorDeviceUninitialized, "cudaErrorDeviceUninitialized", "invalid device context"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "named symbol not found"},
    {cudaErrorFileNotFound, "cudaErrorFileNotFound", "file not found"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorCooperativeLaunchTooLarge, "cudaErrorCooperativeLaunchTooLarge",
     "too many blocks in cooperative launch"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorText* error_text(cudaError_t code) {
  for (const ErrorText& known : kErrorTexts) {
    if (known.code == code) return &known;
  }
  return nullptr;
}

}  // namespace

cudaError_t runtime_result(cudaError_t result) {
  if (result != cudaSuccess) last_error = result;
  return result;
}

void use_context(int device) {
  if (!contexts[static_cast<size_t>(device)].load(std::memory_order_relaxed)) {
    contexts[static_cast<size_t>(device)].store(true);
  }
}
bool has_context(int device) { return contexts[static_cast<size_t>(device)].load(); }

CUctx_st* primary_context(int device) {
  static CUctx_st made[kMaxDevices];
  made[device].device = device;
  return &made[device];
}

// Looks the name up in this library, as a process may hold others that export it. Suffixed names are
// the newer forms of one function; the headers map the plain name to the newest.
void* find_entry_point(const char* name) {
  static void* self = [] {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&find_entry_point), &info);
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
    if (void* address = dlsym(self, (std::string(name) + suffix).c_str()); address != nullptr) return address;
  }
  return nullptr;
}

const char* error_name(cudaError_t code) {
  const ErrorText* known = error_text(code);
  return known != nullptr ? known->name : "cudaErrorUnknown";
}
const char* error_string(cudaError_t code) {
  const ErrorText* known = error_text(code);
  return known != nullptr ? known->text : "unrecognized error code";
}

}  // namespace maya

using maya::runtime_result;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  MAYA_COUNT_CALL();
  *count = maya::num_devices();
  return runtime_result(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* device) {
  MAYA_COUNT_CALL();
  if (maya::num_devices() == 0) return runtime_result(cudaErrorNoDevice);
  *device = maya::current_device();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  MAYA_COUNT_CALL();
  if (maya::num_devices() == 0) return runtime_result(cudaErrorNoDevice);
  if (!maya::is_device(device)) return runtime_result(cudaErrorInvalidDevice);
  maya::set_current_device(device);
  maya::use_context(device);  // since CUDA 12
  return cudaSuccess;
}
cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  MAYA_COUNT_CALL();
  *flags = cudaDeviceScheduleAuto;
  return cudaSuccess;
}
cudaError_t cudaInitDevice(int device, unsigned /*device_flags*/, unsigned /*flags*/) {
  MAYA_COUNT_CALL();
  if (!maya::is_device(device)) return runtime_result(cudaErrorInvalidDevice);
  maya::use_context(device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  MAYA_COUNT_CALL();
  // Defaults of the driver.
  switch (limit) {
    case cudaLimitStackSize:
      *value = 1024;
      return cudaSuccess;
    case cudaLimitPrintfFifoSize:
      *value = 1 << 20;
      return cudaSuccess;
    case cudaLimitMallocHeapSize:
      *value = 8 << 20;
      return cudaSuccess;
    default:
      *value = 0;
      return runtime_result(cudaErrorInvalidValue);
  }
}
cudaError_t cudaDeviceCanAccessPeer(int* can_access, int device, int peer) {
  MAYA_COUNT_CALL();
  if (!maya::is_device(device) || !maya::is_device(peer)) return runtime_result(cudaErrorInvalidDevice);
  *can_access = device != peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  MAYA_COUNT_CALL();
  int device = maya::current_device();
  if (flags != 0) return runtime_result(cudaErrorInvalidValue);
  if (!maya::is_device(peer) || peer == device) return runtime_result(cudaErrorInvalidDevice);
  auto& is_enabled = maya::peer_access[static_cast<size_t>(device)][static_cast<size_t>(peer)];
  return runtime_result(is_enabled.exchange(true) ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess);
}
cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  MAYA_COUNT_CALL();
  if (!maya::is_device(peer)) return runtime_result(cudaErrorInvalidDevice);
  auto& is_enabled =
      maya::peer_access[static_cast<size_t>(maya::current_device())][static_cast<size_t>(peer)];
  return runtime_result(is_enabled.exchange(false) ? cudaSuccess : cudaErrorPeerAccessNotEnabled);
}
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int device, int peer) {
  MAYA_COUNT_CALL();
  if (!maya::is_device(device) || !maya::is_device(peer)) return runtime_result(cudaErrorInvalidDevice);
  *value = attribute == cudaDevP2PAttrAccessSupported || attribute == cudaDevP2PAttrNativeAtomicSupported;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  MAYA_COUNT_CALL();
  if (!maya::is_device(device)) return runtime_result(cudaErrorInvalidDevice);
  snprintf(text, static_cast<size_t>(length), "0000:%02X:00.0", maya::pci_bus(maya::physical_device(device)));
  return cudaSuccess;
}
cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
  MAYA_COUNT_CALL();
  for (int i = 0; i < maya::num_devices(); ++i) {
    char known[16];
    cudaDeviceGetPCIBusId(known, sizeof(known), i);
    if (strcasecmp(known, text) == 0) {
      *device = i;
      return cudaSuccess;
    }
  }
  return runtime_result(cudaErrorInvalidDevice);
}
cudaError_t cudaDeviceReset() {
  MAYA_COUNT_CALL();
  return cudaSuccess;  // the memory of a process that resets its device goes with the process
}

cudaError_t cudaGetLastError() {
  cudaError_t result = maya::last_error;
  maya::last_error = cudaSuccess;
  return result;
}
cudaError_t cudaPeekAtLastError() { return maya::last_error; }
const char* cudaGetErrorName(cudaError_t error) { return maya::error_name(error); }
const char* cudaGetErrorString(cudaError_t error) { return maya::error_string(error); }

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned /*version*/,
                                             unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* status) {
  MAYA_COUNT_CALL();
  *function = maya::find_entry_point(symbol);
  if (status != nullptr) {
    *status = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}

}  // extern "C"
