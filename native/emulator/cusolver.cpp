// cuSOLVER's dense factorisations and solves as PyTorch calls them; every one succeeds (info 0).
// Flop counts: LAPACK working note 41, appendix C, leading terms; eigenvalue and singular value
// decompositions: Golub and Van Loan, Matrix Computations, sections 8.3 and 8.6, with vectors.
#include "half_types.h"
// Before the headers that would include the definitions of these types.
#include <cusolverDn.h>

#include <algorithm>

#include "math_library.h"

using maya::Call;

struct cusolverDnContext {
  cudaStream_t stream = nullptr;
};
struct cusolverDnParams {};
struct gesvdjInfo {};
struct syevjInfo {};

namespace {

// Elements of a workspace that is enough for blocked algorithms: 64 columns.
constexpr int64_t kBlockColumns = 64;

struct Matrix {
  int64_t read_elements, written_elements, flops;
};

cusolverStatus_t record(cusolverDnHandle_t handle, const char* name, cudaDataType type, const Matrix& matrix,
                        int* info, int64_t batch = 1) {
  Call call;
  maya::record_library_op(
      call, handle->stream, name, maya::cudnn_data_type(type),
      {maya::bytes_of(batch * matrix.read_elements, type),
       maya::bytes_of(batch * matrix.written_elements, type), maya::real_flops(batch * matrix.flops, type)});
  maya::zero_result(info, batch * int64_t(sizeof(int)));
  return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t workspace(int* elements, int64_t rows) {
  *elements = static_cast<int>(rows * kBlockColumns);
  return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t workspace(size_t* device_bytes, size_t* host_bytes, int64_t rows, cudaDataType type) {
  *device_bytes = maya::bytes_of(rows * kBlockColumns, type);
  *host_bytes = 0;
  return CUSOLVER_STATUS_SUCCESS;
}

Matrix cholesky(int64_t n) { return {n * (n + 1) / 2, n * (n + 1) / 2, n * n * n / 3}; }
Matrix solve(int64_t n, int64_t columns) { return {n * (n + columns), n * columns, 2 * n * n * columns}; }
Matrix lu(int64_t m, int64_t n) {
  const int64_t small = std::min(m, n), large = std::max(m, n);
  return {m * n, m * n, small * small * large - small * small * small / 3};
}
Matrix qr(int64_t m, int64_t n) {
  const int64_t small = std::min(m, n), large = std::max(m, n);
  return {m * n, m * n, 2 * small * small * large - 2 * small * small * small / 3};
}
// Generating Q (m x n) from k reflectors, and applying them to an m x n matrix.
Matrix generate_q(int64_t m, int64_t n, int64_t k) {
  return {m * k, m * n, 4 * m * n * k - 2 * (m + n) * k * k + 4 * k * k * k / 3};
}
Matrix apply_q(int64_t order, int64_t m, int64_t n, int64_t k) {
  return {order * k + m * n, m * n, 4 * m * n * k - 2 * m * n * k * k / std::max<int64_t>(order, 1)};
}
Matrix eigen(int64_t n) { return {n * n, n * n + n, 9 * n * n * n}; }
Matrix singular_values(int64_t m, int64_t n) {
  const int64_t small = std::min(m, n), large = std::max(m, n);
  return {m * n, m * small + small * n + small,
          4 * large * large * small + 8 * large * small * small + 9 * small * small * small};
}

}  // namespace

extern "C" {

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* handle) {
  MAYA_COUNT_CALL();
  *handle = new cusolverDnContext;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle) {
  MAYA_COUNT_CALL();
  delete handle;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnCreateParams(cusolverDnParams_t* params) {
  *params = new cusolverDnParams;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDestroyParams(cusolverDnParams_t params) {
  delete params;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnCreateGesvdjInfo(gesvdjInfo_t* info) {
  *info = new gesvdjInfo;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDestroyGesvdjInfo(gesvdjInfo_t info) {
  delete info;
  return CUSOLVER_STATUS_SUCCESS;
}

#define MAYA_DENSE(P, Element, type)                                                                       \
  cusolverStatus_t cusolverDn##P##potrf_bufferSize(cusolverDnHandle_t, cublasFillMode_t, int n, Element*,  \
                                                   int, int* elements) {                                   \
    return workspace(elements, n);                                                                         \
  }                                                                                                        \
  cusolverStatus_t cusolverDn##P##potrf(cusolverDnHandle_t handle, cublasFillMode_t, int n, Element*, int, \
                                        Element*, int, int* info) {                                        \
    return record(handle, __func__, type, cholesky(n), info);                                              \
  }                                                                                                        \
  cusolverStatus_t cusolverDn##P##potrfBatched(cusolverDnHandle_t handle, cublasFillMode_t, int n,         \
                                               Element*[], int, int* info, int batch) {                    \
    return record(handle, __func__, type, cholesky(n), info, batch);                                       \
  }                                                                                                        \
  cusolverStatus_t cusolverDn##P##potrs(cusolverDnHandle_t handle, cublasFillMode_t, int n, int columns,   \
                                        const Element*, int, Element*, int, int* info) {                   \
    return record(handle, __func__, type, solve(n, columns), info);                                        \
  }                                                                                                        \
  cusolverStatus_t cusolverDn##P##potrsBatched(cusolverDnHandle_t handle, cublasFillMode_t, int n,         \
                                               int columns, Element*[], int, Element*[], int, int* info,   \
                                               int batch) {                                                \
    maya::zero_result(info, sizeof(int)); /* one code for the whole batch */                               \
    return record(handle, __func__, type, solve(n, columns), nullptr, batch);                              \
  }                                                                                                        \
  cusolverStatus_t cusolverDn##P##getrf_bufferSize(cusolverDnHandle_t, int m, int, Element*, int,          \
                                                   int* elements) {                                        \
    return workspace(elements, m);                                                                         \
  }                                                                                                        \
  cusolverStatus_t cusolverDn##P##getrf(cusolverDnHandle_t handle, int m, int n, Element*, int, Element*,  \
                                        int*, int* info) {                                                 \
    return record(handle, __func__, type, lu(m, n), info);                                                 \
  }                                                                                                        \
  cusolverStatus_t cusolverDn##P##getrs(cusolverDnHandle_t handle, cublasOperation_t, int n, int columns,  \
                                        const Element*, int, const int*, Element*, int, int* info) {       \
    return record(handle, __func__, type, solve(n, columns), info);                                        \
  }                                                                                                        \
  cusolverStatus_t cusolverDn##P##geqrf_bufferSize(cusolverDnHandle_t, int, int n, Element*, int,          \
                                                   int* elements) {                                        \
    return workspace(elements, n);                                                                         \
  }                                                                                                        \
  cusolverStatus_t cusolverDn##P##geqrf(cusolverDnHandle_t handle, int m, int n, Element*, int, Element*,  \
                                        Element*, int, int* info) {                                        \
    return record(handle, __func__, type, qr(m, n), info);                                                 \
  }                                                                                                        \
  cusolverStatus_t cusolverDn##P##sytrf_bufferSize(cusolverDnHandle_t, int n, Element*, int,               \
                                                   int* elements) {                                        \
    return workspace(elements, n);                                                                         \
  }                                                                                                        \
  cusolverStatus_t cusolverDn##P##sytrf(cusolverDnHandle_t handle, cublasFillMode_t, int n, Element*, int, \
                                        int*, Element*, int, int* info) {                                  \
    return record(handle, __func__, type, cholesky(n), info); /* LDL^T costs as much */                    \
  }
