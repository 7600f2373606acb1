// Properties and attributes of a device, consistent between the runtime and the driver.
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "device_table.h"
#include "recorder.h"
#include "runtime.h"

namespace maya {
namespace {

// Limits common to compute capabilities 7.0 and later (CUDA Programming Guide, technical specifications).
constexpr int kMaxTexture1D = 131072, kMaxTexture2D = 131072, kMaxTexture3D = 16384, kMaxLayers = 2048;
constexpr int kMaxSurface = 32768;

int persisting_l2_bytes() { return gpu().compute_major >= 8 ? static_cast<int>(gpu().l2_bytes * 5 / 8) : 0; }

// FP64 throughput over FP32's: 1/2 on the data-centre parts x.0, less on the others.
int single_to_double_ratio() { return gpu().compute_minor == 0 ? 2 : gpu().compute_major >= 8 ? 64 : 32; }

void fill_properties(cudaDeviceProp* p, int device) {
  const GpuProperties& g = gpu();
  int installed = physical_device(device);
  memset(p, 0, sizeof(*p));
  snprintf(p->name, sizeof(p->name), "%s", g.name.c_str());
  device_uuid(installed, reinterpret_cast<unsigned char*>(&p->uuid));
  auto attribute = [&](cudaDeviceAttr number) {
    int value = 0;
    device_attribute(number, device, &value);
    return value;
  };
  p->totalGlobalMem = static_cast<size_t>(g.memory_bytes);
  p->sharedMemPerBlock = static_cast<size_t>(g.shared_bytes_per_block);
  p->regsPerBlock = attribute(cudaDevAttrMaxRegistersPerBlock);
  p->warpSize = attribute(cudaDevAttrWarpSize);
  p->memPitch = static_cast<size_t>(attribute(cudaDevAttrMaxPitch));
  p->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
  p->maxThreadsDim[0] = attribute(cudaDevAttrMaxBlockDimX);
  p->maxThreadsDim[1] = attribute(cudaDevAttrMaxBlockDimY);
  p->maxThreadsDim[2] = attribute(cudaDevAttrMaxBlockDimZ);
  p->maxGridSize[0] = attribute(cudaDevAttrMaxGridDimX);
  p->maxGridSize[1] = attribute(cudaDevAttrMaxGridDimY);
  p->maxGridSize[2] = attribute(cudaDevAttrMaxGridDimZ);
  p->totalConstMem = static_cast<size_t>(attribute(cudaDevAttrTotalConstantMemory));
  p->major = g.compute_major;
  p->minor = g.compute_minor;
  p->textureAlignment = static_cast<size_t>(attribute(cudaDevAttrTextureAlignment));
  p->texturePitchAlignment = static_cast<size_t>(attribute(cudaDevAttrTexturePitchAlignment));
  p->multiProcessorCount = g.num_sms;
  p->canMapHostMemory = 1;
  p->maxTexture1D = kMaxTexture1D;
  p->maxTexture1DMipmap = kMaxSurface;
  std::fill_n(p->maxTexture2D, 2, kMaxTexture2D);
  std::fill_n(p->maxTexture2DMipmap, 2, kMaxSurface);
  std::fill_n(p->maxTexture2DLinear, 2, kMaxTexture2D);
  p->maxTexture2DLinear[2] = 2097120;
  std::fill_n(p->maxTexture2DGather, 2, kMaxSurface);
  std::fill_n(p->maxTexture3D, 3, kMaxTexture3D);
  std::fill_n(p->maxTexture3DAlt, 3, kMaxTexture3D);
  p->maxTextureCubemap = kMaxSurface;
  p->maxTexture1DLayered[0] = kMaxSurface, p->maxTexture1DLayered[1] = kMaxLayers;
  std::fill_n(p->maxTexture2DLayered, 2, kMaxSurface), p->maxTexture2DLayered[2] = kMaxLayers;
  p->maxTextureCubemapLayered[0] = kMaxSurface, p->maxTextureCubemapLayered[1] = kMaxLayers;
  p->maxSurface1D = kMaxSurface;
  std::fill_n(p->maxSurface2D, 2, kMaxSurface);
  std::fill_n(p->maxSurface3D, 3, kMaxTexture3D);
  p->maxSurface1DLayered[0] = kMaxSurface, p->maxSurface1DLayered[1] = kMaxLayers;
  std::fill_n(p->maxSurface2DLayered, 2, kMaxSurface), p->maxSurface2DLayered[2] = kMaxLayers;
  p->maxSurfaceCubemap = kMaxSurface;
  p->maxSurfaceCubemapLayered[0] = kMaxSurface, p->maxSurfaceCubemapLayered[1] = kMaxLayers;
  p->surfaceAlignment = static_cast<size_t>(attribute(cudaDevAttrSurfaceAlignment));
  p->concurrentKernels = 1;
  p->ECCEnabled = attribute(cudaDevAttrEccEnabled);
  p->pciBusID = pci_bus(installed);
  p->asyncEngineCount = g.async_engines;
  p->unifiedAddressing = 1;
  p->memoryBusWidth = g.memory_bus_bits;
  p->l2CacheSize = static_cast<int>(g.l2_bytes);
  p->persistingL2CacheMaxSize = persisting_l2_bytes();
  p->maxThreadsPerMultiProcessor = g.max_threads_per_sm;
  p->streamPrioritiesSupported = 1;
  p->globalL1CacheSupported = 1;
  p->localL1CacheSupported = 1;
  p->sharedMemPerMultiprocessor = static_cast<size_t>(g.shared_bytes_per_sm);
  p->regsPerMultiprocessor = attribute(cudaDevAttrMaxRegistersPerMultiprocessor);
  p->managedMemory = 1;
  p->concurrentManagedAccess = 1;
  p->computePreemptionSupported = 1;
  p->canUseHostPointerForRegisteredMem = 1;
  p->cooperativeLaunch = 1;
  p->sharedMemPerBlockOptin = static_cast<size_t>(g.shared_bytes_per_block_optin);
  p->maxBlocksPerMultiProcessor = g.max_blocks_per_sm;
  p->accessPolicyMaxWindowSize = attribute(cudaDevAttrMaxAccessPolicyWindowSize);
  p->reservedSharedMemPerBlock = static_cast<size_t>(attribute(cudaDevAttrReservedSharedMemoryPerBlock));
  p->hostRegisterSupported = 1;
  p->hostRegisterReadOnlySupported = 1;
  p->timelineSemaphoreInteropSupported = 1;
  p->memoryPoolsSupported = 1;
  p->memoryPoolSupportedHandleTypes = cudaMemHandleTypePosixFileDescriptor;
  p->ipcEventSupported = 1;
  p->clusterLaunch = attribute(cudaDevAttrClusterLaunch);
  p->unifiedFunctionPointers = 1;
#if CUDART_VERSION >= 13000
  p->deviceNumaId = -1;
  p->hostNumaId = 0;
#endif
}

}  // namespace

bool device_attribute(int attribute, int device, int* value) {
  const GpuProperties& g = gpu();
  auto answer = [&](int64_t number) {
    *value = static_cast<int>(std::min<int64_t>(number, INT_MAX));
    return true;
  };
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      return answer(1024);
    case cudaDevAttrMaxBlockDimZ:
      return answer(64);
    case cudaDevAttrMaxGridDimX:
      return answer(INT_MAX);
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      return answer(65535);
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return answer(g.shared_bytes_per_block);
    case cudaDevAttrTotalConstantMemory:
      return answer(65536);
    case cudaDevAttrWarpSize:
      return answer(32);
    case cudaDevAttrMaxPitch:
      return answer(INT_MAX);
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      return answer(65536);
    case cudaDevAttrClockRate:
      return answer(g.sm_clock_khz);
    case cudaDevAttrTextureAlignment:
    case cudaDevAttrSurfaceAlignment:
      return answer(512);
    case cudaDevAttrTexturePitchAlignment:
      return answer(32);
    case cudaDevAttrMultiProcessorCount:
      return answer(g.num_sms);
    case cudaDevAttrPciBusId:
      return answer(pci_bus(physical_device(device)));
    case cudaDevAttrMemoryClockRate:
      return answer(g.memory_clock_khz);
    case cudaDevAttrGlobalMemoryBusWidth:
      return answer(g.memory_bus_bits);
    case cudaDevAttrL2CacheSize:
      return answer(g.l2_bytes);
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return answer(g.max_threads_per_sm);
    case cudaDevAttrAsyncEngineCount:
      return answer(g.async_engines);
    case cudaDevAttrComputeCapabilityMajor:
      return answer(g.compute_major);
    case cudaDevAttrComputeCapabilityMinor:
      return answer(g.compute_minor);
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return answer(g.shared_bytes_per_sm);
    case cudaDevAttrSingleToDoublePrecisionPerfRatio:
      return answer(single_to_double_ratio());
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return answer(g.shared_bytes_per_block_optin);
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return answer(g.max_blocks_per_sm);
    case cudaDevAttrMaxPersistingL2CacheSize:
      return answer(persisting_l2_bytes());
    case cudaDevAttrMaxAccessPolicyWindowSize:
      return answer(persisting_l2_bytes() > 0 ? 134217728 : 0);
    case cudaDevAttrReservedSharedMemoryPerBlock:
      return answer(g.compute_major >= 8 ? 1024 : 0);
    case cudaDevAttrMemoryPoolSupportedHandleTypes:
      return answer(cudaMemHandleTypePosixFileDescriptor);
    case cudaDevAttrClusterLaunch:
      return answer(g.compute_major >= 9);
    case cudaDevAttrMemSyncDomainCount:
      return answer(g.compute_major >= 9 ? 4 : 1);
    case cudaDevAttrNumaId:
      return answer(-1);
    case cudaDevAttrHostNumaId:
      return answer(0);

    case cudaDevAttrMaxTexture1DWidth:
      return answer(kMaxTexture1D);
    case cudaDevAttrMaxTexture2DWidth:
    case cudaDevAttrMaxTexture2DLinearWidth:
    case cudaDevAttrMaxTexture2DLinearHeight:
      return answer(kMaxTexture2D);
    case cudaDevAttrMaxTexture2DHeight:
      return answer(65536);
    case cudaDevAttrMaxTexture2DLinearPitch:
      return answer(2097120);
    case cudaDevAttrMaxTexture1DLinearWidth:
      return answer(268435456);
    case cudaDevAttrMaxTexture3DWidth:
    case cudaDevAttrMaxTexture3DHeight:
    case cudaDevAttrMaxTexture3DDepth:
    case cudaDevAttrMaxTexture3DWidthAlt:
    case cudaDevAttrMaxTexture3DHeightAlt:
    case cudaDevAttrMaxTexture3DDepthAlt:
    case cudaDevAttrMaxSurface3DWidth:
    case cudaDevAttrMaxSurface3DHeight:
    case cudaDevAttrMaxSurface3DDepth:
      return answer(kMaxTexture3D);
    case cudaDevAttrMaxTexture2DLayeredLayers:
    case cudaDevAttrMaxTexture1DLayeredLayers:
    case cudaDevAttrMaxTextureCubemapLayeredLayers:
    case cudaDevAttrMaxSurface1DLayeredLayers:
    case cudaDevAttrMaxSurface2DLayeredLayers:
    case cudaDevAttrMaxSurfaceCubemapLayeredLayers:
      return answer(kMaxLayers);
    case cudaDevAttrMaxTexture2DLayeredWidth:
    case cudaDevAttrMaxTexture2DLayeredHeight:
    case cudaDevAttrMaxTexture1DLayeredWidth:
    case cudaDevAttrMaxTexture2DGatherWidth:
    case cudaDevAttrMaxTexture2DGatherHeight:
    case cudaDevAttrMaxTextureCubemapWidth:
    case cudaDevAttrMaxTextureCubemapLayeredWidth:
    case cudaDevAttrMaxSurface1DWidth:
    case cudaDevAttrMaxSurface2DWidth:
    case cudaDevAttrMaxSurface2DHeight:
    case cudaDevAttrMaxSurface1DLayeredWidth:
    case cudaDevAttrMaxSurface2DLayeredWidth:
    case cudaDevAttrMaxSurface2DLayeredHeight:
    case cudaDevAttrMaxSurfaceCubemapWidth:
    case cudaDevAttrMaxSurfaceCubemapLayeredWidth:
    case cudaDevAttrMaxTexture2DMipmappedWidth:
    case cudaDevAttrMaxTexture2DMipmappedHeight:
    case cudaDevAttrMaxTexture1DMipmappedWidth:
      return answer(kMaxSurface);

    case cudaDevAttrGpuOverlap:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrEccEnabled:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrComputePreemptionSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrHostRegisterReadOnlySupported:
    case cudaDevAttrTimelineSemaphoreInteropSupported:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrIpcEventSupport:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
      return answer(1);
    case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED:
      return answer(g.compute_major >= 9);
    default:
      // What is left are abilities that no emulated device has: multicast, fabric handles, GPUDirect, ...
      *value = 0;
      return attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX;
  }
}

}  // namespace maya

using maya::runtime_result;

extern "C" {

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  MAYA_COUNT_CALL();
  if (maya::num_devices() == 0) return runtime_result(cudaErrorNoDevice);
  if (device < 0 || device >= maya::num_devices()) return runtime_result(cudaErrorInvalidDevice);
  maya::fill_properties(properties, device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  MAYA_COUNT_CALL();
  if (maya::num_devices() == 0) return runtime_result(cudaErrorNoDevice);
  if (device < 0 || device >= maya::num_devices()) return runtime_result(cudaErrorInvalidDevice);
  return runtime_result(maya::device_attribute(attribute, device, value) ? cudaSuccess
                                                                         : cudaErrorInvalidValue);
}

}  // extern "C"
