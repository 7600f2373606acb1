// Descriptors of cuDNN's older API.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <vector>

#include "math_library.h"

struct cudnnTensorStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::vector<int> dims, strides;

  int64_t num_elements() const {
    int64_t elements = 1;
    for (int dim : dims) elements *= dim;
    return elements;
  }
  int64_t num_bytes() const { return maya::bytes_of(num_elements(), type); }
};

struct cudnnFilterStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
  std::vector<int> dims;
};

struct cudnnDropoutStruct {
  float probability = 0;
};

namespace maya {

// Deletes what a `cudnnCreate...Descriptor` made.
template <typename Descriptor>
cudnnStatus_t destroy_descriptor(Descriptor* descriptor) {
  delete descriptor;
  return CUDNN_STATUS_SUCCESS;
}

template <typename Descriptor>
cudnnStatus_t create_descriptor(Descriptor** descriptor) {
  *descriptor = new Descriptor;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace maya