MAYA_DENSE(S, float, CUDA_R_32F)
MAYA_DENSE(D, double, CUDA_R_64F)
MAYA_DENSE(C, cuComplex, CUDA_C_32F)
MAYA_DENSE(Z, cuDoubleComplex, CUDA_C_64F)

// Q from Householder reflectors: orgqr and ormqr for real types, ungqr and unmqr for complex ones.
#define MAYA_HOUSEHOLDER(generate, apply, Element, type)                                                    \
  cusolverStatus_t generate##_bufferSize(cusolverDnHandle_t, int, int n, int, const Element*, int,          \
                                         const Element*, int* elements) {                                   \
    return workspace(elements, n);                                                                          \
  }                                                                                                         \
  cusolverStatus_t generate(cusolverDnHandle_t handle, int m, int n, int k, Element*, int, const Element*,  \
                            Element*, int, int* info) {                                                     \
    return record(handle, __func__, type, generate_q(m, n, k), info);                                       \
  }                                                                                                         \
  cusolverStatus_t apply##_bufferSize(cusolverDnHandle_t, cublasSideMode_t side, cublasOperation_t, int m,  \
                                      int n, int, const Element*, int, const Element*, const Element*, int, \
                                      int* elements) {                                                      \
    return workspace(elements, side == CUBLAS_SIDE_LEFT ? n : m);                                           \
  }                                                                                                         \
  cusolverStatus_t apply(cusolverDnHandle_t handle, cublasSideMode_t side, cublasOperation_t, int m, int n, \
                         int k, const Element*, int, const Element*, Element*, int, Element*, int,          \
                         int* info) {                                                                       \
    return record(handle, __func__, type, apply_q(side == CUBLAS_SIDE_LEFT ? m : n, m, n, k), info);        \
  }
