// The backend API of cuDNN, through which cudnn-frontend builds operation graphs and plans.
//
// Descriptors keep what they are given. Heuristics offer one engine, and for fp32 convolutions on
// tensor-core devices a second one without them, which PyTorch chooses where TF32 is not allowed.
#include <cudnn.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>

#include "cudnn_descriptor.h"
#include "cudnn_handle.h"
#include "math_library.h"

using maya::BackendDescriptor;
using maya::Call;

namespace {

// What a cudnnBackendDescriptor_t points to. Reading an attribute that is a descriptor fills one
// that the caller has made: both then share their contents.
struct Handle {
  std::shared_ptr<BackendDescriptor> contents;
};

BackendDescriptor& contents(cudnnBackendDescriptor_t handle) {
  return *static_cast<Handle*>(handle)->contents;
}

constexpr int64_t kTensorCoreEngine = 0, kPlainEngine = 1;  // global indices

size_t element_bytes(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    case CUDNN_TYPE_FRACTION:
      return sizeof(cudnnFraction_t);
    default:  // floats, 32-bit integers and enumerations
      return 4;
  }
}

std::shared_ptr<BackendDescriptor> make_descriptor(cudnnBackendDescriptorType_t type) {
  return std::make_shared<BackendDescriptor>(BackendDescriptor{type, {}, {}});
}

void set_descriptor(BackendDescriptor& owner, cudnnBackendAttributeName_t name,
                    std::shared_ptr<BackendDescriptor> value) {
  owner.attributes.push_back({name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, {std::move(value)}});
}

template <typename Value>
void set_value(BackendDescriptor& owner, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
               Value value) {
  std::vector<std::byte> bytes(sizeof(Value));
  std::memcpy(bytes.data(), &value, sizeof(Value));
  owner.attributes.push_back({name, type, 1, std::move(bytes), {}});
}

