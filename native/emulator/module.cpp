// Modules and libraries of device code that are loaded at run time, and launches through the driver.
#include <stdio.h>
#include <string.h>

#include <map>
#include <mutex>
#include <string>

#include "../trace/code_hash.h"
#include "allocations.h"
#include "cubin.h"
#include "device_table.h"
#include "kernel.h"
#include "recorder.h"

namespace maya {
namespace {

// Behind CUmodule, CUlibrary and cudaLibrary_t alike.
struct Module {
  std::map<std::string, CubinKernel> contents;
  std::map<std::string, Kernel*> kernels;  // made when asked for
  uint64_t code_hash;
  std::mutex mutex;
};

Module* module_of(const void* handle) { return static_cast<Module*>(const_cast<void*>(handle)); }

template <class Handle>
cudaError_t load(Handle* handle, const void* image) {
  if (handle == nullptr || image == nullptr) return cudaErrorInvalidValue;
  use_context(current_device());
  auto* module = new Module;
  module->contents = read_cubin(image);
  module->code_hash = code_hash(image, cubin_bytes(image));
  *handle = reinterpret_cast<Handle>(module);
  return cudaSuccess;
}

// Cubins in files, as PyTorch's launcher of compiled Triton kernels keeps them.
cudaError_t load_file(CUmodule* module, const char* path) {
  FILE* file = fopen(path, "rb");
  if (file == nullptr) return cudaErrorFileNotFound;
  std::string image;
  char part[1 << 16];
  while (size_t bytes = fread(part, 1, sizeof(part), file)) image.append(part, bytes);
  fclose(file);
  return load(module, image.c_str());
}

// A name without a signature (Triton, CUDA C functions of extern "C") leaves the parameter sizes of the
// device code: those of 4 bytes are taken for integers, which a float would not be.
void read_parameters(const CubinKernel& contents, Kernel* kernel) {
  kernel->signature = read_signature(kernel->mangled_name);
  kernel->has_read_signature = true;
  if (kernel->signature.name != kernel->mangled_name) return;
  kernel->signature.outputs = find_outputs(contents.parameter_bytes);
  for (size_t i = 0; i < contents.parameter_bytes.size() && kernel->signature.scalars.size() < kMaxScalars;
       ++i) {
    if (contents.parameter_bytes[i] == 4) kernel->signature.scalars.push_back({static_cast<int>(i), 4, true});
  }
}

Kernel* kernel_of(Module* module, const char* name) {
  std::lock_guard lock(module->mutex);
  Kernel*& kernel = module->kernels[name];
  if (kernel == nullptr) {
    kernel = new_kernel(name);
    if (auto found = module->contents.find(name); found != module->contents.end()) {
      kernel->num_registers = found->second.num_registers;
      kernel->static_shared_bytes = found->second.static_shared_bytes;
      kernel->code_hash = module->code_hash;
      read_parameters(found->second, kernel);
    }
  }
  return kernel;
}

template <class Handle>
cudaError_t get_kernel(Handle* function, Module* module, const char* name) {
  if (!module->contents.empty() && !module->contents.contains(name)) return cudaErrorSymbolNotFound;
  *function = reinterpret_cast<Handle>(kernel_of(module, name));
  return cudaSuccess;
}

CUresult function_attribute(int* value, CUfunction_attribute attribute, Kernel* kernel) {
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = max_block_threads(*kernel);
      break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = kernel->static_shared_bytes;
      break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *value = 0;
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = registers_of(*kernel);
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = 10 * gpu().compute_major + gpu().compute_minor;
      break;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
      *value = 0;
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = static_cast<int>(dynamic_shared_limit(*kernel));
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = -1;
      break;
    default:
      *value = 0;
      if (attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult set_function_attribute(Kernel* kernel, CUfunction_attribute attribute, int value) {
  if (attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;  // Triton tries newer ones
  auto* handle = reinterpret_cast<cudaKernel_t>(kernel);
  return driver_result(
      cudaKernelSetAttributeForDevice(handle, static_cast<cudaFuncAttribute>(attribute), value, 0));
}

Kernel* kernel_handle(const void* function) { return find_kernel(function); }

// Where the driver's codes are not those of the runtime.
CUresult launch_result(cudaError_t result) {
  switch (result) {
    case cudaErrorInvalidConfiguration:
      return CUDA_ERROR_INVALID_VALUE;
    case cudaErrorInvalidDeviceFunction:
      return CUDA_ERROR_INVALID_HANDLE;
    default:
      return driver_result(result);
  }
}

}  // namespace
}  // namespace maya

using maya::driver_result;
using maya::runtime_result;

extern "C" {

CUresult cuModuleLoad(CUmodule* module, const char* path) {
  MAYA_COUNT_CALL();
  return driver_result(maya::load_file(module, path));
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  MAYA_COUNT_CALL();
  return driver_result(maya::load(module, image));
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned /*count*/,
                            CUjit_option* /*options*/, void** /*values*/) {
  MAYA_COUNT_CALL();
  return driver_result(maya::load(module, image));
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  MAYA_COUNT_CALL();
  return driver_result(maya::load(module, image));
}
CUresult cuModuleUnload(CUmodule /*module*/) {
  MAYA_COUNT_CALL();
  return CUDA_SUCCESS;  // kept: its kernels are known by address
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  MAYA_COUNT_CALL();
  return driver_result(maya::get_kernel(function, maya::module_of(module), name));
}
CUresult cuModuleGetGlobal(CUdeviceptr* /*address*/, size_t* /*bytes*/, CUmodule /*module*/,
                           const char* /*name*/) {
  maya::unemulated(__func__);
  return CUDA_ERROR_NOT_FOUND;
}
CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option* /*jit_options*/,
                           void** /*jit_values*/, unsigned /*num_jit_options*/, CUlibraryOption* /*options*/,
                           void** /*values*/, unsigned /*num_options*/) {
  MAYA_COUNT_CALL();
  return driver_result(maya::load(library, image));
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  MAYA_COUNT_CALL();
  return driver_result(maya::get_kernel(kernel, maya::module_of(library), name));
}
CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  MAYA_COUNT_CALL();
  *module = reinterpret_cast<CUmodule>(library);
  return CUDA_SUCCESS;
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  MAYA_COUNT_CALL();
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
CUresult cuFuncGetName(const char** name, CUfunction function) {
  MAYA_COUNT_CALL();
  maya::Kernel* kernel = maya::kernel_handle(function);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *name = kernel->mangled_name;
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  MAYA_COUNT_CALL();
  return maya::function_attribute(value, attribute, maya::kernel_handle(function));
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  MAYA_COUNT_CALL();
  return maya::set_function_attribute(maya::kernel_handle(function), attribute, value);
}
CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                              CUdevice /*device*/) {
  MAYA_COUNT_CALL();
  return maya::function_attribute(value, attribute, maya::kernel_handle(kernel));
}
CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                              CUdevice /*device*/) {
  MAYA_COUNT_CALL();
  return maya::set_function_attribute(maya::kernel_handle(kernel), attribute, value);
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void** arguments, void** extra) {
  MAYA_COUNT_CALL();
  if (arguments != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  maya::LaunchShape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
  return maya::launch_result(maya::launch_kernel(maya::kernel_handle(function), shape, arguments, stream));
}
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y, unsigned block_z,
                                   unsigned shared_bytes, CUstream stream, void** arguments) {
  MAYA_COUNT_CALL();
  maya::LaunchShape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, true};
  return maya::launch_result(maya::launch_kernel(maya::kernel_handle(function), shape, arguments, stream));
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra) {
  MAYA_COUNT_CALL();
  if (arguments != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  maya::LaunchShape shape{{config->gridDimX, config->gridDimY, config->gridDimZ},
                          {config->blockDimX, config->blockDimY, config->blockDimZ},
                          config->sharedMemBytes};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
      shape.is_cooperative = config->attrs[i].value.cooperative != 0;
    }
  }
  return maya::launch_result(
      maya::launch_kernel(maya::kernel_handle(function), shape, arguments, config->hStream));
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* num_blocks, CUfunction function, int block_threads,
                                                     size_t dynamic_shared_bytes) {
  MAYA_COUNT_CALL();
  maya::Kernel* kernel = maya::kernel_handle(function);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *num_blocks = maya::max_blocks_per_sm(*kernel, block_threads, dynamic_shared_bytes);
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* num_blocks, CUfunction function,
                                                              int block_threads, size_t dynamic_shared_bytes,
                                                              unsigned /*flags*/) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(num_blocks, function, block_threads,
                                                     dynamic_shared_bytes);
}
CUresult cuOccupancyMaxActiveClusters(int* num_clusters, CUfunction function, const CUlaunchConfig* config) {
  MAYA_COUNT_CALL();
  maya::Kernel* kernel = maya::kernel_handle(function);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  unsigned cluster_blocks = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      cluster_blocks =
          attribute.value.clusterDim.x * attribute.value.clusterDim.y * attribute.value.clusterDim.z;
    }
  }
  if (cluster_blocks == 0) return CUDA_ERROR_INVALID_VALUE;
  unsigned threads = config->blockDimX * config->blockDimY * config->blockDimZ;
  int blocks = maya::max_blocks_per_sm(*kernel, static_cast<int>(threads), config->sharedMemBytes);
  *num_clusters = blocks * maya::gpu().num_sms / static_cast<int>(cluster_blocks);
  return CUDA_SUCCESS;
}

