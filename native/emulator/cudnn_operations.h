// From a cuDNN operation graph to the records of its execution.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <string>
#include <vector>

#include "../trace/format.h"

namespace maya {

struct BackendDescriptor;

// A record that waits for the stream it will run on: field 0 is filled in at the execution, and for
// a `library_op` field 1 with the id of `name`.
struct PlannedRecord {
  trace::Kind kind;
  std::vector<int64_t> fields;
  std::string name;
};

// A convolution by its tensors in the order batch, channels, then one to three spatial dimensions:
// `input` and `output` are those of the forward pass whatever the pass, `filter` has output channels first.
struct ConvolutionShape {
  struct Tensor {
    std::vector<int64_t> dims, strides;
  };
  trace::Pass pass;
  cudnnDataType_t type;
  int64_t compute_type;  // cudnnDataType_t or trace::kTensorFloat32
  Tensor input, filter, output;
  std::vector<int64_t> stride, dilation;  // of the spatial dimensions
  int64_t fused_ops;                      // trace::FusedOps
};
PlannedRecord convolution_record(const ConvolutionShape& shape);

// True if the graph has fp32 convolutions or products that the device can run on tensor cores.
bool may_use_tf32(const BackendDescriptor& operation_graph);

// What executing the graph puts on the device; `uses_tf32`: fp32 inputs run on tensor cores.
std::vector<PlannedRecord> plan_records(const BackendDescriptor& operation_graph, bool uses_tf32);

}  // namespace maya
