// The driver: streams, events, captures, memory operations of streams.
#include <string.h>

#include "recorder.h"
#include "runtime.h"

using maya::driver_result;

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  MAYA_COUNT_CALL();
  return driver_result(maya::create_stream(stream, flags, 0));
}
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  MAYA_COUNT_CALL();
  return driver_result(maya::create_stream(stream, flags, priority));
}
CUresult cuStreamDestroy(CUstream stream) {
  MAYA_COUNT_CALL();
  return driver_result(maya::destroy_stream(stream));
}
CUresult cuStreamSynchronize(CUstream stream) {
  MAYA_COUNT_CALL();
  return driver_result(maya::synchronize_stream(stream));
}
CUresult cuStreamQuery(CUstream stream) {
  MAYA_COUNT_CALL();
  return driver_result(maya::query_stream(stream));
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  MAYA_COUNT_CALL();
  return driver_result(maya::wait_event(stream, event, flags));
}
CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  return driver_result(cudaStreamGetPriority(stream, priority));
}
CUresult cuStreamGetFlags(CUstream stream, unsigned* flags) {
  return driver_result(cudaStreamGetFlags(stream, flags));
}
CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  return driver_result(cudaStreamGetId(stream, id));
}
CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  MAYA_COUNT_CALL();
  int device = 0;
  cudaStreamGetDevice(stream, &device);
  *context = maya::primary_context(device);
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  cudaStreamCaptureStatus runtime_status;
  cudaError_t result = cudaStreamIsCapturing(stream, &runtime_status);
  *status = static_cast<CUstreamCaptureStatus>(runtime_status);
  return driver_result(result);
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  auto runtime_mode = static_cast<cudaStreamCaptureMode>(*mode);
  cudaError_t result = cudaThreadExchangeStreamCaptureMode(&runtime_mode);
  *mode = static_cast<CUstreamCaptureMode>(runtime_mode);
  return driver_result(result);
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return driver_result(cudaLaunchHostFunc(stream, function, data));
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  MAYA_COUNT_CALL();
  return driver_result(maya::create_event(event, flags));
}
CUresult cuEventDestroy(CUevent event) {
  MAYA_COUNT_CALL();
  return driver_result(maya::destroy_event(event));
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  MAYA_COUNT_CALL();
  return driver_result(maya::record_event(event, stream, 0));
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  MAYA_COUNT_CALL();
  return driver_result(maya::record_event(event, stream, flags));
}
CUresult cuEventQuery(CUevent event) {
  MAYA_COUNT_CALL();
  return driver_result(maya::query_event(event));
}
CUresult cuEventSynchronize(CUevent event) {
  MAYA_COUNT_CALL();
  return driver_result(maya::synchronize_event(event));
}
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  MAYA_COUNT_CALL();
  return driver_result(maya::elapsed_time(milliseconds, start, end));
}

// Written at once, as everything issued before counts as done.
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned /*flags*/) {
  MAYA_COUNT_CALL();
  return driver_result(maya::fill(reinterpret_cast<void*>(address), value, sizeof(value), 1, stream, false));
}

}  // extern "C"
