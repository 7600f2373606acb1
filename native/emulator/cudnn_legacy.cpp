// cuDNN handles and what PyTorch uses of the older API: batch normalisation, convolutions (where the
// backend API is switched off), pooling, CTC loss, spatial transformers. RNNs: cudnn_rnn.cpp.
#include "cudnn_legacy.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "cudnn_handle.h"
#include "cudnn_operations.h"

using maya::Call;
using maya::Work;
using maya::trace::Pass;

struct cudnnConvolutionStruct {
  std::vector<int> padding, stride, dilation;
  int groups = 1;
  cudnnDataType_t compute_type = CUDNN_DATA_FLOAT;
  cudnnMathType_t math_type = CUDNN_DEFAULT_MATH;
};

struct cudnnActivationStruct {
  cudnnActivationMode_t mode = CUDNN_ACTIVATION_IDENTITY;
};

struct cudnnPoolingStruct {
  int window_height = 1, window_width = 1;
};

struct cudnnCTCLossStruct {
  cudnnDataType_t compute_type = CUDNN_DATA_FLOAT;
};

struct cudnnSpatialTransformerStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::vector<int> dims;  // of the output: batch, channels, height, width
};

namespace {

cudnnStatus_t record(cudnnHandle_t handle, const char* name, cudnnDataType_t type, const Work& work) {
  Call call;
  maya::record_library_op(call, handle->stream, name, type, work);
  return CUDNN_STATUS_SUCCESS;
}

std::vector<int64_t> widened(const std::vector<int>& values) { return {values.begin(), values.end()}; }

int64_t num_elements(const std::vector<int>& dims) {
  int64_t elements = 1;
  for (int dim : dims) elements *= dim;
  return elements;
}

// Filters have a layout instead of strides; only the channel stride matters here.
maya::ConvolutionShape::Tensor filter_tensor(const cudnnFilterStruct& filter) {
  std::vector<int64_t> strides(filter.dims.size(), 0);
  strides[1] =
      filter.format == CUDNN_TENSOR_NHWC ? 1 : num_elements({filter.dims.begin() + 2, filter.dims.end()});
  return {widened(filter.dims), strides};
}

cudnnStatus_t record_convolution(cudnnHandle_t handle, Pass pass, const cudnnTensorStruct& x,
                                 const cudnnFilterStruct& w, const cudnnTensorStruct& y,
                                 const cudnnConvolutionStruct& convolution, int64_t fused_ops) {
  const bool uses_tf32 =
      x.type == CUDNN_DATA_FLOAT && convolution.math_type != CUDNN_FMA_MATH && maya::gpu().compute_major >= 8;
  maya::PlannedRecord record =
      maya::convolution_record({pass,
                                x.type,
                                uses_tf32 ? maya::trace::kTensorFloat32 : int64_t(convolution.compute_type),
                                {widened(x.dims), widened(x.strides)},
                                filter_tensor(w),
                                {widened(y.dims), widened(y.strides)},
                                widened(convolution.stride),
                                widened(convolution.dilation),
                                fused_ops});
  Call call;
  record.fields[0] = maya::stream_id(handle->stream);
  call.record(record.kind, record.fields.data(), static_cast<int>(record.fields.size()));
  return CUDNN_STATUS_SUCCESS;
}

// One algorithm fits all: deterministic, without a workspace.
template <typename Performance, typename Algorithm>
cudnnStatus_t only_algorithm(Algorithm algorithm, const cudnnConvolutionStruct& convolution, int requested,
                             int* returned, Performance* results) {
  if (requested < 1) return CUDNN_STATUS_BAD_PARAM;
  results[0] = {};
  results[0].algo = algorithm;
  results[0].status = CUDNN_STATUS_SUCCESS;
  results[0].determinism = CUDNN_DETERMINISTIC;
  results[0].mathType = convolution.math_type;
  *returned = 1;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t no_bytes(size_t* bytes) {
  *bytes = 0;
  return CUDNN_STATUS_SUCCESS;
}

int64_t optional_bytes(cudnnTensorDescriptor_t tensor) { return tensor == nullptr ? 0 : tensor->num_bytes(); }

// A grid holds two coordinates for each position of the output.
int64_t grid_bytes(const cudnnSpatialTransformerStruct& transformer) {
  return maya::bytes_of(2 * num_elements(transformer.dims) / transformer.dims[1], transformer.type);
}

}  // namespace

extern "C" {

// Library and handles.

size_t cudnnGetVersion() { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion() { return CUDART_VERSION; }

cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int* value) {
  *value = type == MAJOR_VERSION ? CUDNN_MAJOR : type == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
  return CUDNN_STATUS_SUCCESS;
}

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM:
      return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    default:
      return "CUDNN_STATUS_INTERNAL_ERROR";
  }
}

