// cuFFT as PyTorch uses it: plans that keep their transform, executions as `library_op`.
#include <cuda_runtime_api.h>
#include <cufftXt.h>

#include <cmath>
#include <mutex>
#include <unordered_map>

#include "math_library.h"

using maya::Call;

namespace {

struct Plan {
  cudaStream_t stream = nullptr;
  int64_t num_points = 0, batch = 0;  // of one transform; transforms
  cudaDataType input_type = CUDA_C_32F, output_type = CUDA_C_32F;
  int64_t last_size = 0;

  bool is_real() const { return !maya::is_complex(input_type) || !maya::is_complex(output_type); }
  // Of a real signal's spectrum only one half, and one more, of the last dimension is stored.
  int64_t num_elements(cudaDataType type) const {
    const bool is_half = is_real() && maya::is_complex(type);
    return batch * (is_half ? num_points / last_size * (last_size / 2 + 1) : num_points);
  }
};

struct Plans {
  std::mutex mutex;
  std::unordered_map<cufftHandle, Plan> by_handle;
  cufftHandle last_handle = 0;
};

Plans& plans() {
  static Plans& instance = *new Plans;  // used by threads that outlive static objects
  return instance;
}

// Changes a plan under the lock; false for a handle that is none.
template <typename Change>
cufftResult with_plan(cufftHandle handle, Change change) {
  std::lock_guard lock(plans().mutex);
  const auto found = plans().by_handle.find(handle);
  if (found == plans().by_handle.end()) return CUFFT_INVALID_PLAN;
  change(found->second);
  return CUFFT_SUCCESS;
}

}  // namespace

extern "C" {

cufftResult cufftCreate(cufftHandle* handle) {
  MAYA_COUNT_CALL();
  std::lock_guard lock(plans().mutex);
  *handle = ++plans().last_handle;
  plans().by_handle[*handle] = {};
  return CUFFT_SUCCESS;
}

cufftResult cufftDestroy(cufftHandle handle) {
  MAYA_COUNT_CALL();
  std::lock_guard lock(plans().mutex);
  return plans().by_handle.erase(handle) == 1 ? CUFFT_SUCCESS : CUFFT_INVALID_PLAN;
}

cufftResult cufftSetStream(cufftHandle handle, cudaStream_t stream) {
  return with_plan(handle, [stream](Plan& plan) { plan.stream = stream; });
}

// The work area holds one copy of the complex data.
cufftResult cufftXtMakePlanMany(cufftHandle handle, int rank, long long int* sizes, long long int*,
                                long long int, long long int, cudaDataType input_type, long long int*,
                                long long int, long long int, cudaDataType output_type, long long int batch,
                                size_t* work_bytes, cudaDataType execution_type) {
  MAYA_COUNT_CALL();
  if (rank < 1) return CUFFT_INVALID_VALUE;
  return with_plan(handle, [&](Plan& plan) {
    plan.num_points = 1;
    for (int i = 0; i < rank; ++i) plan.num_points *= sizes[i];
    plan.last_size = sizes[rank - 1];
    plan.batch = batch;
    plan.input_type = input_type;
    plan.output_type = output_type;
    if (work_bytes != nullptr)
      *work_bytes = maya::bytes_of(plan.num_elements(execution_type), execution_type);
  });
}

// 5 N log2 N operations for N complex points, half of it for real ones (the convention of FFTW's benchmarks).
cufftResult cufftXtExec(cufftHandle handle, void*, void* output, int) {
  Plan plan;
  if (cufftResult result = with_plan(handle, [&plan](Plan& found) { plan = found; });
      result != CUFFT_SUCCESS) {
    return result;
  }
  const double complex_flops = 5.0 * plan.num_points * std::log2(double(plan.num_points)) * plan.batch;
  const int64_t written_bytes = maya::bytes_of(plan.num_elements(plan.output_type), plan.output_type);
  Call call;
  maya::record_library_op(call, plan.stream, __func__, maya::cudnn_data_type(plan.input_type),
                          {maya::bytes_of(plan.num_elements(plan.input_type), plan.input_type), written_bytes,
                           std::llround(plan.is_real() ? complex_flops / 2 : complex_flops)});
  maya::zero_result(output, written_bytes);
  return CUFFT_SUCCESS;
}

}  // extern "C"