std::shared_ptr<BackendDescriptor> make_engine_config(const std::shared_ptr<BackendDescriptor>& graph,
                                                      int64_t engine_index) {
  auto engine = make_descriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  set_descriptor(*engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
  set_value(*engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, engine_index);
  auto config = make_descriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  set_descriptor(*config, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  return config;
}

std::vector<std::shared_ptr<BackendDescriptor>> heuristic_results(const BackendDescriptor& heuristics) {
  const auto graph = heuristics.descriptor(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  const auto mode = heuristics.value(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_A);
  const bool wants_fallback = mode == CUDNN_HEUR_MODE_FALLBACK;
  const bool has_choice = maya::may_use_tf32(*graph);
  return {make_engine_config(graph, has_choice && wants_fallback ? kPlainEngine : kTensorCoreEngine)};
}

bool uses_tf32(const BackendDescriptor& engine) {
  return engine.value(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, kTensorCoreEngine) == kTensorCoreEngine &&
         maya::may_use_tf32(*engine.descriptor(CUDNN_ATTR_ENGINE_OPERATION_GRAPH));
}

// Where a program reads an attribute: counts first (with no room or no array), then values.
struct Reader {
  cudnnBackendAttributeType_t type;
  int64_t requested;
  int64_t* count;
  void* array;

  cudnnStatus_t values(cudnnBackendAttributeType_t value_type, int64_t num_values, const void* values) const {
    if (type != value_type) return CUDNN_STATUS_BAD_PARAM;
    if (count != nullptr) *count = num_values;
    if (array != nullptr && num_values > 0) {
      std::memcpy(array, values, std::min(requested, num_values) * element_bytes(value_type));
    }
    return CUDNN_STATUS_SUCCESS;
  }

  template <typename Value>
  cudnnStatus_t value(cudnnBackendAttributeType_t value_type, Value value) const {
    return values(value_type, 1, &value);
  }

  cudnnStatus_t text(std::string_view text) const {
    return values(CUDNN_TYPE_CHAR, static_cast<int64_t>(text.size()), text.data());
  }

  cudnnStatus_t descriptors(const std::vector<std::shared_ptr<BackendDescriptor>>& sources) const {
    const int64_t num_sources = static_cast<int64_t>(sources.size());
    if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) return CUDNN_STATUS_BAD_PARAM;
    if (count != nullptr) *count = num_sources;
    if (array != nullptr) {
      for (int64_t i = 0; i < std::min(requested, num_sources); ++i) {
        static_cast<Handle*>(static_cast<cudnnBackendDescriptor_t*>(array)[i])->contents = sources[i];
      }
    }
    return CUDNN_STATUS_SUCCESS;
  }
};

// Attributes that cuDNN computes. The workspace of an engine is not modelled: 0 bytes.
bool read_computed(const BackendDescriptor& descriptor, cudnnBackendAttributeName_t name,
                   const Reader& reader, cudnnStatus_t& status) {
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
      status = reader.descriptors(heuristic_results(descriptor));
      return true;
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
      status = reader.value<int64_t>(CUDNN_TYPE_INT64, maya::may_use_tf32(descriptor) ? 2 : 1);
      return true;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: {
      const cudnnBackendNumericalNote_t note = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
      status = reader.values(CUDNN_TYPE_NUMERICAL_NOTE, uses_tf32(descriptor) ? 1 : 0, &note);
      return true;
    }
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
      status = reader.values(CUDNN_TYPE_BEHAVIOR_NOTE, 0, nullptr);
      return true;
    case CUDNN_ATTR_ENGINE_KNOB_INFO:
    case CUDNN_ATTR_ENGINE_LAYOUT_INFO:
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
    case CUDNN_ATTR_ENGINECFG_INTERMEDIATE_INFO:
      status = reader.descriptors({});
      return true;
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      status = reader.value<int64_t>(CUDNN_TYPE_INT64, 0);
      return true;
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED:
      status = reader.value<int32_t>(CUDNN_TYPE_INT32, 0);
      return true;
    case CUDNN_ATTR_KERNEL_CACHE_IS_ENGINECFG_KERNEL_CACHED:
      status = reader.value<bool>(CUDNN_TYPE_BOOLEAN, false);
      return true;
    case CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION:
    case CUDNN_ATTR_KERNEL_CACHE_JSON_REPRESENTATION:
    case CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION:
      status = reader.text("{}");
      return true;
    default:
      return false;
  }
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  MAYA_COUNT_CALL();
  *descriptor = new Handle{make_descriptor(type)};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Handle*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* array) {
  if (count < 0 || (array == nullptr && count > 0)) return CUDNN_STATUS_BAD_PARAM;
  BackendDescriptor::Attribute attribute{name, type, count, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (int64_t i = 0; i < count; ++i) {
      const auto* handle = static_cast<const Handle*>(static_cast<const cudnnBackendDescriptor_t*>(array)[i]);
      if (handle == nullptr) return CUDNN_STATUS_BAD_PARAM;
      attribute.descriptors.push_back(handle->contents);
    }
  } else {
    const auto* bytes = static_cast<const std::byte*>(array);
    attribute.bytes.assign(bytes, bytes + count * element_bytes(type));
  }
  std::vector<BackendDescriptor::Attribute>& attributes = contents(descriptor).attributes;
  for (BackendDescriptor::Attribute& known : attributes) {
    if (known.name == name) {
      known = std::move(attribute);
      return CUDNN_STATUS_SUCCESS;
    }
  }
  attributes.push_back(std::move(attribute));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t requested, int64_t* count, void* array) {
  MAYA_COUNT_CALL();
  const BackendDescriptor& source = contents(descriptor);
  const Reader reader{type, requested, count, array};
  if (const BackendDescriptor::Attribute* attribute = source.find(name)) {
    if (attribute->type == CUDNN_TYPE_BACKEND_DESCRIPTOR) return reader.descriptors(attribute->descriptors);
    return reader.values(attribute->type, attribute->count, attribute->bytes.data());
  }
  cudnnStatus_t status;
  if (read_computed(source, name, reader, status)) return status;
  maya::warn("cudnnBackendGetAttribute: attribute %d of descriptor type %d has no value", int(name),
             int(source.type));
  maya::unemulated("cudnnBackendGetAttribute");
  return CUDNN_STATUS_NOT_SUPPORTED;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  MAYA_COUNT_CALL();
  BackendDescriptor& target = contents(descriptor);
  if (target.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    const auto config = target.descriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    if (config == nullptr) return CUDNN_STATUS_BAD_PARAM;
    const auto engine = config->descriptor(CUDNN_ATTR_ENGINECFG_ENGINE);
    if (engine == nullptr) return CUDNN_STATUS_BAD_PARAM;
    const auto graph = engine->descriptor(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
    if (graph == nullptr) return CUDNN_STATUS_BAD_PARAM;
    target.records = maya::plan_records(*graph, uses_tf32(*engine));
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t) {
  Call call;
  for (maya::PlannedRecord& record : contents(plan).records) {
    record.fields[0] = maya::stream_id(handle->stream);
    if (record.kind == maya::Kind::library_op) record.fields[1] = maya::intern(record.name);
    call.record(record.kind, record.fields.data(), static_cast<int>(record.fields.size()));
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