void cudnnGetLastErrorString(char* message, size_t max_size) {
  if (max_size > 0) message[0] = '\0';
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  MAYA_COUNT_CALL();
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  MAYA_COUNT_CALL();
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}

// Descriptors.

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* tensor) {
  return maya::create_descriptor(tensor);
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) {
  return maya::destroy_descriptor(tensor);
}

cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int num_dims,
                                         const int dims[], const int strides[]) {
  *tensor = {type, {dims, dims + num_dims}, {strides, strides + num_dims}};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t tensor, int requested,
                                         cudnnDataType_t* type, int* num_dims, int dims[], int strides[]) {
  *type = tensor->type;
  *num_dims = static_cast<int>(tensor->dims.size());
  for (int i = 0; i < requested && i < *num_dims; ++i) {
    dims[i] = tensor->dims[i];
    strides[i] = tensor->strides[i];
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* filter) {
  return maya::create_descriptor(filter);
}
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter) {
  return maya::destroy_descriptor(filter);
}

cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int num_dims, const int dims[]) {
  *filter = {type, format, {dims, dims + num_dims}};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetFilterNdDescriptor(const cudnnFilterDescriptor_t filter, int requested,
                                         cudnnDataType_t* type, cudnnTensorFormat_t* format, int* num_dims,
                                         int dims[]) {
  *type = filter->type;
  *format = filter->format;
  *num_dims = static_cast<int>(filter->dims.size());
  for (int i = 0; i < requested && i < *num_dims; ++i) dims[i] = filter->dims[i];
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t* activation) {
  return maya::create_descriptor(activation);
}
cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t activation) {
  return maya::destroy_descriptor(activation);
}
cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t activation, cudnnActivationMode_t mode,
                                           cudnnNanPropagation_t, double) {
  activation->mode = mode;
  return CUDNN_STATUS_SUCCESS;
}

// Convolutions.

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* convolution) {
  return maya::create_descriptor(convolution);
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convolution) {
  return maya::destroy_descriptor(convolution);
}
cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t convolution, int num_dims,
                                              const int padding[], const int stride[], const int dilation[],
                                              cudnnConvolutionMode_t, cudnnDataType_t compute_type) {
  convolution->padding.assign(padding, padding + num_dims);
  convolution->stride.assign(stride, stride + num_dims);
  convolution->dilation.assign(dilation, dilation + num_dims);
  convolution->compute_type = compute_type;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t convolution, int groups) {
  convolution->groups = groups;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution,
                                          cudnnMathType_t math_type) {
  convolution->math_type = math_type;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void*, const cudnnTensorDescriptor_t x,
                                      const void*, const cudnnFilterDescriptor_t w, const void*,
                                      const cudnnConvolutionDescriptor_t convolution,
                                      cudnnConvolutionFwdAlgo_t, void*, size_t, const void*,
                                      const cudnnTensorDescriptor_t y, void*) {
  return record_convolution(handle, Pass::forward, *x, *w, *y, *convolution, 0);
}

cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void*, const cudnnTensorDescriptor_t x, const void*,
    const cudnnFilterDescriptor_t w, const void*, const cudnnConvolutionDescriptor_t convolution,
    cudnnConvolutionFwdAlgo_t, void*, size_t, const void* alpha2, const cudnnTensorDescriptor_t, const void*,
    const cudnnTensorDescriptor_t, const void*, const cudnnActivationDescriptor_t activation,
    const cudnnTensorDescriptor_t y, void*) {
  int64_t fused_ops = maya::trace::kFusedBias;
  if (activation->mode != CUDNN_ACTIVATION_IDENTITY) fused_ops |= maya::trace::kFusedActivation;
  // alpha2 scales z; the scale is a float for all types but double, and zero has the same first bytes.
  if (float scale; std::memcpy(&scale, alpha2, sizeof(scale)), scale != 0)
    fused_ops |= maya::trace::kFusedResidual;
  return record_convolution(handle, Pass::forward, *x, *w, *y, *convolution, fused_ops);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void*, const cudnnFilterDescriptor_t w,
                                           const void*, const cudnnTensorDescriptor_t dy, const void*,
                                           const cudnnConvolutionDescriptor_t convolution,
                                           cudnnConvolutionBwdDataAlgo_t, void*, size_t, const void*,
                                           const cudnnTensorDescriptor_t dx, void*) {
  return record_convolution(handle, Pass::backward_data, *dx, *w, *dy, *convolution, 0);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void*,
                                             const cudnnTensorDescriptor_t x, const void*,
                                             const cudnnTensorDescriptor_t dy, const void*,
                                             const cudnnConvolutionDescriptor_t convolution,
                                             cudnnConvolutionBwdFilterAlgo_t, void*, size_t, const void*,
                                             const cudnnFilterDescriptor_t dw, void*) {
  return record_convolution(handle, Pass::backward_filter, *x, *dw, *dy, *convolution, 0);
}

