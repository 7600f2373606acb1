// cuDNN runs a graph of operations as one fused kernel, so a graph becomes one record: a
// convolution with what is fused to it, an attention, or a named operation with its traffic.
#include "cudnn_operations.h"

#include <algorithm>
#include <map>

#include "cudnn_descriptor.h"
#include "math_library.h"

namespace maya {
namespace {

using Descriptor = BackendDescriptor;

struct Tensor {
  explicit Tensor(const Descriptor& descriptor)
      : type(descriptor.value(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT)),
        dims(descriptor.integers(CUDNN_ATTR_TENSOR_DIMENSIONS)),
        strides(descriptor.integers(CUDNN_ATTR_TENSOR_STRIDES)),
        id(descriptor.value<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID, 0)),
        is_virtual(descriptor.value(CUDNN_ATTR_TENSOR_IS_VIRTUAL, false)),
        is_by_value(descriptor.value(CUDNN_ATTR_TENSOR_IS_BY_VALUE, false)) {}

  int64_t num_elements() const {
    int64_t elements = 1;
    for (int64_t dim : dims) elements *= dim;
    return elements;
  }
  int64_t num_bytes() const { return bytes_of(num_elements(), type); }

  cudnnDataType_t type;
  std::vector<int64_t> dims, strides;
  int64_t id;
  bool is_virtual, is_by_value;
};

Tensor tensor(const Descriptor& operation, int name) { return Tensor(*operation.descriptor(name)); }

struct OperationType {
  int type;
  const char* name;
};
constexpr OperationType kOperationTypes[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, "convolution_forward"},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, "convolution_backward_filter"},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, "convolution_backward_data"},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "pointwise"},
    {CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, "generate_statistics"},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, "matmul"},
    {CUDNN_BACKEND_OPERATION_BN_FINALIZE_STATISTICS_DESCRIPTOR, "batch_norm_finalize"},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, "reduction"},
    {CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR, "batch_norm_backward_weights"},
    {CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR, "resample_forward"},
    {CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR, "resample_backward"},
    {CUDNN_BACKEND_OPERATION_CONCAT_DESCRIPTOR, "concat"},
    {CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR, "norm_forward"},
    {CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR, "norm_backward"},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, "reshape"},
    {CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR, "rng"},
    {CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR, "paged_cache_load"},
    {CUDNN_BACKEND_OPERATION_BLOCK_SCALE_QUANTIZE_DESCRIPTOR, "block_scale_quantize"},
    {CUDNN_BACKEND_OPERATION_BLOCK_SCALE_DEQUANTIZE_DESCRIPTOR, "block_scale_dequantize"},
    {CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, "sdpa_forward"},
    {CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR, "sdpa_backward"},
    {CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR, "moe_grouped_matmul"},
    {CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR, "diagonal_band_mask"},
    {CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR, "softmax"},
};

const char* operation_name(const Descriptor& operation) {
  for (const OperationType& entry : kOperationTypes) {
    if (entry.type == operation.type) return entry.name;
  }
  return "operation";
}

// Attributes of operations that name what they write; all other tensors are read.
constexpr int kOutputs[] = {
    CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
    CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
    CUDNN_ATTR_OPERATION_POINTWISE_DXDESC,
    CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC,
    CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC,
    CUDNN_ATTR_OPERATION_BN_FINALIZE_UPDATED_RUNNING_MEAN_DESC,
    CUDNN_ATTR_OPERATION_BN_FINALIZE_UPDATED_RUNNING_VAR_DESC,
    CUDNN_ATTR_OPERATION_BN_FINALIZE_SAVED_MEAN_DESC,
    CUDNN_ATTR_OPERATION_BN_FINALIZE_SAVED_INV_STD_DESC,
    CUDNN_ATTR_OPERATION_BN_FINALIZE_EQ_SCALE_DESC,
    CUDNN_ATTR_OPERATION_BN_FINALIZE_EQ_BIAS_DESC,
    CUDNN_ATTR_OPERATION_MATMUL_CDESC,
    CUDNN_ATTR_OPERATION_REDUCTION_YDESC,
    CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC,
    CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC,
    CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC,
    CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC,
    CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS,
    CUDNN_ATTR_OPERATION_RESAMPLE_FWD_YDESC,
    CUDNN_ATTR_OPERATION_RESAMPLE_FWD_IDXDESC,
    CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DXDESC,
    CUDNN_ATTR_OPERATION_CONCAT_OUTPUT_DESC,
    CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC,
    CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC,
    CUDNN_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_MEAN_DESC,
    CUDNN_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_VAR_DESC,
    CUDNN_ATTR_OPERATION_NORM_FWD_YDESC,
    CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC,
    CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC,
    CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC,
    CUDNN_ATTR_OPERATION_RESHAPE_YDESC,
    CUDNN_ATTR_OPERATION_RNG_YDESC,
    CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_YDESC,
    CUDNN_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_YDESC,
    CUDNN_ATTR_OPERATION_BLOCK_SCALE_QUANTIZE_SCALE_DESC,
    CUDNN_ATTR_OPERATION_BLOCK_SCALE_DEQUANTIZE_YDESC,
    CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC,
    CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC,
    CUDNN_ATTR_OPERATION_SOFTMAX_YDESC,
    CUDNN_ATTR_OPERATION_SOFTMAX_STATS_DESC,
    CUDNN_ATTR_OPERATION_SOFTMAX_MAX_DESC,
    CUDNN_ATTR_OPERATION_SOFTMAX_SUM_EXP_DESC,
};

