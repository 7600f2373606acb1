// Recurrent networks and dropout states of cuDNN's older API.
#include "cudnn_handle.h"
#include "cudnn_legacy.h"

using maya::Call;

struct cudnnRNNStruct {
  cudnnRNNMode_t mode = CUDNN_LSTM;
  cudnnRNNBiasMode_t bias_mode = CUDNN_RNN_DOUBLE_BIAS;
  cudnnDirectionMode_t direction_mode = CUDNN_UNIDIRECTIONAL;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int64_t input_size = 0, hidden_size = 0, projection_size = 0, num_layers = 0;

  int64_t num_gates() const { return mode == CUDNN_LSTM ? 4 : mode == CUDNN_GRU ? 3 : 1; }
  int64_t num_directions() const { return direction_mode == CUDNN_BIDIRECTIONAL ? 2 : 1; }
  bool has_projection() const { return projection_size != hidden_size && projection_size != 0; }
  int64_t output_size() const { return has_projection() ? projection_size : hidden_size; }
  int64_t input_size_of(int64_t pseudo_layer) const {
    return pseudo_layer < num_directions() ? input_size : output_size() * num_directions();
  }
};

struct cudnnRNNDataStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int64_t max_length = 0, batch = 0, vector_size = 0;
  int64_t num_steps = 0;  // sum of the sequence lengths over the batch

  int64_t num_bytes() const { return maya::bytes_of(num_steps * vector_size, type); }
};

namespace {

// Weight space: for each layer and direction the input matrices of all gates, then the recurrent ones,
// then the projection, then the biases in the same order. Sizes in elements.
struct LayerWeights {
  LayerWeights(const cudnnRNNStruct& rnn, int64_t pseudo_layer)
      : gates(rnn.num_gates()),
        rows(rnn.hidden_size),
        input_matrix(rnn.hidden_size * rnn.input_size_of(pseudo_layer)),
        recurrent_matrix(rnn.hidden_size * rnn.output_size()),
        projection(rnn.has_projection() ? rnn.hidden_size * rnn.projection_size : 0),
        bias(rnn.bias_mode == CUDNN_RNN_NO_BIAS ? 0 : rnn.hidden_size) {}

  int64_t matrices() const { return gates * (input_matrix + recurrent_matrix) + projection; }
  int64_t num_elements() const { return matrices() + 2 * gates * bias; }

  int64_t matrix_offset(int64_t id) const {
    if (id < gates) return id * input_matrix;
    if (id < 2 * gates) return gates * input_matrix + (id - gates) * recurrent_matrix;
    return gates * (input_matrix + recurrent_matrix);
  }
  int64_t bias_offset(int64_t id) const { return matrices() + id * bias; }

  int64_t gates, rows, input_matrix, recurrent_matrix, projection, bias;
};

int64_t num_pseudo_layers(const cudnnRNNStruct& rnn) { return rnn.num_layers * rnn.num_directions(); }

int64_t weight_elements(const cudnnRNNStruct& rnn) {
  int64_t elements = 0;
  for (int64_t layer = 0; layer < num_pseudo_layers(rnn); ++layer) {
    elements += LayerWeights(rnn, layer).num_elements();
  }
  return elements;
}

// Every step multiplies one vector by every matrix.
int64_t forward_flops(const cudnnRNNStruct& rnn, int64_t num_steps) {
  int64_t flops = 0;
  for (int64_t layer = 0; layer < num_pseudo_layers(rnn); ++layer) {
    flops += 2 * num_steps * LayerWeights(rnn, layer).matrices();
  }
  return flops;
}

void set_vector_descriptor(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, int64_t rows, int64_t cols) {
  *tensor = {type, {1, int(rows), int(cols)}, {int(rows * cols), int(cols), 1}};
}

cudnnStatus_t record_pass(cudnnHandle_t handle, const char* name, const cudnnRNNStruct& rnn,
                          const cudnnRNNDataStruct& x, const cudnnRNNDataStruct& y, size_t weight_bytes,
                          size_t reserve_bytes, bool writes_weights) {
  const int64_t states = x.num_bytes() + y.num_bytes();
  const int64_t weights = static_cast<int64_t>(weight_bytes), reserve = static_cast<int64_t>(reserve_bytes);
  Call call;
  maya::record_library_op(call, handle->stream, name, rnn.type,
                          {states + (writes_weights ? reserve : weights),
                           writes_weights ? weights : states + reserve, forward_flops(rnn, x.num_steps)});
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

// Dropout.

cudnnStatus_t cudnnCreateDropoutDescriptor(cudnnDropoutDescriptor_t* dropout) {
  return maya::create_descriptor(dropout);
}
cudnnStatus_t cudnnDestroyDropoutDescriptor(cudnnDropoutDescriptor_t dropout) {
  return maya::destroy_descriptor(dropout);
}

// One XORWOW state (curand_kernel.h: 48 bytes) for each thread that the device holds at once.
cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t, size_t* bytes) {
  MAYA_COUNT_CALL();
  *bytes = size_t(48) * maya::gpu().num_sms * maya::gpu().max_threads_per_sm;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t dropout, cudnnHandle_t handle,
                                        float probability, void* states, size_t state_bytes,
                                        unsigned long long) {
  dropout->probability = probability;
  if (states == nullptr) return CUDNN_STATUS_SUCCESS;
  Call call;
  maya::record_library_op(call, handle->stream, __func__, CUDNN_DATA_INT32, {0, int64_t(state_bytes)});
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t dropout, cudnnHandle_t,
                                            float probability, void*, size_t, unsigned long long) {
  MAYA_COUNT_CALL();
  dropout->probability = probability;
  return CUDNN_STATUS_SUCCESS;
}

// Descriptors.

cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t* rnn) { return maya::create_descriptor(rnn); }
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t rnn) { return maya::destroy_descriptor(rnn); }
cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t rnn, cudnnRNNAlgo_t, cudnnRNNMode_t mode,
                                       cudnnRNNBiasMode_t bias_mode, cudnnDirectionMode_t direction_mode,
                                       cudnnRNNInputMode_t, cudnnDataType_t type, cudnnDataType_t,
                                       cudnnMathType_t, int32_t input_size, int32_t hidden_size,
                                       int32_t projection_size, int32_t num_layers, cudnnDropoutDescriptor_t,
                                       uint32_t) {
  MAYA_COUNT_CALL();
  *rnn = {mode, bias_mode, direction_mode, type, input_size, hidden_size, projection_size, num_layers};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t* data) {
  return maya::create_descriptor(data);
}
cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t data) {
  return maya::destroy_descriptor(data);
}
cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t data, cudnnDataType_t type,
                                        cudnnRNNDataLayout_t, int max_length, int batch, int vector_size,
                                        const int lengths[], void*) {
  *data = {type, max_length, batch, vector_size, 0};
  for (int i = 0; i < batch; ++i) data->num_steps += lengths[i];
  return CUDNN_STATUS_SUCCESS;
}