#define MAYA_FORWARD_ALGORITHM CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM
#define MAYA_BACKWARD_DATA_ALGORITHM CUDNN_CONVOLUTION_BWD_DATA_ALGO_1
#define MAYA_BACKWARD_FILTER_ALGORITHM CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t,
                                                     const cudnnFilterDescriptor_t,
                                                     const cudnnConvolutionDescriptor_t convolution,
                                                     const cudnnTensorDescriptor_t, const int requested,
                                                     int* returned, cudnnConvolutionFwdAlgoPerf_t* results) {
  MAYA_COUNT_CALL();
  return only_algorithm(MAYA_FORWARD_ALGORITHM, *convolution, requested, returned, results);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, const cudnnFilterDescriptor_t,
                                                          const cudnnTensorDescriptor_t,
                                                          const cudnnConvolutionDescriptor_t convolution,
                                                          const cudnnTensorDescriptor_t, const int requested,
                                                          int* returned,
                                                          cudnnConvolutionBwdDataAlgoPerf_t* results) {
  MAYA_COUNT_CALL();
  return only_algorithm(MAYA_BACKWARD_DATA_ALGORITHM, *convolution, requested, returned, results);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t,
                                                            const cudnnTensorDescriptor_t,
                                                            const cudnnConvolutionDescriptor_t convolution,
                                                            const cudnnFilterDescriptor_t,
                                                            const int requested, int* returned,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t* results) {
  MAYA_COUNT_CALL();
  return only_algorithm(MAYA_BACKWARD_FILTER_ALGORITHM, *convolution, requested, returned, results);
}

cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(cudnnHandle_t, const cudnnTensorDescriptor_t,
                                                     const void*, const cudnnFilterDescriptor_t, const void*,
                                                     const cudnnConvolutionDescriptor_t convolution,
                                                     const cudnnTensorDescriptor_t, void*,
                                                     const int requested, int* returned,
                                                     cudnnConvolutionFwdAlgoPerf_t* results, void*, size_t) {
  MAYA_COUNT_CALL();
  return only_algorithm(MAYA_FORWARD_ALGORITHM, *convolution, requested, returned, results);
}
cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(
    cudnnHandle_t, const cudnnFilterDescriptor_t, const void*, const cudnnTensorDescriptor_t, const void*,
    const cudnnConvolutionDescriptor_t convolution, const cudnnTensorDescriptor_t, void*, const int requested,
    int* returned, cudnnConvolutionBwdDataAlgoPerf_t* results, void*, size_t) {
  MAYA_COUNT_CALL();
  return only_algorithm(MAYA_BACKWARD_DATA_ALGORITHM, *convolution, requested, returned, results);
}
cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(
    cudnnHandle_t, const cudnnTensorDescriptor_t, const void*, const cudnnTensorDescriptor_t, const void*,
    const cudnnConvolutionDescriptor_t convolution, const cudnnFilterDescriptor_t, void*, const int requested,
    int* returned, cudnnConvolutionBwdFilterAlgoPerf_t* results, void*, size_t) {
  MAYA_COUNT_CALL();
  return only_algorithm(MAYA_BACKWARD_FILTER_ALGORITHM, *convolution, requested, returned, results);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t,
                                                      const cudnnFilterDescriptor_t,
                                                      const cudnnConvolutionDescriptor_t,
                                                      const cudnnTensorDescriptor_t,
                                                      cudnnConvolutionFwdAlgo_t, size_t* bytes) {
  return no_bytes(bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, const cudnnFilterDescriptor_t,
                                                           const cudnnTensorDescriptor_t,
                                                           const cudnnConvolutionDescriptor_t,
                                                           const cudnnTensorDescriptor_t,
                                                           cudnnConvolutionBwdDataAlgo_t, size_t* bytes) {
  return no_bytes(bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t,
                                                             const cudnnTensorDescriptor_t,
                                                             const cudnnConvolutionDescriptor_t,
                                                             const cudnnFilterDescriptor_t,
                                                             cudnnConvolutionBwdFilterAlgo_t, size_t* bytes) {
  return no_bytes(bytes);
}

// Batch normalisation: each tensor passes once; parameters and statistics are one value a channel.

cudnnStatus_t cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const void*, const void*,
    const cudnnTensorDescriptor_t x, const void*, const cudnnTensorDescriptor_t z, const void*,
    const cudnnTensorDescriptor_t y, void*, const cudnnTensorDescriptor_t parameters, const void*,
    const void*, double, void* running_mean, void*, double, void*, void*, cudnnActivationDescriptor_t, void*,
    size_t, void*, size_t) {
  const int64_t statistics =
      parameters->num_bytes() * (running_mean == nullptr ? 2 : 4);  // with the saved ones
  return record(handle, __func__, x->type,
                {x->num_bytes() + optional_bytes(z) + statistics, y->num_bytes() + statistics});
}

cudnnStatus_t cudnnBatchNormalizationForwardInference(cudnnHandle_t handle, cudnnBatchNormMode_t, const void*,
                                                      const void*, const cudnnTensorDescriptor_t x,
                                                      const void*, const cudnnTensorDescriptor_t y, void*,
                                                      const cudnnTensorDescriptor_t parameters, const void*,
                                                      const void*, const void*, const void*, double) {
  return record(handle, __func__, x->type, {x->num_bytes() + 4 * parameters->num_bytes(), y->num_bytes()});
}

cudnnStatus_t cudnnBatchNormalizationBackwardEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const void*, const void*, const void*,
    const void*, const cudnnTensorDescriptor_t x, const void*, const cudnnTensorDescriptor_t y, const void*,
    const cudnnTensorDescriptor_t dy, const void*, const cudnnTensorDescriptor_t dz, void*,
    const cudnnTensorDescriptor_t dx, void*, const cudnnTensorDescriptor_t parameters, const void*,
    const void*, void*, void*, double, const void*, const void*, cudnnActivationDescriptor_t, void*, size_t,
    void*, size_t) {
  return record(handle, __func__, x->type,
                {x->num_bytes() + optional_bytes(y) + dy->num_bytes() + 4 * parameters->num_bytes(),
                 dx->num_bytes() + optional_bytes(dz) + 2 * parameters->num_bytes()});
}

cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnActivationDescriptor_t, size_t* bytes) {
  return no_bytes(bytes);
}
cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t,
    size_t* bytes) {
  return no_bytes(bytes);
}
cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnnHandle_t, cudnnBatchNormMode_t,
                                                                   cudnnBatchNormOps_t,
                                                                   const cudnnActivationDescriptor_t,
                                                                   const cudnnTensorDescriptor_t,
                                                                   size_t* bytes) {
  return no_bytes(bytes);
}

// Pooling.