MAYA_HOUSEHOLDER(cusolverDnSorgqr, cusolverDnSormqr, float, CUDA_R_32F)
MAYA_HOUSEHOLDER(cusolverDnDorgqr, cusolverDnDormqr, double, CUDA_R_64F)
MAYA_HOUSEHOLDER(cusolverDnCungqr, cusolverDnCunmqr, cuComplex, CUDA_C_32F)
MAYA_HOUSEHOLDER(cusolverDnZungqr, cusolverDnZunmqr, cuDoubleComplex, CUDA_C_64F)

// Singular values: by QR, by Jacobi rotations, and many small ones.
#define MAYA_SINGULAR_VALUES(P, Element, Real, type)                                                         \
  cusolverStatus_t cusolverDn##P##gesvd_bufferSize(cusolverDnHandle_t, int m, int n, int* elements) {        \
    return workspace(elements, std::max(m, n));                                                              \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##P##gesvd(cusolverDnHandle_t handle, signed char, signed char, int m, int n,   \
                                        Element*, int, Real*, Element*, int, Element*, int, Element*, int,   \
                                        Real*, int* info) {                                                  \
    return record(handle, __func__, type, singular_values(m, n), info);                                      \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##P##gesvdj_bufferSize(cusolverDnHandle_t, cusolverEigMode_t, int, int m,       \
                                                    int n, const Element*, int, const Real*, const Element*, \
                                                    int, const Element*, int, int* elements, gesvdjInfo_t) { \
    return workspace(elements, std::max(m, n));                                                              \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##P##gesvdj(cusolverDnHandle_t handle, cusolverEigMode_t, int, int m, int n,    \
                                         Element*, int, Real*, Element*, int, Element*, int, Element*, int,  \
                                         int* info, gesvdjInfo_t) {                                          \
    return record(handle, __func__, type, singular_values(m, n), info);                                      \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##P##gesvdjBatched_bufferSize(                                                  \
      cusolverDnHandle_t, cusolverEigMode_t, int m, int n, const Element*, int, const Real*, const Element*, \
      int, const Element*, int, int* elements, gesvdjInfo_t, int batch) {                                    \
    return workspace(elements, int64_t(std::max(m, n)) * batch);                                             \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##P##gesvdjBatched(cusolverDnHandle_t handle, cusolverEigMode_t, int m, int n,  \
                                                Element*, int, Real*, Element*, int, Element*, int,          \
                                                Element*, int, int* info, gesvdjInfo_t, int batch) {         \
    return record(handle, __func__, type, singular_values(m, n), info, batch);                               \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##P##gesvdaStridedBatched_bufferSize(                                           \
      cusolverDnHandle_t, cusolverEigMode_t, int, int m, int n, const Element*, int, long long int,          \
      const Real*, long long int, const Element*, int, long long int, const Element*, int, long long int,    \
      int* elements, int batch) {                                                                            \
    return workspace(elements, int64_t(std::max(m, n)) * batch);                                             \
  }                                                                                                          \
  cusolverStatus_t cusolverDn##P##gesvdaStridedBatched(                                                      \
      cusolverDnHandle_t handle, cusolverEigMode_t, int, int m, int n, const Element*, int, long long int,   \
      Real*, long long int, Element*, int, long long int, Element*, int, long long int, Element*, int,       \
      int* info, double*, int batch) {                                                                       \
    return record(handle, __func__, type, singular_values(m, n), info, batch);                               \
  }
MAYA_SINGULAR_VALUES(S, float, float, CUDA_R_32F)
MAYA_SINGULAR_VALUES(D, double, double, CUDA_R_64F)
MAYA_SINGULAR_VALUES(C, cuComplex, float, CUDA_C_32F)
MAYA_SINGULAR_VALUES(Z, cuDoubleComplex, double, CUDA_C_64F)

// Eigenvalues by Jacobi rotations: syevj for real types, heevj for complex ones.
cusolverStatus_t cusolverDnCreateSyevjInfo(syevjInfo_t* info) {
  *info = new syevjInfo;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDestroySyevjInfo(syevjInfo_t info) {
  delete info;
  return CUSOLVER_STATUS_SUCCESS;
}
#define MAYA_EIGENVALUES(name, Element, Real, type)                                                         \
  cusolverStatus_t name##_bufferSize(cusolverDnHandle_t, cusolverEigMode_t, cublasFillMode_t, int n,        \
                                     const Element*, int, const Real*, int* elements, syevjInfo_t) {        \
    return workspace(elements, n);                                                                          \
  }                                                                                                         \
  cusolverStatus_t name(cusolverDnHandle_t handle, cusolverEigMode_t, cublasFillMode_t, int n, Element*,    \
                        int, Real*, Element*, int, int* info, syevjInfo_t) {                                \
    return record(handle, __func__, type, eigen(n), info);                                                  \
  }                                                                                                         \
  cusolverStatus_t name##Batched_bufferSize(cusolverDnHandle_t, cusolverEigMode_t, cublasFillMode_t, int n, \
                                            const Element*, int, const Real*, int* elements, syevjInfo_t,   \
                                            int batch) {                                                    \
    return workspace(elements, int64_t(n) * batch);                                                         \
  }                                                                                                         \
  cusolverStatus_t name##Batched(cusolverDnHandle_t handle, cusolverEigMode_t, cublasFillMode_t, int n,     \
                                 Element*, int, Real*, Element*, int, int* info, syevjInfo_t, int batch) {  \
    return record(handle, __func__, type, eigen(n), info, batch);                                           \
  }
