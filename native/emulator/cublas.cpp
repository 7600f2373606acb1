// cuBLAS: handles carry a stream and modes; matrix products become `gemm` records, what else PyTorch
// calls becomes `library_op` records. Flop counts: LAPACK working note 41, appendix C, leading terms.
#include "half_types.h"
// Before the headers that would include the definitions of these types.
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

#include "math_library.h"

using maya::Call;
using maya::Kind;
using maya::Work;

struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasMath_t math_mode = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  cublasAtomicsMode_t atomics_mode = CUBLAS_ATOMICS_NOT_ALLOWED;
  int sm_count_target = 0;
};

namespace {

struct Gemm {
  cublasOperation_t trans_a, trans_b;
  int64_t m, n, k, batch;
  cudaDataType type_a, type_b, type_c;
  cublasComputeType_t compute_type;
  void* c = nullptr;  // null where the results lie at pointers in device memory
  int64_t leading_dimension_c = 0, stride_c = 0;
};

// The math mode of a handle lets fp32 products run on tensor cores; the record says what will run.
cublasComputeType_t effective_compute_type(const cublasContext& handle, const Gemm& gemm) {
  const bool is_fp32 = maya::element_bits(gemm.type_a) == (maya::is_complex(gemm.type_a) ? 64 : 32);
  const bool allows_tf32 = (handle.math_mode & 0xF) == CUBLAS_TF32_TENSOR_OP_MATH;
  if (is_fp32 && allows_tf32 && gemm.compute_type == CUBLAS_COMPUTE_32F && maya::gpu().compute_major >= 8) {
    return CUBLAS_COMPUTE_32F_FAST_TF32;
  }
  return gemm.compute_type;
}

cublasStatus_t record_gemm(cublasHandle_t handle, const Gemm& gemm) {
  Call call;
  if (gemm.m == 0 || gemm.n == 0 || gemm.batch == 0) return CUBLAS_STATUS_SUCCESS;  // launches nothing
  call.record(Kind::gemm, {maya::stream_id(handle->stream), int64_t(maya::trace::GemmLibrary::cublas), gemm.m,
                           gemm.n, gemm.k, gemm.batch, gemm.trans_a, gemm.trans_b, gemm.type_a, gemm.type_b,
                           gemm.type_c, effective_compute_type(*handle, gemm), 0});
  if (gemm.c != nullptr) {
    maya::zero_matrices(gemm.c, gemm.m, gemm.n, gemm.leading_dimension_c, gemm.batch, gemm.stride_c,
                        gemm.type_c);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t record_op(cublasHandle_t handle, const char* name, cudaDataType type, int64_t read_elements,
                         int64_t written_elements, int64_t flops) {
  Call call;
  maya::record_library_op(call, handle->stream, name, maya::cudnn_data_type(type),
                          {maya::bytes_of(read_elements, type), maya::bytes_of(written_elements, type),
                           maya::real_flops(flops, type)});
  return CUBLAS_STATUS_SUCCESS;
}

// The result of a dot product reads as zero, as every result of a device computation does.
cublasStatus_t record_dot(cublasHandle_t handle, const char* name, int64_t n, cudaDataType type, void* result,
                          cudaDataType result_type) {
  record_op(handle, name, type, 2 * n, 1, 2 * n);
  if (handle->pointer_mode == CUBLAS_POINTER_MODE_HOST) {
    std::memset(result, 0, maya::bytes_of(1, result_type));
  } else {
    maya::zero_result(result, maya::bytes_of(1, result_type));
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t record_trsm(cublasHandle_t handle, const char* name, cudaDataType type, cublasSideMode_t side,
                           int64_t m, int64_t n, int64_t batch) {
  const int64_t order = side == CUBLAS_SIDE_LEFT ? m : n;  // of the triangular matrix
  return record_op(handle, name, type, batch * (order * (order + 1) / 2 + m * n), batch * m * n,
                   batch * m * n * order);
}

// Householder QR of an m x n matrix: 2 n^2 (m - n / 3) for m >= n.
int64_t geqrf_flops(int64_t m, int64_t n) {
  const int64_t large = std::max(m, n), small = std::min(m, n);
  return 2 * small * small * large - 2 * small * small * small / 3;
}

}  // namespace

extern "C" {

// Handles and modes.

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  MAYA_COUNT_CALL();
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  MAYA_COUNT_CALL();
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
  MAYA_COUNT_CALL();
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetProperty(libraryPropertyType type, int* value) {
  MAYA_COUNT_CALL();
  *value = type == MAJOR_VERSION   ? CUBLAS_VER_MAJOR
           : type == MINOR_VERSION ? CUBLAS_VER_MINOR
                                   : CUBLAS_VER_PATCH;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  handle->math_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  *mode = handle->math_mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  handle->pointer_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
  *mode = handle->pointer_mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode) {
  MAYA_COUNT_CALL();
  handle->atomics_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t* mode) {
  MAYA_COUNT_CALL();
  *mode = handle->atomics_mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetSmCountTarget(cublasHandle_t handle, int sm_count_target) {
  MAYA_COUNT_CALL();
  handle->sm_count_target = sm_count_target;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetSmCountTarget(cublasHandle_t handle, int* sm_count_target) {
  MAYA_COUNT_CALL();
  *sm_count_target = handle->sm_count_target;
  return CUBLAS_STATUS_SUCCESS;
}

#define MAYA_STATUS_TEXT(status) \
  case status:                   \
    return #status;
const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    MAYA_STATUS_TEXT(CUBLAS_STATUS_SUCCESS)
    MAYA_STATUS_TEXT(CUBLAS_STATUS_NOT_INITIALIZED)
    MAYA_STATUS_TEXT(CUBLAS_STATUS_ALLOC_FAILED)
    MAYA_STATUS_TEXT(CUBLAS_STATUS_INVALID_VALUE)
    MAYA_STATUS_TEXT(CUBLAS_STATUS_ARCH_MISMATCH)
    MAYA_STATUS_TEXT(CUBLAS_STATUS_EXECUTION_FAILED)
    MAYA_STATUS_TEXT(CUBLAS_STATUS_INTERNAL_ERROR)
    MAYA_STATUS_TEXT(CUBLAS_STATUS_NOT_SUPPORTED)
    default:
      return "unknown cuBLAS status";
  }
}
const char* cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

// Matrix products, column-major as given: C (m x n) = op(A) (m x k) op(B) (k x n).

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b,
                            int m, int n, int k, const void*, const void*, cudaDataType type_a, int,
                            const void*, cudaDataType type_b, int, const void*, void* c, cudaDataType type_c,
                            int ldc, cublasComputeType_t compute_type, cublasGemmAlgo_t) {
  return record_gemm(handle, {trans_a, trans_b, m, n, k, 1, type_a, type_b, type_c, compute_type, c, ldc});
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t trans_a,
                                          cublasOperation_t trans_b, int m, int n, int k, const void*,
                                          const void*, cudaDataType type_a, int, long long int, const void*,
                                          cudaDataType type_b, int, long long int, const void*, void* c,
                                          cudaDataType type_c, int ldc, long long int stride_c, int batch,
                                          cublasComputeType_t compute_type, cublasGemmAlgo_t) {
  return record_gemm(
      handle, {trans_a, trans_b, m, n, k, batch, type_a, type_b, type_c, compute_type, c, ldc, stride_c});
}

cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t trans_a,
                                   cublasOperation_t trans_b, int m, int n, int k, const void*,
                                   const void* const[], cudaDataType type_a, int, const void* const[],
                                   cudaDataType type_b, int, const void*, void* const[], cudaDataType type_c,
                                   int, int batch, cublasComputeType_t compute_type, cublasGemmAlgo_t) {
  return record_gemm(handle, {trans_a, trans_b, m, n, k, batch, type_a, type_b, type_c, compute_type});
}

cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b,
                             int m, int n, int k, const float*, const void*, cudaDataType type_a, int,
                             const void*, cudaDataType type_b, int, const float*, void* c,
                             cudaDataType type_c, int ldc) {
  return record_gemm(handle,
                     {trans_a, trans_b, m, n, k, 1, type_a, type_b, type_c, CUBLAS_COMPUTE_32F, c, ldc});
}

#define MAYA_GEMM(single, batched, strided, Element, type, compute_type)                                     \
  cublasStatus_t single(cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b, int m,  \
                        int n, int k, const Element*, const Element*, int, const Element*, int,              \
                        const Element*, Element* c, int ldc) {                                               \
    return record_gemm(handle, {trans_a, trans_b, m, n, k, 1, type, type, type, compute_type, c, ldc});      \
  }                                                                                                          \
  cublasStatus_t batched(cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b, int m, \
                         int n, int k, const Element*, const Element* const[], int, const Element* const[],  \
                         int, const Element*, Element* const[], int, int batch) {                            \
    return record_gemm(handle, {trans_a, trans_b, m, n, k, batch, type, type, type, compute_type});          \
  }                                                                                                          \
  cublasStatus_t strided(cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b, int m, \
                         int n, int k, const Element*, const Element*, int, long long int, const Element*,   \
                         int, long long int, const Element*, Element* c, int ldc, long long int stride_c,    \
                         int batch) {                                                                        \
    return record_gemm(                                                                                      \
        handle, {trans_a, trans_b, m, n, k, batch, type, type, type, compute_type, c, ldc, stride_c});       \
  }
MAYA_GEMM(cublasHgemm, cublasHgemmBatched, cublasHgemmStridedBatched, __half, CUDA_R_16F, CUBLAS_COMPUTE_16F)
MAYA_GEMM(cublasSgemm_v2, cublasSgemmBatched, cublasSgemmStridedBatched, float, CUDA_R_32F,
          CUBLAS_COMPUTE_32F)
MAYA_GEMM(cublasDgemm_v2, cublasDgemmBatched, cublasDgemmStridedBatched, double, CUDA_R_64F,
          CUBLAS_COMPUTE_64F)
MAYA_GEMM(cublasCgemm_v2, cublasCgemmBatched, cublasCgemmStridedBatched, cuComplex, CUDA_C_32F,
          CUBLAS_COMPUTE_32F)
MAYA_GEMM(cublasZgemm_v2, cublasZgemmBatched, cublasZgemmStridedBatched, cuDoubleComplex, CUDA_C_64F,
          CUBLAS_COMPUTE_64F)

// Matrix-vector products, dot products, triangular solves and factorisations.

cublasStatus_t cublasDotEx(cublasHandle_t handle, int n, const void*, cudaDataType type, int, const void*,
                           cudaDataType, int, void* result, cudaDataType result_type, cudaDataType) {
  return record_dot(handle, __func__, n, type, result, result_type);
}

#define MAYA_DOT(function, Element, type)                                                         \
  cublasStatus_t function(cublasHandle_t handle, int n, const Element*, int, const Element*, int, \
                          Element* result) {                                                      \
    return record_dot(handle, __func__, n, type, result, type);                                   \
  }
MAYA_DOT(cublasSdot_v2, float, CUDA_R_32F)
MAYA_DOT(cublasDdot_v2, double, CUDA_R_64F)
MAYA_DOT(cublasCdotu_v2, cuComplex, CUDA_C_32F)
MAYA_DOT(cublasCdotc_v2, cuComplex, CUDA_C_32F)
MAYA_DOT(cublasZdotu_v2, cuDoubleComplex, CUDA_C_64F)
MAYA_DOT(cublasZdotc_v2, cuDoubleComplex, CUDA_C_64F)

#define MAYA_GER(function, Element, type)                                                                 \
  cublasStatus_t function(cublasHandle_t handle, int m, int n, const Element*, const Element*, int,       \
                          const Element*, int, Element*, int) {                                           \
    return record_op(handle, __func__, type, int64_t(m) * n + m + n, int64_t(m) * n, 2 * int64_t(m) * n); \
  }
MAYA_GER(cublasSger_v2, float, CUDA_R_32F)
MAYA_GER(cublasDger_v2, double, CUDA_R_64F)
MAYA_GER(cublasCgeru_v2, cuComplex, CUDA_C_32F)
MAYA_GER(cublasCgerc_v2, cuComplex, CUDA_C_32F)
MAYA_GER(cublasZgeru_v2, cuDoubleComplex, CUDA_C_64F)
MAYA_GER(cublasZgerc_v2, cuDoubleComplex, CUDA_C_64F)

#define MAYA_BLAS(P, Element, type)                                                                        \
  cublasStatus_t cublas##P##gemv_v2(cublasHandle_t handle, cublasOperation_t trans, int m, int n,          \
                                    const Element*, const Element*, int, const Element*, int,              \
                                    const Element*, Element*, int) {                                       \
    const int64_t inputs = trans == CUBLAS_OP_N ? n : m, outputs = trans == CUBLAS_OP_N ? m : n;           \
    return record_op(handle, __func__, type, inputs * outputs + inputs, outputs, 2 * inputs * outputs);    \
  }                                                                                                        \
  cublasStatus_t cublas##P##trsm_v2(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t,        \
                                    cublasOperation_t, cublasDiagType_t, int m, int n, const Element*,     \
                                    const Element*, int, Element*, int) {                                  \
    return record_trsm(handle, __func__, type, side, m, n, 1);                                             \
  }                                                                                                        \
  cublasStatus_t cublas##P##trsmBatched(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t,    \
                                        cublasOperation_t, cublasDiagType_t, int m, int n, const Element*, \
                                        const Element* const[], int, Element* const[], int, int batch) {   \
    return record_trsm(handle, __func__, type, side, m, n, batch);                                         \
  }                                                                                                        \
  cublasStatus_t cublas##P##getrfBatched(cublasHandle_t handle, int n, Element* const[], int, int*, int*,  \
                                         int batch) {                                                      \
    const int64_t order = n;                                                                               \
    return record_op(handle, __func__, type, batch * order * order, batch * order * order,                 \
                     batch * order * order * order * 2 / 3);                                               \
  }                                                                                                        \
  cublasStatus_t cublas##P##getrsBatched(cublasHandle_t handle, cublasOperation_t, int n, int num_columns, \
                                         const Element* const[], int, const int*, Element* const[], int,   \
                                         int* info, int batch) {                                           \
    const int64_t order = n;                                                                               \
    *info = 0;                                                                                             \
    return record_op(handle, __func__, type, batch * order * (order + num_columns),                        \
                     batch * order * num_columns, 2 * batch * order * order * num_columns);                \
  }                                                                                                        \
  cublasStatus_t cublas##P##geqrfBatched(cublasHandle_t handle, int m, int n, Element* const[], int,       \
                                         Element* const[], int* info, int batch) {                         \
    const int64_t elements = int64_t(batch) * m * n;                                                       \
    *info = 0;                                                                                             \
    return record_op(handle, __func__, type, elements, elements, batch * geqrf_flops(m, n));               \
  }                                                                                                        \
  cublasStatus_t cublas##P##gelsBatched(cublasHandle_t handle, cublasOperation_t, int m, int n,            \
                                        int num_columns, Element* const[], int, Element* const[], int,     \
                                        int* info, int*, int batch) {                                      \
    const int64_t elements = int64_t(batch) * m * (n + num_columns);                                       \
    *info = 0;                                                                                             \
    return record_op(handle, __func__, type, elements, elements,                                           \
                     batch * (geqrf_flops(m, n) + 4 * int64_t(m) * n * num_columns));                      \
  }
MAYA_BLAS(S, float, CUDA_R_32F)
MAYA_BLAS(D, double, CUDA_R_64F)
MAYA_BLAS(C, cuComplex, CUDA_C_32F)
MAYA_BLAS(Z, cuDoubleComplex, CUDA_C_64F)

}  // extern "C"
