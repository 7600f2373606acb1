// Descriptors of the cuDNN backend API: attributes by number, kept as they were set.
//
// A descriptor that refers to others shares their contents, so that a plan outlives the operation
// graph it was made from, as the frontend expects.
#pragma once

#include <cudnn.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "cudnn_operations.h"

namespace maya {

struct BackendDescriptor {
  struct Attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    std::vector<std::byte> bytes;                                 // of plain values
    std::vector<std::shared_ptr<BackendDescriptor>> descriptors;  // of CUDNN_TYPE_BACKEND_DESCRIPTOR
  };

  cudnnBackendDescriptorType_t type;
  std::vector<Attribute> attributes;
  std::vector<PlannedRecord> records;  // of a finalised execution plan

  const Attribute* find(int name) const {
    for (const Attribute& attribute : attributes) {
      if (attribute.name == name) return &attribute;
    }
    return nullptr;
  }

  std::shared_ptr<BackendDescriptor> descriptor(int name) const {
    const Attribute* attribute = find(name);
    return attribute == nullptr || attribute->descriptors.empty() ? nullptr : attribute->descriptors.front();
  }

  template <typename Value>
  Value value(int name, Value fallback) const {
    const Attribute* attribute = find(name);
    if (attribute == nullptr || attribute->bytes.size() < sizeof(Value)) return fallback;
    Value value;
    std::memcpy(&value, attribute->bytes.data(), sizeof(Value));
    return value;
  }

  std::vector<int64_t> integers(int name) const {
    const Attribute* attribute = find(name);
    if (attribute == nullptr) return {};
    std::vector<int64_t> values(attribute->bytes.size() / sizeof(int64_t));
    std::memcpy(values.data(), attribute->bytes.data(), values.size() * sizeof(int64_t));
    return values;
  }
};

}  // namespace maya
