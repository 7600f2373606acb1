// cublasLt: descriptors live in the opaque structs, which programs may also place on their stack;
// matrix products become `gemm` records with their epilogue.
#include "half_types.h"
// Before the headers that would include the definitions of these types.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "math_library.h"

using maya::Call;
using maya::Kind;

namespace {

struct Attribute {
  int number;
  size_t bytes;
};

// Attributes with their sizes as cublasLt.h documents them; values lie in the opaque struct in this order.
// Of cuBLAS 13, for older headers.
constexpr auto kLayoutBatchMode = static_cast<cublasLtMatrixLayoutAttribute_t>(8);
constexpr auto kMatmulEmulationDescriptor = static_cast<cublasLtMatmulDescAttributes_t>(38);

constexpr Attribute kLayoutAttributes[] = {
    {CUBLASLT_MATRIX_LAYOUT_TYPE, 4},
    {CUBLASLT_MATRIX_LAYOUT_ORDER, 4},
    {CUBLASLT_MATRIX_LAYOUT_ROWS, 8},
    {CUBLASLT_MATRIX_LAYOUT_COLS, 8},
    {CUBLASLT_MATRIX_LAYOUT_LD, 8},
    {CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 8},
    {CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET, 8},
    {CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 4},
    {kLayoutBatchMode, 4},
};
constexpr Attribute kMatmulAttributes[] = {
    {CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, 4},
    {CUBLASLT_MATMUL_DESC_SCALE_TYPE, 4},
    {CUBLASLT_MATMUL_DESC_POINTER_MODE, 4},
    {CUBLASLT_MATMUL_DESC_TRANSA, 4},
    {CUBLASLT_MATMUL_DESC_TRANSB, 4},
    {CUBLASLT_MATMUL_DESC_TRANSC, 4},
    {CUBLASLT_MATMUL_DESC_FILL_MODE, 4},
    {CUBLASLT_MATMUL_DESC_EPILOGUE, 4},
    {CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, 8},
    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 8},
    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, 8},
    {CUBLASLT_MATMUL_DESC_ALPHA_VECTOR_BATCH_STRIDE, 8},
    {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER, 8},
    {CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER, 8},
    {kMatmulEmulationDescriptor, 8},
    {CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, 4},
    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, 4},
    {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, 4},
    {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, 4},
    {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, 4},
    {CUBLASLT_MATMUL_DESC_C_SCALE_MODE, 4},
    {CUBLASLT_MATMUL_DESC_D_SCALE_MODE, 4},
    {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_MODE, 4},
    {CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE, 4},
    {CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1},
};
constexpr Attribute kPreferenceAttributes[] = {
    {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 8},   {CUBLASLT_MATMUL_PREF_IMPL_MASK, 8},
    {CUBLASLT_MATMUL_PREF_SEARCH_MODE, 4},           {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 4},
    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 4}, {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 4},
    {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 4}, {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 4},
    {CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, 4},
};
constexpr Attribute kAlgorithmAttributes[] = {
    {CUBLASLT_ALGO_CONFIG_ID, 4},
    {CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
    {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
    {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
    {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
    {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
    {CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
    {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
    {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2},
};

template <size_t kCount>
constexpr size_t total_bytes(const Attribute (&attributes)[kCount]) {
  size_t bytes = 0;
  for (const Attribute& attribute : attributes) bytes += attribute.bytes;
  return bytes;
}
static_assert(total_bytes(kLayoutAttributes) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(total_bytes(kMatmulAttributes) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(total_bytes(kPreferenceAttributes) <= sizeof(cublasLtMatmulPreferenceOpaque_t));
static_assert(total_bytes(kAlgorithmAttributes) <= sizeof(cublasLtMatmulAlgo_t));

struct Slot {
  size_t offset = 0, bytes = 0;
};

template <size_t kCount>
constexpr Slot find_slot(const Attribute (&attributes)[kCount], int number) {
  size_t offset = 0;
  for (const Attribute& attribute : attributes) {
    if (attribute.number == number) return {offset, attribute.bytes};
    offset += attribute.bytes;
  }
  return {};
}

template <size_t kCount>
cublasStatus_t set_attribute(const Attribute (&attributes)[kCount], void* descriptor, int number,
                             const void* value, size_t bytes, const char* function) {
  const Slot slot = find_slot(attributes, number);
  if (slot.bytes == 0) {
    maya::unemulated(function);
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (value == nullptr || bytes < slot.bytes) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(static_cast<char*>(descriptor) + slot.offset, value, slot.bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <size_t kCount>
cublasStatus_t get_attribute(const Attribute (&attributes)[kCount], const void* descriptor, int number,
                             void* value, size_t bytes, size_t* written, const char* function) {
  const Slot slot = find_slot(attributes, number);
  if (slot.bytes == 0) {
    maya::unemulated(function);
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (written != nullptr) *written = slot.bytes;
  if (bytes == 0) return written == nullptr ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
  if (value == nullptr || bytes < slot.bytes) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, static_cast<const char*>(descriptor) + slot.offset, slot.bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Value, size_t kCount>
Value value_of(const Attribute (&attributes)[kCount], const void* descriptor, int number) {
  Value value;
  std::memcpy(&value, static_cast<const char*>(descriptor) + find_slot(attributes, number).offset,
              sizeof(Value));
  return value;
}

template <typename Value, size_t kCount>
void set_value(const Attribute (&attributes)[kCount], void* descriptor, int number, Value value) {
  std::memcpy(static_cast<char*>(descriptor) + find_slot(attributes, number).offset, &value, sizeof(Value));
}

struct Layout {
  explicit Layout(cublasLtMatrixLayout_t layout)
      : type(value_of<int32_t>(kLayoutAttributes, layout, CUBLASLT_MATRIX_LAYOUT_TYPE)),
        rows(value_of<int64_t>(kLayoutAttributes, layout, CUBLASLT_MATRIX_LAYOUT_ROWS)),
        cols(value_of<int64_t>(kLayoutAttributes, layout, CUBLASLT_MATRIX_LAYOUT_COLS)),
        leading_dimension(value_of<int64_t>(kLayoutAttributes, layout, CUBLASLT_MATRIX_LAYOUT_LD)),
        batch(value_of<int32_t>(kLayoutAttributes, layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)),
        batch_stride(
            value_of<int64_t>(kLayoutAttributes, layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)) {}
  int32_t type;
  int64_t rows, cols, leading_dimension;
  int32_t batch;
  int64_t batch_stride;
};

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  MAYA_COUNT_CALL();
  *handle = reinterpret_cast<cublasLtHandle_t>(new char);  // has no state; only its address is of interest
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  MAYA_COUNT_CALL();
  delete reinterpret_cast<char*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion() {
  MAYA_COUNT_CALL();
  return CUBLAS_VERSION;
}

size_t cublasLtGetCudartVersion() {
  MAYA_COUNT_CALL();
  return CUDART_VERSION;
}

// Matrix layouts.

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t size,
                                                 cudaDataType type, uint64_t rows, uint64_t cols,
                                                 int64_t leading_dimension) {
  if (size < sizeof(*layout)) return CUBLAS_STATUS_ALLOC_FAILED;
  *layout = {};
  set_value<int32_t>(kLayoutAttributes, layout, CUBLASLT_MATRIX_LAYOUT_TYPE, type);
  set_value<int32_t>(kLayoutAttributes, layout, CUBLASLT_MATRIX_LAYOUT_ORDER, CUBLASLT_ORDER_COL);
  set_value<uint64_t>(kLayoutAttributes, layout, CUBLASLT_MATRIX_LAYOUT_ROWS, rows);
  set_value<uint64_t>(kLayoutAttributes, layout, CUBLASLT_MATRIX_LAYOUT_COLS, cols);
  set_value<int64_t>(kLayoutAttributes, layout, CUBLASLT_MATRIX_LAYOUT_LD, leading_dimension);
  set_value<int32_t>(kLayoutAttributes, layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t leading_dimension) {
  MAYA_COUNT_CALL();
  *layout = new cublasLtMatrixLayoutOpaque_t;
  return cublasLtMatrixLayoutInit_internal(*layout, sizeof(**layout), type, rows, cols, leading_dimension);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
  return set_attribute(kLayoutAttributes, layout, attribute, value, bytes, __func__);
}

cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, void* value,
                                                size_t bytes, size_t* written) {
  return get_attribute(kLayoutAttributes, layout, attribute, value, bytes, written, __func__);
}

// Descriptors of matrix products.

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t matmul, size_t size,
                                               cublasComputeType_t compute_type, cudaDataType_t scale_type) {
  if (size < sizeof(*matmul)) return CUBLAS_STATUS_ALLOC_FAILED;
  *matmul = {};
  set_value<int32_t>(kMatmulAttributes, matmul, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, compute_type);
  set_value<int32_t>(kMatmulAttributes, matmul, CUBLASLT_MATMUL_DESC_SCALE_TYPE, scale_type);
  set_value<int32_t>(kMatmulAttributes, matmul, CUBLASLT_MATMUL_DESC_FILL_MODE, CUBLAS_FILL_MODE_FULL);
  set_value<int32_t>(kMatmulAttributes, matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
  // -1: the types of the auxiliary tensor and the bias follow from that of D.
  set_value<int32_t>(kMatmulAttributes, matmul, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, -1);
  set_value<int32_t>(kMatmulAttributes, matmul, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, -1);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* matmul, cublasComputeType_t compute_type,
                                        cudaDataType_t scale_type) {
  MAYA_COUNT_CALL();
  *matmul = new cublasLtMatmulDescOpaque_t;
  return cublasLtMatmulDescInit_internal(*matmul, sizeof(**matmul), compute_type, scale_type);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmul) {
  delete matmul;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmul,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
  return set_attribute(kMatmulAttributes, matmul, attribute, value, bytes, __func__);
}

cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t matmul,
                                              cublasLtMatmulDescAttributes_t attribute, void* value,
                                              size_t bytes, size_t* written) {
  return get_attribute(kMatmulAttributes, matmul, attribute, value, bytes, written, __func__);
}

// Preferences, heuristics and algorithms: one algorithm that runs everything without a workspace.

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, size_t size) {
  if (size < sizeof(*preference)) return CUBLAS_STATUS_ALLOC_FAILED;
  *preference = {};
  set_value<uint64_t>(kPreferenceAttributes, preference, CUBLASLT_MATMUL_PREF_IMPL_MASK, UINT64_MAX);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  MAYA_COUNT_CALL();
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return cublasLtMatmulPreferenceInit_internal(*preference, sizeof(**preference));
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  return set_attribute(kPreferenceAttributes, preference, attribute, value, bytes, __func__);
}

cublasStatus_t cublasLtMatmulPreferenceGetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written) {
  return get_attribute(kPreferenceAttributes, preference, attribute, value, bytes, written, __func__);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t,
                                              int requested, cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
  MAYA_COUNT_CALL();
  if (requested <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  results[0] = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1.0f;
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetIds(cublasLtHandle_t, cublasComputeType_t, cudaDataType_t, cudaDataType_t,
                                        cudaDataType_t, cudaDataType_t, cudaDataType_t, int requested,
                                        int ids[], int* returned) {
  MAYA_COUNT_CALL();
  if (requested <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  ids[0] = 0;
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t, cublasComputeType_t, cudaDataType_t, cudaDataType_t,
                                      cudaDataType_t, cudaDataType_t, cudaDataType_t, int id,
                                      cublasLtMatmulAlgo_t* algorithm) {
  MAYA_COUNT_CALL();
  *algorithm = {};
  set_value<int32_t>(kAlgorithmAttributes, algorithm, CUBLASLT_ALGO_CONFIG_ID, id);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t*, cublasLtMatmulHeuristicResult_t* result) {
  MAYA_COUNT_CALL();
  result->workspaceSize = 0;
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1.0f;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  return set_attribute(kAlgorithmAttributes, algorithm, attribute, value, bytes, __func__);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t bytes, size_t* written) {
  return get_attribute(kAlgorithmAttributes, algorithm, attribute, value, bytes, written, __func__);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t matmul, const void*, const void*,
                              cublasLtMatrixLayout_t layout_a, const void*, cublasLtMatrixLayout_t layout_b,
                              const void*, const void*, cublasLtMatrixLayout_t, void* result,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t*, void*, size_t,
                              cudaStream_t stream) {
  Call call;
  const Layout a(layout_a), b(layout_b), d(layout_d);
  const auto desc_value = [matmul](cublasLtMatmulDescAttributes_t attribute) {
    return value_of<int32_t>(kMatmulAttributes, matmul, attribute);
  };
  const int32_t trans_a = desc_value(CUBLASLT_MATMUL_DESC_TRANSA);
  call.record(Kind::gemm,
              {maya::stream_id(stream), int64_t(maya::trace::GemmLibrary::cublaslt), d.rows, d.cols,
               trans_a == CUBLAS_OP_N ? a.cols : a.rows, d.batch, trans_a,
               desc_value(CUBLASLT_MATMUL_DESC_TRANSB), a.type, b.type, d.type,
               desc_value(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE), desc_value(CUBLASLT_MATMUL_DESC_EPILOGUE)});
  maya::zero_matrices(result, d.rows, d.cols, d.leading_dimension, d.batch, d.batch_stride,
                      cudaDataType(d.type));
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