// Sizes and places.

cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t, cudnnRNNDescriptor_t rnn, size_t* bytes) {
  MAYA_COUNT_CALL();
  *bytes = maya::bytes_of(weight_elements(*rnn), rnn->type);
  return CUDNN_STATUS_SUCCESS;
}

// What the backward pass needs of the forward one: all gates, the cell and the hidden state of every
// step; the workspace holds the products of one layer's inputs with the input matrices.
cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t mode,
                                        cudnnRNNDataDescriptor_t x, size_t* workspace_bytes,
                                        size_t* reserve_bytes) {
  MAYA_COUNT_CALL();
  const int64_t states = x->max_length * x->batch * rnn->hidden_size;
  if (workspace_bytes != nullptr) {
    *workspace_bytes = maya::bytes_of(states * rnn->num_gates() * rnn->num_directions(), rnn->type);
  }
  if (reserve_bytes != nullptr) {
    *reserve_bytes =
        mode == CUDNN_FWD_MODE_TRAINING
            ? maya::bytes_of(states * (rnn->num_gates() + 2) * num_pseudo_layers(*rnn), rnn->type)
            : 0;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t, cudnnRNNDescriptor_t rnn, int32_t pseudo_layer, size_t,
                                      const void* weight_space, int32_t id, cudnnTensorDescriptor_t matrix,
                                      void** matrix_address, cudnnTensorDescriptor_t bias,
                                      void** bias_address) {
  if (pseudo_layer < 0 || pseudo_layer >= num_pseudo_layers(*rnn)) return CUDNN_STATUS_BAD_PARAM;
  int64_t layer_offset = 0;
  for (int32_t layer = 0; layer < pseudo_layer; ++layer)
    layer_offset += LayerWeights(*rnn, layer).num_elements();
  const LayerWeights weights(*rnn, pseudo_layer);
  const auto address = [&](int64_t offset) {
    return static_cast<char*>(const_cast<void*>(weight_space)) +
           maya::bytes_of(layer_offset + offset, rnn->type);
  };
  if (matrix != nullptr) {
    if (id < 2 * weights.gates) {
      const int64_t elements = id < weights.gates ? weights.input_matrix : weights.recurrent_matrix;
      set_vector_descriptor(matrix, rnn->type, weights.rows, elements / weights.rows);
    } else {
      set_vector_descriptor(matrix, rnn->type, rnn->projection_size, rnn->hidden_size);
    }
    *matrix_address = address(weights.matrix_offset(id));
  }
  if (bias != nullptr) {
    set_vector_descriptor(bias, rnn->type, weights.bias, 1);
    *bias_address = weights.bias == 0 ? nullptr : address(weights.bias_offset(id));
  }
  return CUDNN_STATUS_SUCCESS;
}

// Passes.

cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnForwardMode_t,
                              const int32_t*, cudnnRNNDataDescriptor_t x, const void*,
                              cudnnRNNDataDescriptor_t y, void*, cudnnTensorDescriptor_t, const void*, void*,
                              cudnnTensorDescriptor_t, const void*, void*, size_t weight_bytes, const void*,
                              size_t, void*, size_t reserve_bytes, void*) {
  return record_pass(handle, __func__, *rnn, *x, *y, weight_bytes, reserve_bytes, false);
}

cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, const int32_t*,
                                      cudnnRNNDataDescriptor_t y, const void*, const void*,
                                      cudnnRNNDataDescriptor_t x, void*, cudnnTensorDescriptor_t, const void*,
                                      const void*, void*, cudnnTensorDescriptor_t, const void*, const void*,
                                      void*, size_t weight_bytes, const void*, size_t, void*,
                                      size_t reserve_bytes, void*) {
  return record_pass(handle, __func__, *rnn, *x, *y, weight_bytes, reserve_bytes, false);
}

cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t rnn, cudnnWgradMode_t,
                                         const int32_t*, cudnnRNNDataDescriptor_t x, const void*,
                                         cudnnTensorDescriptor_t, const void*, cudnnRNNDataDescriptor_t y,
                                         const void*, size_t weight_bytes, void*, size_t, void*,
                                         size_t reserve_bytes, void*) {
  return record_pass(handle, __func__, *rnn, *x, *y, weight_bytes, reserve_bytes, true);
}

}  // extern "C"
