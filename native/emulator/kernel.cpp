// Kernels: registration, launch, attributes, occupancy.
#include "kernel.h"

#include <string.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "collectives.h"
#include "device_table.h"
#include "known_bytes.h"
#include "recorder.h"
#include "recorder_state.h"

namespace maya {
namespace {

// Open addressing by pointer: PyTorch registers tens of thousands of kernels while it is loaded, and
// every launch looks one up.
class KernelTable {
 public:
  Kernel* find(const void* key) {
    std::lock_guard lock(mutex_);
    if (slots_.empty()) return nullptr;
    for (size_t i = slot_of(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return slots_[i].kernel;
      if (slots_[i].key == nullptr) return nullptr;
    }
  }
  void insert(const void* key, Kernel* kernel) {
    std::lock_guard lock(mutex_);
    if (slots_.size() < 2 * (num_used_ + 1)) grow();
    put(key, kernel);
  }

 private:
  struct Slot {
    const void* key;
    Kernel* kernel;
  };
  size_t slot_of(const void* key) const {
    return (reinterpret_cast<uintptr_t>(key) * 0x9E3779B97F4A7C15ULL >> 20) & (slots_.size() - 1);
  }
  void put(const void* key, Kernel* kernel) {
    size_t i = slot_of(key);
    while (slots_[i].key != nullptr && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
    if (slots_[i].key == nullptr) ++num_used_;
    slots_[i] = {key, kernel};
  }
  void grow() {
    std::vector<Slot> old = std::move(slots_);
    slots_.assign(std::max<size_t>(1 << 14, 2 * old.size()), Slot{});
    num_used_ = 0;
    for (const Slot& slot : old) {
      if (slot.key != nullptr) put(slot.key, slot.kernel);
    }
  }
  std::mutex mutex_;
  std::vector<Slot> slots_;
  size_t num_used_ = 0;
};

KernelTable& kernels() {
  static KernelTable& instance = *new KernelTable;
  return instance;
}

int64_t read_scalar(const void* argument, const ScalarParameter& scalar) {
  switch (scalar.bytes) {
    case 8: {
      int64_t value;
      memcpy(&value, argument, sizeof(value));
      return value;
    }
    case 4: {
      int32_t value;
      memcpy(&value, argument, sizeof(value));
      return scalar.is_signed ? int64_t{value} : int64_t{static_cast<uint32_t>(value)};
    }
    case 2: {
      int16_t value;
      memcpy(&value, argument, sizeof(value));
      return scalar.is_signed ? int64_t{value} : int64_t{static_cast<uint16_t>(value)};
    }
    default: {
      int8_t value;
      memcpy(&value, argument, sizeof(value));
      return scalar.is_signed ? int64_t{value} : int64_t{static_cast<uint8_t>(value)};
    }
  }
}

// Kernels of loaded modules share names (Triton's), so each has a text of its own, which tells its code.
void describe(Kernel* kernel, Call& call) {
  if (!kernel->has_read_signature) {
    kernel->signature = read_signature(kernel->mangled_name);
    kernel->has_read_signature = true;
  }
  if (kernel->name_id != 0) return;
  if (kernel->code_hash == 0) {
    kernel->name_id = intern(kernel->signature.name);
    return;
  }
  kernel->name_id = add_text(kernel->signature.name);
  call.record(Kind::code, {kernel->name_id, static_cast<int64_t>(kernel->code_hash), kernel->num_registers,
                           kernel->static_shared_bytes});
}

cudaError_t check_shape(const Kernel& kernel, const LaunchShape& shape) {
  const dim3& b = shape.block;
  const dim3& g = shape.grid;
  uint64_t threads = static_cast<uint64_t>(b.x) * b.y * b.z;
  if (threads == 0 || threads > kMaxBlockThreads || b.z > 64) return cudaErrorInvalidConfiguration;
  if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  if (threads > static_cast<uint64_t>(max_block_threads(kernel))) return cudaErrorLaunchOutOfResources;
  if (shape.shared_bytes > static_cast<uint64_t>(dynamic_shared_limit(kernel))) return cudaErrorInvalidValue;
  if (shape.is_cooperative) {
    int64_t resident =
        static_cast<int64_t>(max_blocks_per_sm(kernel, static_cast<int>(threads), shape.shared_bytes)) *
        gpu().num_sms;
    if (static_cast<int64_t>(g.x) * g.y * g.z > resident) return cudaErrorCooperativeLaunchTooLarge;
  }
  return cudaSuccess;
}

// What the launch does to device memory: results that are computed, else outputs that read as zero.
void write_outputs(const KernelSignature& signature, unsigned num_blocks, void** arguments, CUstream stream) {
  if (auto compute = computation_of_launch(signature.computation, arguments)) {
    return run_or_capture(stream, std::move(compute));
  }
  thread_local std::vector<uintptr_t> addresses;
  addresses.clear();
  for (const OutputParameter& output : signature.outputs) {
    const void* argument = arguments[output.index];
    append_outputs(output, argument, num_blocks,
                   tensor_list_sizes(signature.multi_tensor, argument, num_blocks), addresses);
  }
  auto overwrite = [](const std::vector<uintptr_t>& outputs) {
    overwrite_pending_collectives(outputs);
    for (uintptr_t address : outputs) overwrite_known_bytes_from(address);
  };
  if (is_capturing(stream)) return run_or_capture(stream, [=, outputs = addresses] { overwrite(outputs); });
  overwrite(addresses);
}

}  // namespace

Kernel* find_kernel(const void* host_function_or_handle) { return kernels().find(host_function_or_handle); }

Kernel* new_kernel(const std::string& name) {
  auto* kernel = new Kernel;
  kernel->mangled_name = strdup(name.c_str());
  kernels().insert(kernel, kernel);
  return kernel;
}

cudaError_t launch_kernel(Kernel* kernel, const LaunchShape& shape, void** arguments, CUstream stream) {
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  if (num_devices() == 0) return cudaErrorNoDevice;
  if (cudaError_t result = check_stream(stream); result != cudaSuccess) return result;
  if (cudaError_t result = check_shape(*kernel, shape); result != cudaSuccess) return result;
  use_context(current_device());

  Call call;
  describe(kernel, call);
  const KernelSignature& signature = kernel->signature;
  constexpr int kFixedFields = 10;
  int64_t fields[kFixedFields + kMaxScalars] = {
      stream_id(stream), kernel->name_id, shape.grid.x,
      shape.grid.y,      shape.grid.z,    shape.block.x,
      shape.block.y,     shape.block.z,   static_cast<int64_t>(shape.shared_bytes),
      trace::kMissing};
  int num_fields = kFixedFields;
  if (arguments != nullptr) {
    for (const ScalarParameter& scalar : signature.scalars) {
      fields[num_fields++] = read_scalar(arguments[scalar.index], scalar);
    }
    if (signature.element_count == ElementCount::first_integer) {
      fields[kFixedFields - 1] = fields[kFixedFields];
    } else if (signature.element_count == ElementCount::multi_tensor) {
      fields[kFixedFields - 1] =
          count_multi_tensor_elements(signature.multi_tensor, arguments[0], shape.grid.x);
    }
  }
  call.record(Kind::kernel, fields, num_fields);
  if (arguments != nullptr) write_outputs(signature, shape.grid.x, arguments, stream);
  return cudaSuccess;
}

namespace {

cudaError_t set_attribute(Kernel* kernel, int attribute, int value) {
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value > gpu().shared_bytes_per_block_optin - kernel->static_shared_bytes) {
    return cudaErrorInvalidValue;
  }
  kernel->max_dynamic_shared_bytes = value;
  return cudaSuccess;
}

cudaError_t occupancy(int* num_blocks, const void* function, int block_threads, size_t dynamic_shared_bytes) {
  Kernel* kernel = find_kernel(function);
  if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
  if (num_devices() == 0) return cudaErrorNoDevice;
  *num_blocks = max_blocks_per_sm(*kernel, block_threads, dynamic_shared_bytes);
  return cudaSuccess;
}

// Execution configurations between the <<<...>>> of a launch and its stub.
struct CallConfiguration {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};
thread_local std::vector<CallConfiguration> call_configurations;

}  // namespace
}  // namespace maya

using maya::runtime_result;

extern "C" {

// Registration, called by the constructors of every library with device code.
void** __cudaRegisterFatBinary(void* fat_binary) { return new void*(fat_binary); }
void __cudaRegisterFatBinaryEnd(void** /*handle*/) {}
void __cudaUnregisterFatBinary(void** /*handle*/) {}
char __cudaInitModule(void** /*handle*/) { return 1; }
void __cudaRegisterFunction(void** /*handle*/, const char* host_function, char* /*device_function*/,
                            const char* device_name, int /*thread_limit*/, uint3* /*tid*/, uint3* /*bid*/,
                            dim3* /*block*/, dim3* /*grid*/, int* /*warp_size*/) {
  auto* kernel = new maya::Kernel;
  kernel->mangled_name = device_name;
  maya::kernels().insert(host_function, kernel);
  maya::kernels().insert(kernel, kernel);
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  *kernel = reinterpret_cast<cudaKernel_t>(maya::find_kernel(host_function));
  return runtime_result(*kernel != nullptr ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, CUstream_st* stream) {
  maya::call_configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  if (maya::call_configurations.empty()) return cudaErrorMissingConfiguration;
  const maya::CallConfiguration& c = maya::call_configurations.back();
  *grid = c.grid;
  *block = c.block;
  *shared_bytes = c.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  maya::call_configurations.pop_back();
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(
      maya::launch_kernel(maya::find_kernel(function), {grid, block, shared_bytes}, arguments, stream));
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                        size_t shared_bytes, cudaStream_t stream) {
  MAYA_COUNT_CALL();
  return runtime_result(
      maya::launch_kernel(maya::find_kernel(function), {grid, block, shared_bytes, true}, arguments, stream));
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  MAYA_COUNT_CALL();
  maya::LaunchShape shape{config->gridDim, config->blockDim, config->dynamicSmemBytes};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeCooperative) {
      shape.is_cooperative = config->attrs[i].val.cooperative != 0;
    }
  }
  return runtime_result(maya::launch_kernel(maya::find_kernel(function), shape, arguments, config->stream));
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  MAYA_COUNT_CALL();
  maya::Kernel* kernel = maya::find_kernel(function);
  if (kernel == nullptr) return runtime_result(cudaErrorInvalidDeviceFunction);
  *attributes = {};
  attributes->maxThreadsPerBlock = maya::max_block_threads(*kernel);
  attributes->numRegs = maya::registers_of(*kernel);
  attributes->sharedSizeBytes = static_cast<size_t>(kernel->static_shared_bytes);
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(maya::dynamic_shared_limit(*kernel));
  attributes->preferredShmemCarveout = -1;
  attributes->ptxVersion = 10 * maya::gpu().compute_major + maya::gpu().compute_minor;
  attributes->binaryVersion = attributes->ptxVersion;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::set_attribute(maya::find_kernel(function), attribute, value));
}
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute attribute, int value,
                                            int /*device*/) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::set_attribute(maya::find_kernel(kernel), attribute, value));
}
cudaError_t cudaFuncGetName(const char** name, const void* function) {
  MAYA_COUNT_CALL();
  maya::Kernel* kernel = maya::find_kernel(function);
  if (kernel == nullptr) return runtime_result(cudaErrorInvalidDeviceFunction);
  *name = kernel->mangled_name;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* num_blocks, const void* function,
                                                          int block_threads, size_t dynamic_shared_bytes) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::occupancy(num_blocks, function, block_threads, dynamic_shared_bytes));
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* num_blocks, const void* function,
                                                                   int block_threads,
                                                                   size_t dynamic_shared_bytes,
                                                                   unsigned /*flags*/) {
  MAYA_COUNT_CALL();
  return runtime_result(maya::occupancy(num_blocks, function, block_threads, dynamic_shared_bytes));
}
cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* dynamic_shared_bytes, const void* function,
                                                      int num_blocks, int block_threads) {
  MAYA_COUNT_CALL();
  maya::Kernel* kernel = maya::find_kernel(function);
  if (kernel == nullptr) return runtime_result(cudaErrorInvalidDeviceFunction);
  if (num_blocks <= 0 || block_threads <= 0) return runtime_result(cudaErrorInvalidValue);
  *dynamic_shared_bytes = maya::available_dynamic_shared_bytes(*kernel, num_blocks, block_threads);
  return cudaSuccess;
}

}  // extern "C"
