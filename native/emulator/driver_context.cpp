// The driver: initialisation, devices, contexts, errors, entry points by name.
#include <string.h>

#include <cstdio>
#include <vector>

#include "device_table.h"
#include "recorder.h"
#include "runtime.h"

namespace maya {

const char* error_name(cudaError_t code);
const char* error_string(cudaError_t code);

namespace {

thread_local std::vector<CUcontext> context_stack;

bool is_device(int device) { return device >= 0 && device < num_devices(); }

// The context of the thread: one it has set, or the primary one that the runtime made.
CUcontext current_context() {
  if (!context_stack.empty()) return context_stack.back();
  int device = current_device();
  return num_devices() > 0 && has_context(device) ? primary_context(device) : nullptr;
}

void enter(CUcontext context) {
  if (context != nullptr) set_current_device(context->device);
}

}  // namespace
}  // namespace maya

extern "C" {

CUresult cuInit(unsigned flags) {
  MAYA_COUNT_CALL();
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return maya::num_devices() > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** name) {
  // Names differ between the two APIs (cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY); the number is
  // said too.
  thread_local char text[96];
  snprintf(text, sizeof(text), "CUDA error %d (%s)", static_cast<int>(error),
           maya::error_name(static_cast<cudaError_t>(error)));
  *name = text;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = maya::error_string(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  MAYA_COUNT_CALL();
  if (!maya::is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  MAYA_COUNT_CALL();
  *count = maya::num_devices();
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  MAYA_COUNT_CALL();
  if (!maya::is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, static_cast<size_t>(length), "%s", maya::gpu().name.c_str());
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  MAYA_COUNT_CALL();
  if (!maya::is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  maya::device_uuid(maya::physical_device(device), reinterpret_cast<unsigned char*>(uuid));
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  MAYA_COUNT_CALL();
  if (!maya::is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = static_cast<size_t>(maya::gpu().memory_bytes);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  MAYA_COUNT_CALL();
  if (!maya::is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  return maya::device_attribute(attribute, device, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  return maya::driver_result(cudaDeviceGetPCIBusId(text, length, device));
}
CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  return maya::driver_result(cudaDeviceGetByPCIBusId(device, text));
}
CUresult cuDeviceCanAccessPeer(int* can_access, CUdevice device, CUdevice peer) {
  return maya::driver_result(cudaDeviceCanAccessPeer(can_access, device, peer));
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  MAYA_COUNT_CALL();
  if (!maya::is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  maya::use_context(device);
  *context = maya::primary_context(device);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  MAYA_COUNT_CALL();
  return maya::is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* is_active) {
  MAYA_COUNT_CALL();
  if (!maya::is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *is_active = maya::has_context(device);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned /*flags*/) {
  MAYA_COUNT_CALL();
  return maya::is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  MAYA_COUNT_CALL();
  *context = maya::current_context();
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  MAYA_COUNT_CALL();
  if (!maya::context_stack.empty()) maya::context_stack.pop_back();
  if (context != nullptr) maya::context_stack.push_back(context);
  maya::enter(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) {
  MAYA_COUNT_CALL();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  maya::context_stack.push_back(context);
  maya::enter(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
  MAYA_COUNT_CALL();
  CUcontext popped = maya::current_context();
  if (popped == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = popped;
  if (!maya::context_stack.empty()) maya::context_stack.pop_back();
  maya::enter(maya::current_context());
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  MAYA_COUNT_CALL();
  CUcontext context = maya::current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = context->device;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetApiVersion(CUcontext /*context*/, unsigned* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetFlags(unsigned* flags) {
  *flags = 0;
  return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
  MAYA_COUNT_CALL();
  return maya::driver_result(maya::synchronize_device());
}
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return maya::driver_result(cudaDeviceGetStreamPriorityRange(least, greatest));
}
CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  return maya::driver_result(cudaDeviceGetLimit(value, static_cast<cudaLimit>(limit)));
}
CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  return maya::driver_result(cudaDeviceSetLimit(static_cast<cudaLimit>(limit), value));
}
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return maya::driver_result(cudaDeviceEnablePeerAccess(peer->device, flags));
}

CUresult cuGetProcAddress(const char* symbol, void** function, int /*version*/, cuuint64_t /*flags*/,
                          CUdriverProcAddressQueryResult* status) {
  MAYA_COUNT_CALL();
  *function = maya::find_entry_point(symbol);
  bool is_found = *function != nullptr;
  if (status != nullptr) {
    *status = is_found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return is_found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
// Private interfaces of NVIDIA's own libraries; those that need them are emulated as a whole.
CUresult cuGetExportTable(const void** table, const CUuuid* /*id*/) {
  MAYA_COUNT_CALL();
  *table = nullptr;
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // extern "C"
