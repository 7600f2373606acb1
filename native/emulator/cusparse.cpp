// cuSPARSE: descriptors, and products of a sparse matrix with dense ones. Products of two sparse
// matrices depend on device data, which does not exist here; they are left to the generated stubs.
#include "half_types.h"
// Before the headers that would include the definitions of these types.
#include <cusparse.h>

#include "math_library.h"

using maya::Call;

struct cusparseContext {
  cudaStream_t stream = nullptr;
  cusparsePointerMode_t pointer_mode = CUSPARSE_POINTER_MODE_HOST;
};
struct cusparseSpMatDescr {
  int64_t rows, cols, num_nonzeros, index_bytes;  // index_bytes: of all indices and offsets
  cudaDataType type;
  int64_t batch = 1;
};
struct cusparseDnMatDescr {
  int64_t rows, cols;
  cudaDataType type;
  int64_t batch = 1;
};
struct cusparseDnVecDescr {
  int64_t size;
  cudaDataType type;
};

namespace {

int64_t index_bytes(cusparseIndexType_t type) { return type == CUSPARSE_INDEX_64I ? 8 : 4; }

int64_t bytes_of(const cusparseSpMatDescr& matrix) {
  return matrix.batch * (maya::bytes_of(matrix.num_nonzeros, matrix.type) + matrix.index_bytes);
}
int64_t bytes_of(const cusparseDnMatDescr& matrix) {
  return matrix.batch * maya::bytes_of(matrix.rows * matrix.cols, matrix.type);
}
int64_t bytes_of(const cusparseDnVecDescr& vector) { return maya::bytes_of(vector.size, vector.type); }

cusparseStatus_t record(cusparseHandle_t handle, const char* name, cudaDataType type,
                        const maya::Work& work) {
  Call call;
  maya::record_library_op(call, handle->stream, name, maya::cudnn_data_type(type), work);
  return CUSPARSE_STATUS_SUCCESS;
}

template <typename Descriptor>
cusparseStatus_t destroy(const Descriptor* descriptor) {
  delete descriptor;
  return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t no_bytes(size_t* bytes) {
  *bytes = 0;
  return CUSPARSE_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

cusparseStatus_t cusparseCreate(cusparseHandle_t* handle) {
  MAYA_COUNT_CALL();
  *handle = new cusparseContext;
  return CUSPARSE_STATUS_SUCCESS;
}
cusparseStatus_t cusparseDestroy(cusparseHandle_t handle) {
  MAYA_COUNT_CALL();
  return destroy(handle);
}
cusparseStatus_t cusparseSetStream(cusparseHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUSPARSE_STATUS_SUCCESS;
}
cusparseStatus_t cusparseSetPointerMode(cusparseHandle_t handle, cusparsePointerMode_t mode) {
  handle->pointer_mode = mode;
  return CUSPARSE_STATUS_SUCCESS;
}
const char* cusparseGetErrorString(cusparseStatus_t status) {
  return status == CUSPARSE_STATUS_SUCCESS ? "success" : "operation not supported";
}

cusparseStatus_t cusparseCreateCsr(cusparseSpMatDescr_t* matrix, int64_t rows, int64_t cols,
                                   int64_t num_nonzeros, void*, void*, void*, cusparseIndexType_t offset_type,
                                   cusparseIndexType_t column_type, cusparseIndexBase_t, cudaDataType type) {
  *matrix = new cusparseSpMatDescr{
      rows, cols, num_nonzeros,
      (rows + 1) * index_bytes(offset_type) + num_nonzeros * index_bytes(column_type), type};
  return CUSPARSE_STATUS_SUCCESS;
}
cusparseStatus_t cusparseCreateCoo(cusparseSpMatDescr_t* matrix, int64_t rows, int64_t cols,
                                   int64_t num_nonzeros, void*, void*, void*, cusparseIndexType_t index_type,
                                   cusparseIndexBase_t, cudaDataType type) {
  *matrix =
      new cusparseSpMatDescr{rows, cols, num_nonzeros, 2 * num_nonzeros * index_bytes(index_type), type};
  return CUSPARSE_STATUS_SUCCESS;
}
cusparseStatus_t cusparseDestroySpMat(cusparseConstSpMatDescr_t matrix) { return destroy(matrix); }
cusparseStatus_t cusparseCsrSetStridedBatch(cusparseSpMatDescr_t matrix, int batch, int64_t, int64_t) {
  matrix->batch = batch;
  return CUSPARSE_STATUS_SUCCESS;
}
cusparseStatus_t cusparseSpMatGetSize(cusparseConstSpMatDescr_t matrix, int64_t* rows, int64_t* cols,
                                      int64_t* num_nonzeros) {
  *rows = matrix->rows;
  *cols = matrix->cols;
  *num_nonzeros = matrix->num_nonzeros;
  return CUSPARSE_STATUS_SUCCESS;
}

cusparseStatus_t cusparseCreateDnMat(cusparseDnMatDescr_t* matrix, int64_t rows, int64_t cols, int64_t, void*,
                                     cudaDataType type, cusparseOrder_t) {
  *matrix = new cusparseDnMatDescr{rows, cols, type};
  return CUSPARSE_STATUS_SUCCESS;
}
cusparseStatus_t cusparseDestroyDnMat(cusparseConstDnMatDescr_t matrix) { return destroy(matrix); }
cusparseStatus_t cusparseDnMatSetStridedBatch(cusparseDnMatDescr_t matrix, int batch, int64_t) {
  matrix->batch = batch;
  return CUSPARSE_STATUS_SUCCESS;
}
cusparseStatus_t cusparseCreateDnVec(cusparseDnVecDescr_t* vector, int64_t size, void*, cudaDataType type) {
  *vector = new cusparseDnVecDescr{size, type};
  return CUSPARSE_STATUS_SUCCESS;
}
cusparseStatus_t cusparseDestroyDnVec(cusparseConstDnVecDescr_t vector) { return destroy(vector); }

// Products: every nonzero meets one element of each dense column.

cusparseStatus_t cusparseSpMM_bufferSize(cusparseHandle_t, cusparseOperation_t, cusparseOperation_t,
                                         const void*, cusparseConstSpMatDescr_t, cusparseConstDnMatDescr_t,
                                         const void*, cusparseDnMatDescr_t, cudaDataType, cusparseSpMMAlg_t,
                                         size_t* bytes) {
  return no_bytes(bytes);
}
cusparseStatus_t cusparseSpMM(cusparseHandle_t handle, cusparseOperation_t, cusparseOperation_t, const void*,
                              cusparseConstSpMatDescr_t a, cusparseConstDnMatDescr_t b, const void*,
                              cusparseDnMatDescr_t c, cudaDataType, cusparseSpMMAlg_t, void*) {
  return record(handle, __func__, a->type,
                {bytes_of(*a) + bytes_of(*b), bytes_of(*c),
                 maya::real_flops(2 * a->num_nonzeros * a->batch * c->cols, a->type)});
}

cusparseStatus_t cusparseSpMV_bufferSize(cusparseHandle_t, cusparseOperation_t, const void*,
                                         cusparseConstSpMatDescr_t, cusparseConstDnVecDescr_t, const void*,
                                         cusparseDnVecDescr_t, cudaDataType, cusparseSpMVAlg_t,
                                         size_t* bytes) {
  return no_bytes(bytes);
}
cusparseStatus_t cusparseSpMV(cusparseHandle_t handle, cusparseOperation_t, const void*,
                              cusparseConstSpMatDescr_t a, cusparseConstDnVecDescr_t x, const void*,
                              cusparseDnVecDescr_t y, cudaDataType, cusparseSpMVAlg_t, void*) {
  return record(handle, __func__, a->type,
                {bytes_of(*a) + bytes_of(*x), bytes_of(*y), maya::real_flops(2 * a->num_nonzeros, a->type)});
}

cusparseStatus_t cusparseSDDMM_bufferSize(cusparseHandle_t, cusparseOperation_t, cusparseOperation_t,
                                          const void*, cusparseConstDnMatDescr_t, cusparseConstDnMatDescr_t,
                                          const void*, cusparseSpMatDescr_t, cudaDataType, cusparseSDDMMAlg_t,
                                          size_t* bytes) {
  return no_bytes(bytes);
}
cusparseStatus_t cusparseSDDMM(cusparseHandle_t handle, cusparseOperation_t trans_a, cusparseOperation_t,
                               const void*, cusparseConstDnMatDescr_t a, cusparseConstDnMatDescr_t b,
                               const void*, cusparseSpMatDescr_t c, cudaDataType, cusparseSDDMMAlg_t, void*) {
  const int64_t inner = trans_a == CUSPARSE_OPERATION_NON_TRANSPOSE ? a->cols : a->rows;
  return record(handle, __func__, c->type,
                {bytes_of(*a) + bytes_of(*b) + bytes_of(*c), bytes_of(*c),
                 maya::real_flops(2 * c->num_nonzeros * c->batch * inner, c->type)});
}

// Offsets of rows from sorted row indices.
cusparseStatus_t cusparseXcoo2csr(cusparseHandle_t handle, const int*, int num_nonzeros, int rows,
                                  int* offsets, cusparseIndexBase_t) {
  const int64_t written_bytes = (int64_t(rows) + 1) * int64_t(sizeof(int));
  const cusparseStatus_t status =
      record(handle, __func__, CUDA_R_32I, {num_nonzeros * int64_t(sizeof(int)), written_bytes});
  maya::zero_result(offsets, written_bytes);
  return status;
}

}  // extern "C"