cudnnStatus_t cudnnCreatePoolingDescriptor(cudnnPoolingDescriptor_t* pooling) {
  return maya::create_descriptor(pooling);
}
cudnnStatus_t cudnnDestroyPoolingDescriptor(cudnnPoolingDescriptor_t pooling) {
  return maya::destroy_descriptor(pooling);
}
cudnnStatus_t cudnnSetPooling2dDescriptor(cudnnPoolingDescriptor_t pooling, cudnnPoolingMode_t,
                                          cudnnNanPropagation_t, int window_height, int window_width, int,
                                          int, int, int) {
  *pooling = {window_height, window_width};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnPoolingForward(cudnnHandle_t handle, const cudnnPoolingDescriptor_t, const void*,
                                  const cudnnTensorDescriptor_t x, const void*, const void*,
                                  const cudnnTensorDescriptor_t y, void*) {
  return record(handle, __func__, x->type, {x->num_bytes(), y->num_bytes()});
}

// CTC loss.

cudnnStatus_t cudnnCreateCTCLossDescriptor(cudnnCTCLossDescriptor_t* loss) {
  return maya::create_descriptor(loss);
}
cudnnStatus_t cudnnDestroyCTCLossDescriptor(cudnnCTCLossDescriptor_t loss) {
  return maya::destroy_descriptor(loss);
}
cudnnStatus_t cudnnSetCTCLossDescriptorEx(cudnnCTCLossDescriptor_t loss, cudnnDataType_t compute_type,
                                          cudnnLossNormalizationMode_t, cudnnNanPropagation_t) {
  loss->compute_type = compute_type;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetCTCLossDescriptor_v9(cudnnCTCLossDescriptor_t loss, cudnnDataType_t compute_type,
                                           cudnnLossNormalizationMode_t, cudnnCTCGradMode_t, int) {
  loss->compute_type = compute_type;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetCTCLossWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t,
                                           const cudnnTensorDescriptor_t, const int*, const int*, const int*,
                                           cudnnCTCLossAlgo_t, cudnnCTCLossDescriptor_t, size_t* bytes) {
  return no_bytes(bytes);
}
cudnnStatus_t cudnnGetCTCLossWorkspaceSize_v8(cudnnHandle_t, cudnnCTCLossAlgo_t, cudnnCTCLossDescriptor_t,
                                              const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
                                              size_t* bytes) {
  return no_bytes(bytes);
}
cudnnStatus_t cudnnCTCLoss(cudnnHandle_t handle, const cudnnTensorDescriptor_t probabilities, const void*,
                           const int*, const int*, const int*, void*, const cudnnTensorDescriptor_t gradients,
                           void*, cudnnCTCLossAlgo_t, cudnnCTCLossDescriptor_t, void*, size_t) {
  return record(handle, __func__, probabilities->type, {probabilities->num_bytes(), gradients->num_bytes()});
}
cudnnStatus_t cudnnCTCLoss_v8(cudnnHandle_t handle, cudnnCTCLossAlgo_t, cudnnCTCLossDescriptor_t,
                              const cudnnTensorDescriptor_t probabilities, const void*, const int*,
                              const int*, const int*, void*, const cudnnTensorDescriptor_t gradients, void*,
                              size_t, void*) {
  return record(handle, __func__, probabilities->type, {probabilities->num_bytes(), gradients->num_bytes()});
}

// Spatial transformers.

cudnnStatus_t cudnnCreateSpatialTransformerDescriptor(cudnnSpatialTransformerDescriptor_t* transformer) {
  return maya::create_descriptor(transformer);
}
cudnnStatus_t cudnnDestroySpatialTransformerDescriptor(cudnnSpatialTransformerDescriptor_t transformer) {
  return maya::destroy_descriptor(transformer);
}
cudnnStatus_t cudnnSetSpatialTransformerNdDescriptor(cudnnSpatialTransformerDescriptor_t transformer,
                                                     cudnnSamplerType_t, cudnnDataType_t type,
                                                     const int num_dims, const int dims[]) {
  *transformer = {type, {dims, dims + num_dims}};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSpatialTfGridGeneratorForward(cudnnHandle_t handle,
                                                 const cudnnSpatialTransformerDescriptor_t transformer,
                                                 const void*, void*) {
  return record(handle, __func__, transformer->type, {0, grid_bytes(*transformer)});
}
cudnnStatus_t cudnnSpatialTfGridGeneratorBackward(cudnnHandle_t handle,
                                                  const cudnnSpatialTransformerDescriptor_t transformer,
                                                  const void*, void*) {
  return record(handle, __func__, transformer->type, {grid_bytes(*transformer), 0});
}
cudnnStatus_t cudnnSpatialTfSamplerForward(cudnnHandle_t handle,
                                           cudnnSpatialTransformerDescriptor_t transformer, const void*,
                                           const cudnnTensorDescriptor_t x, const void*, const void*,
                                           const void*, cudnnTensorDescriptor_t y, void*) {
  return record(handle, __func__, x->type, {x->num_bytes() + grid_bytes(*transformer), y->num_bytes()});
}
cudnnStatus_t cudnnSpatialTfSamplerBackward(cudnnHandle_t handle,
                                            cudnnSpatialTransformerDescriptor_t transformer, const void*,
                                            const cudnnTensorDescriptor_t x, const void*, const void*,
                                            const cudnnTensorDescriptor_t dx, void*, const void*,
                                            const cudnnTensorDescriptor_t dy, const void*, const void*,
                                            const void*, void*) {
  const int64_t grid = grid_bytes(*transformer);
  return record(handle, __func__, x->type, {x->num_bytes() + dy->num_bytes() + grid, dx->num_bytes() + grid});
}

}  // extern "C"