// The descriptor is opaque to the host: the address is enough to keep two of them apart.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType /*type*/, cuuint32_t rank,
                                void* address, const cuuint64_t* /*dims*/, const cuuint64_t* /*strides*/,
                                const cuuint32_t* /*box*/, const cuuint32_t* /*element_strides*/,
                                CUtensorMapInterleave /*interleave*/, CUtensorMapSwizzle /*swizzle*/,
                                CUtensorMapL2promotion /*promotion*/, CUtensorMapFloatOOBfill /*fill*/) {
  MAYA_COUNT_CALL();
  if (map == nullptr || rank < 1 || rank > 5) return CUDA_ERROR_INVALID_VALUE;
  memset(map, 0, sizeof(*map));
  memcpy(map, &address, sizeof(address));
  return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType /*type*/, cuuint32_t rank,
                                 void* address, const cuuint64_t* /*dims*/, const cuuint64_t* /*strides*/,
                                 const int* /*lower*/, const int* /*upper*/, cuuint32_t /*channels*/,
                                 cuuint32_t /*pixels*/, const cuuint32_t* /*element_strides*/,
                                 CUtensorMapInterleave /*interleave*/, CUtensorMapSwizzle /*swizzle*/,
                                 CUtensorMapL2promotion /*promotion*/, CUtensorMapFloatOOBfill /*fill*/) {
  MAYA_COUNT_CALL();
  if (map == nullptr || rank < 3 || rank > 5) return CUDA_ERROR_INVALID_VALUE;
  memset(map, 0, sizeof(*map));
  memcpy(map, &address, sizeof(address));
  return CUDA_SUCCESS;
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* image, cudaJitOption* /*jit_options*/,
                                void** /*jit_values*/, unsigned /*num_jit_options*/,
                                cudaLibraryOption* /*options*/, void** /*values*/, unsigned /*num_options*/) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::load(library, image));
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::get_kernel(kernel, maya::module_of(library), name));
}

}  // extern "C"