bool is_convolution(const Descriptor& operation) {
  return operation.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR ||
         operation.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ||
         operation.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
}

std::vector<std::shared_ptr<Descriptor>> operations_of(const Descriptor& graph) {
  const Descriptor::Attribute* operations = graph.find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  return operations == nullptr ? std::vector<std::shared_ptr<Descriptor>>{} : operations->descriptors;
}

cudnnPointwiseMode_t pointwise_mode(const Descriptor& operation) {
  return operation.descriptor(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
      ->value(CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_IDENTITY);
}

// Convolutions.

struct ConvolutionTensors {
  trace::Pass pass;
  int input, filter, output, convolution;  // attribute names
};

ConvolutionTensors convolution_tensors(const Descriptor& operation) {
  switch (operation.type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      return {trace::Pass::backward_data, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC};
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      return {trace::Pass::backward_filter, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC};
    default:
      return {trace::Pass::forward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC};
  }
}

// Strides tell the layout only where both channels and positions are more than one.
bool is_channels_last(const ConvolutionShape& shape) {
  for (const ConvolutionShape::Tensor* tensor : {&shape.input, &shape.output, &shape.filter}) {
    int64_t positions = 1;
    for (size_t i = 2; i < tensor->dims.size(); ++i) positions *= tensor->dims[i];
    if (tensor->dims[1] > 1 && positions > 1) return tensor->strides[1] == 1;
  }
  return false;
}

// Spatial sizes as (depth, height, width); missing leading ones are `fallback`.
struct Spatial {
  Spatial(const std::vector<int64_t>& values, size_t skip, int64_t fallback)
      : d(fallback), h(fallback), w(fallback) {
    const size_t num_dims = values.size() - skip;
    if (num_dims >= 1) w = values[values.size() - 1];
    if (num_dims >= 2) h = values[values.size() - 2];
    if (num_dims >= 3) d = values[values.size() - 3];
  }
  int64_t d, h, w;
};

// A factor is a float or a double; it is 1 where it is not set.
bool is_zero(const Descriptor& operation, int name) {
  const Descriptor::Attribute* attribute = operation.find(name);
  if (attribute == nullptr) return false;
  return attribute->type == CUDNN_TYPE_DOUBLE ? operation.value(name, 1.0) == 0
                                              : operation.value(name, 1.0f) == 0;
}

int64_t fused_operations(const std::vector<std::shared_ptr<Descriptor>>& operations) {
  int64_t fused = 0;
  for (const auto& operation : operations) {
    if (is_convolution(*operation)) continue;
    if (operation->type != CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) {
      fused |= trace::kFusedOther;
      continue;
    }
    const cudnnPointwiseMode_t mode = pointwise_mode(*operation);
    if (mode == CUDNN_POINTWISE_ADD) {
      // PyTorch describes a convolution with bias and activation as one with a residual times 0.
      if (is_zero(*operation, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2)) continue;
      const Tensor x = tensor(*operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
      const Tensor addend = tensor(*operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
      const bool is_per_channel = addend.num_elements() < x.num_elements();
      fused |= is_per_channel ? trace::kFusedBias : trace::kFusedResidual;
    } else if (mode >= CUDNN_POINTWISE_RELU_FWD && mode < CUDNN_POINTWISE_CMP_EQ) {
      fused |= trace::kFusedActivation;
    } else {
      fused |= trace::kFusedOther;
    }
  }
  return fused;
}

PlannedRecord convolution_record(const Descriptor& operation,
                                 const std::vector<std::shared_ptr<Descriptor>>& operations, bool uses_tf32) {
  const ConvolutionTensors names = convolution_tensors(operation);
  const Tensor x = tensor(operation, names.input), w = tensor(operation, names.filter),
               y = tensor(operation, names.output);
  const Descriptor& convolution = *operation.descriptor(names.convolution);
  const int64_t compute_type =
      uses_tf32 ? trace::kTensorFloat32
                : int64_t(convolution.value(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT));
  return maya::convolution_record({names.pass,
                                   x.type,
                                   compute_type,
                                   {x.dims, x.strides},
                                   {w.dims, w.strides},
                                   {y.dims, y.strides},
                                   convolution.integers(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES),
                                   convolution.integers(CUDNN_ATTR_CONVOLUTION_DILATIONS),
                                   fused_operations(operations)});
}

// Attention. The frontend describes it either as one operation or as products around a softmax.

struct MaskAndDropout {
  bool is_causal = false, has_dropout = false;
};

// A band mask, or in older descriptions row index >= column index, bounds what a query attends to.
void find_mask_and_dropout(const std::vector<std::shared_ptr<Descriptor>>& operations,
                           MaskAndDropout& found) {
  for (const auto& operation : operations) {
    switch (operation->type) {
      case CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR:
        found.is_causal = true;
        break;
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        found.is_causal |= pointwise_mode(*operation) == CUDNN_POINTWISE_CMP_GE;
        break;
      case CUDNN_BACKEND_OPERATION_RNG_DESCRIPTOR:
        found.has_dropout = true;
        break;
      case CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR:
        found.has_dropout |= operation->value(CUDNN_ATTR_OPERATION_SDPA_FWD_DROPOUT_PROBABILITY, 0.0f) > 0;
        if (auto subgraph = operation->descriptor(CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH)) {
          find_mask_and_dropout(operations_of(*subgraph), found);
        }
        break;
      case CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR:
        if (auto subgraph = operation->descriptor(CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH)) {
          find_mask_and_dropout(operations_of(*subgraph), found);
        }
        break;
      default:
        break;
    }
  }
}

struct AttentionShape {
  trace::Pass pass;
  cudnnDataType_t type;
  int64_t batch, heads_q, heads_kv, seq_q, seq_kv, head_dim_qk, head_dim_v;
};

PlannedRecord attention_record(const AttentionShape& shape,
                               const std::vector<std::shared_ptr<Descriptor>>& operations) {
  MaskAndDropout found;
  find_mask_and_dropout(operations, found);
  return {Kind::attention,
          {0, int64_t(shape.pass), shape.type, shape.batch, shape.heads_q, shape.heads_kv, shape.seq_q,
           shape.seq_kv, shape.head_dim_qk, shape.head_dim_v, found.is_causal, found.has_dropout},
          ""};
}

// Q, K, V as the single operation names them: (batch, heads, sequence, head dim).
AttentionShape shape_from_qkv(trace::Pass pass, const Tensor& q, const Tensor& k, const Tensor& v) {
  // K may come with its last two dimensions exchanged, as the first product takes it.
  const bool is_transposed = k.dims[3] != q.dims[3];
  return {pass,      q.type,   q.dims[0], q.dims[1], k.dims[1], q.dims[2], k.dims[is_transposed ? 3 : 2],
          q.dims[3], v.dims[3]};
}

// The products of an attention: S = Q K^T and O = P V forward, S, dP = dO V^T and three more backward.
// Both operands of S and dP are given tensors (virtual only where they are dequantised or loaded from
// pages); the others have P, dS or their transposes as left operand.
bool find_composite_attention(const std::vector<std::shared_ptr<Descriptor>>& operations,
                              AttentionShape& shape) {
  std::vector<const Descriptor*> products;
  bool has_softmax = false;
  for (const auto& operation : operations) {
    if (operation->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) products.push_back(operation.get());
    has_softmax |= operation->type == CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR ||
                   (operation->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR &&
                    pointwise_mode(*operation) == CUDNN_POINTWISE_EXP);
  }
  if (!has_softmax || (products.size() != 2 && products.size() != 5)) return false;
  const bool is_forward = products.size() == 2;
  const Tensor q = tensor(*products[0], CUDNN_ATTR_OPERATION_MATMUL_ADESC);
  const Tensor k_transposed = tensor(*products[0], CUDNN_ATTR_OPERATION_MATMUL_BDESC);
  if (q.dims.size() != 4 || k_transposed.dims.size() != 4) return false;
  int64_t head_dim_v = q.dims[3];
  for (size_t i = 1; i < products.size(); ++i) {
    const Tensor left = tensor(*products[i], CUDNN_ATTR_OPERATION_MATMUL_ADESC);
    const Tensor right = tensor(*products[i], CUDNN_ATTR_OPERATION_MATMUL_BDESC);
    if (is_forward) head_dim_v = right.dims[3];
    if (!is_forward && !left.is_virtual && !right.is_virtual) head_dim_v = left.dims[3];
  }
  shape = {is_forward ? trace::Pass::forward : trace::Pass::backward_data,
           q.type,
           q.dims[0],
           q.dims[1],
           k_transposed.dims[1],
           q.dims[2],
           k_transposed.dims[3],
           q.dims[3],
           head_dim_v};
  return true;
}

bool find_attention(const std::vector<std::shared_ptr<Descriptor>>& operations, AttentionShape& shape) {
  for (const auto& operation : operations) {
    if (operation->type == CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR) {
      shape = shape_from_qkv(trace::Pass::forward, tensor(*operation, CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC),
                             tensor(*operation, CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC),
                             tensor(*operation, CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC));
      return true;
    }
    if (operation->type == CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR) {
      shape =
          shape_from_qkv(trace::Pass::backward_data, tensor(*operation, CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC),
                         tensor(*operation, CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC),
                         tensor(*operation, CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC));
      return true;
    }
  }
  return find_composite_attention(operations, shape);
}

// Everything else: the traffic of the tensors that are not intermediates of the fused kernel.
PlannedRecord named_record(const std::vector<std::shared_ptr<Descriptor>>& operations) {
  std::string name = "cudnn";
  std::map<int64_t, int64_t> read_bytes, written_bytes;  // by tensor
  int64_t flops = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  for (const auto& operation : operations) {
    name += std::string(operation == operations.front() ? ":" : "+") + operation_name(*operation);
    for (const Descriptor::Attribute& attribute : operation->attributes) {
      for (const auto& descriptor : attribute.descriptors) {
        if (descriptor->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR) continue;
        const Tensor tensor(*descriptor);
        if (tensor.is_virtual || tensor.is_by_value) continue;
        if (read_bytes.empty() && written_bytes.empty()) type = tensor.type;
        const bool is_output =
            std::find(std::begin(kOutputs), std::end(kOutputs), attribute.name) != std::end(kOutputs);
        (is_output ? written_bytes : read_bytes)[tensor.id] = tensor.num_bytes();
      }
    }
    if (operation->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
      flops += 2 * tensor(*operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC).num_elements() *
               tensor(*operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC).dims.back();
    }
  }
  int64_t read = 0, written = 0;
  for (const auto& [id, bytes] : read_bytes) read += bytes;
  for (const auto& [id, bytes] : written_bytes) written += bytes;
  return {Kind::library_op, {0, 0, type, read, written, flops}, name};
}

}  // namespace

PlannedRecord convolution_record(const ConvolutionShape& shape) {
  const std::vector<int64_t>&x = shape.input.dims, &w = shape.filter.dims, &y = shape.output.dims;
  const Spatial in(x, 2, 1), kernel(w, 2, 1), out(y, 2, 1), stride(shape.stride, 0, 1),
      dilation(shape.dilation, 0, 1);
  const int64_t groups = x[1] / w[1];
  return {Kind::conv,
          {0,
           int64_t(shape.pass),
           shape.type,
           shape.compute_type,
           x[0],
           x[1],
           y[1],
           groups,
           in.d,
           in.h,
           in.w,
           kernel.d,
           kernel.h,
           kernel.w,
           out.d,
           out.h,
           out.w,
           stride.h,
           stride.w,
           dilation.h,
           dilation.w,
           is_channels_last(shape),
           shape.fused_ops},
          ""};
}

bool may_use_tf32(const BackendDescriptor& operation_graph) {
  if (gpu().compute_major < 8) return false;
  for (const auto& operation : operations_of(operation_graph)) {
    if (is_convolution(*operation) &&
        tensor(*operation, convolution_tensors(*operation).input).type == CUDNN_DATA_FLOAT) {
      return true;
    }
  }
  return false;
}

std::vector<PlannedRecord> plan_records(const BackendDescriptor& operation_graph, bool uses_tf32) {
  const auto operations = operations_of(operation_graph);
  for (const auto& operation : operations) {
    if (is_convolution(*operation)) return {convolution_record(*operation, operations, uses_tf32)};
  }
  AttentionShape shape;
  if (find_attention(operations, shape)) return {attention_record(shape, operations)};
  return {named_record(operations)};
}

}  // namespace maya