MAYA_EIGENVALUES(cusolverDnSsyevj, float, float, CUDA_R_32F)
MAYA_EIGENVALUES(cusolverDnDsyevj, double, double, CUDA_R_64F)
MAYA_EIGENVALUES(cusolverDnCheevj, cuComplex, float, CUDA_C_32F)
MAYA_EIGENVALUES(cusolverDnZheevj, cuDoubleComplex, double, CUDA_C_64F)

// The generic interface: types as arguments, workspaces in bytes.

cusolverStatus_t cusolverDnXpotrf_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, cublasFillMode_t,
                                             int64_t n, cudaDataType type, const void*, int64_t, cudaDataType,
                                             size_t* device_bytes, size_t* host_bytes) {
  return workspace(device_bytes, host_bytes, n, type);
}
cusolverStatus_t cusolverDnXpotrf(cusolverDnHandle_t handle, cusolverDnParams_t, cublasFillMode_t, int64_t n,
                                  cudaDataType type, void*, int64_t, cudaDataType, void*, size_t, void*,
                                  size_t, int* info) {
  return record(handle, __func__, type, cholesky(n), info);
}
cusolverStatus_t cusolverDnXpotrs(cusolverDnHandle_t handle, cusolverDnParams_t, cublasFillMode_t, int64_t n,
                                  int64_t columns, cudaDataType type, const void*, int64_t, cudaDataType,
                                  void*, int64_t, int* info) {
  return record(handle, __func__, type, solve(n, columns), info);
}
cusolverStatus_t cusolverDnXgeqrf_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, int64_t, int64_t n,
                                             cudaDataType type, const void*, int64_t, cudaDataType,
                                             const void*, cudaDataType, size_t* device_bytes,
                                             size_t* host_bytes) {
  return workspace(device_bytes, host_bytes, n, type);
}
cusolverStatus_t cusolverDnXgeqrf(cusolverDnHandle_t handle, cusolverDnParams_t, int64_t m, int64_t n,
                                  cudaDataType type, void*, int64_t, cudaDataType, void*, cudaDataType, void*,
                                  size_t, void*, size_t, int* info) {
  return record(handle, __func__, type, qr(m, n), info);
}
cusolverStatus_t cusolverDnXsyevd_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, cusolverEigMode_t,
                                             cublasFillMode_t, int64_t n, cudaDataType type, const void*,
                                             int64_t, cudaDataType, const void*, cudaDataType,
                                             size_t* device_bytes, size_t* host_bytes) {
  return workspace(device_bytes, host_bytes, n, type);
}
cusolverStatus_t cusolverDnXsyevd(cusolverDnHandle_t handle, cusolverDnParams_t, cusolverEigMode_t,
                                  cublasFillMode_t, int64_t n, cudaDataType type, void*, int64_t,
                                  cudaDataType, void*, cudaDataType, void*, size_t, void*, size_t,
                                  int* info) {
  return record(handle, __func__, type, eigen(n), info);
}
cusolverStatus_t cusolverDnXsyevBatched_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, cusolverEigMode_t,
                                                   cublasFillMode_t, int64_t n, cudaDataType type,
                                                   const void*, int64_t, cudaDataType, const void*,
                                                   cudaDataType, size_t* device_bytes, size_t* host_bytes,
                                                   int64_t batch) {
  return workspace(device_bytes, host_bytes, n * batch, type);
}
cusolverStatus_t cusolverDnXsyevBatched(cusolverDnHandle_t handle, cusolverDnParams_t, cusolverEigMode_t,
                                        cublasFillMode_t, int64_t n, cudaDataType type, void*, int64_t,
                                        cudaDataType, void*, cudaDataType, void*, size_t, void*, size_t,
                                        int* info, int64_t batch) {
  return record(handle, __func__, type, eigen(n), info, batch);
}

}  // extern "C"
