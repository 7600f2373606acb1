// What the emulated math libraries share: element types, and the record of a computation that is
// known by its name, its traffic and its floating-point operations.
#pragma once

#include <cudnn.h>
#include <driver_types.h>
#include <library_types.h>

#include <cstdint>
#include <cstring>

#include "cudnn_later_names.h"
#include "device.h"
#include "known_bytes.h"
#include "recorder.h"

namespace maya {

inline int64_t element_bits(cudaDataType type) {
  switch (type) {
    case CUDA_C_64F:
    case CUDA_C_64I:
    case CUDA_C_64U:
      return 128;
    case CUDA_R_64F:
    case CUDA_R_64I:
    case CUDA_R_64U:
    case CUDA_C_32F:
    case CUDA_C_32I:
    case CUDA_C_32U:
      return 64;
    case CUDA_R_32F:
    case CUDA_R_32I:
    case CUDA_R_32U:
    case CUDA_C_16F:
    case CUDA_C_16BF:
    case CUDA_C_16I:
    case CUDA_C_16U:
      return 32;
    case CUDA_R_16F:
    case CUDA_R_16BF:
    case CUDA_R_16I:
    case CUDA_R_16U:
    case CUDA_C_8I:
    case CUDA_C_8U:
      return 16;
    case CUDA_R_6F_E2M3:
    case CUDA_R_6F_E3M2:
      return 6;
    case CUDA_R_4F_E2M1:
    case CUDA_R_4I:
    case CUDA_R_4U:
      return 4;
    default:  // 8-bit integers and floats, pairs of 4-bit integers
      return 8;
  }
}

inline int64_t element_bits(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_COMPLEX_FP64:
      return 128;
    case CUDNN_DATA_DOUBLE:
    case CUDNN_DATA_INT64:
    case CUDNN_DATA_COMPLEX_FP32:
      return 64;
    case CUDNN_DATA_FLOAT:
    case CUDNN_DATA_INT32:
    case CUDNN_DATA_UINT32:
    case CUDNN_DATA_FAST_FLOAT_FOR_FP8:
      return 32;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16:
      return 16;
    case CUDNN_DATA_FP4_E2M1:
    case CUDNN_DATA_INT4:
    case CUDNN_DATA_UINT4:
      return 4;
    default:  // 8-bit types; the vectorised ones count single elements in their dimensions
      return 8;
  }
}

template <typename Type>
int64_t bytes_of(int64_t num_elements, Type type) {
  return (num_elements * element_bits(type) + 7) / 8;
}

inline bool is_complex(cudaDataType type) {
  return type == CUDA_C_64F || type == CUDA_C_32F || type == CUDA_C_16F || type == CUDA_C_16BF;
}

// Code of an element type in the dtype field of `library_op`, which is cuDNN's.
inline cudnnDataType_t cudnn_data_type(cudaDataType type) {
  switch (type) {
    case CUDA_R_64F:
      return CUDNN_DATA_DOUBLE;
    case CUDA_R_16F:
    case CUDA_C_16F:
      return CUDNN_DATA_HALF;
    case CUDA_R_16BF:
    case CUDA_C_16BF:
      return CUDNN_DATA_BFLOAT16;
    case CUDA_C_32F:
      return CUDNN_DATA_COMPLEX_FP32;
    case CUDA_C_64F:
      return CUDNN_DATA_COMPLEX_FP64;
    case CUDA_R_8I:
      return CUDNN_DATA_INT8;
    case CUDA_R_8U:
      return CUDNN_DATA_UINT8;
    case CUDA_R_32I:
      return CUDNN_DATA_INT32;
    case CUDA_R_64I:
      return CUDNN_DATA_INT64;
    case CUDA_R_8F_E4M3:
      return CUDNN_DATA_FP8_E4M3;
    case CUDA_R_8F_E5M2:
      return CUDNN_DATA_FP8_E5M2;
    default:
      return CUDNN_DATA_FLOAT;
  }
}

// Traffic and work of one library call; kMissing where the arguments do not tell. Operations that
// only touch each element a few times count no floating-point operations.
struct Work {
  int64_t read_bytes = trace::kMissing;
  int64_t written_bytes = trace::kMissing;
  int64_t flops = 0;
};

inline void record_library_op(Call& call, cudaStream_t stream, const char* name, cudnnDataType_t type,
                              const Work& work) {
  call.record(Kind::library_op,
              {stream_id(stream), intern(name), type, work.read_bytes, work.written_bytes, work.flops});
}

// Results of computations read as zero. In memory that the host can write too nothing tells what stands
// there, so a small result is written; larger ones are not read back by programs.
inline void zero_result(void* result, int64_t num_bytes) {
  if (num_bytes <= 0) return;
  overwrite_known_bytes(result, static_cast<size_t>(num_bytes));
  if (num_bytes > int64_t(kPayloadLimitBytes)) return;
  const Allocation allocation = find_allocation(result);
  if (allocation.space == Space::unknown || allocation.space == Space::device) return;
  const auto begin = reinterpret_cast<uintptr_t>(result);
  if (begin + num_bytes <= allocation.address + allocation.bytes) std::memset(result, 0, num_bytes);
}

// The same for column-major matrices, of which only the columns are written.
inline void zero_matrices(void* result, int64_t rows, int64_t cols, int64_t leading_dimension, int64_t batch,
                          int64_t batch_stride, cudaDataType type) {
  const int64_t column_bytes = bytes_of(rows, type);
  if (column_bytes * cols * batch > int64_t(kPayloadLimitBytes)) {
    const int64_t last = (batch - 1) * batch_stride + (cols - 1) * leading_dimension + rows;
    return overwrite_known_bytes(result, static_cast<size_t>(bytes_of(last, type)));
  }
  const bool is_contiguous = leading_dimension == rows;
  for (int64_t i = 0; i < batch; ++i) {
    char* matrix = static_cast<char*>(result) + bytes_of(i * batch_stride, type);
    if (is_contiguous) {
      zero_result(matrix, column_bytes * cols);
    } else {
      for (int64_t j = 0; j < cols; ++j) {
        zero_result(matrix + bytes_of(j * leading_dimension, type), column_bytes);
      }
    }
  }
}

// A complex multiply-add is 4 real multiplications and 4 additions instead of 1 and 1.
inline int64_t real_flops(int64_t flops, cudaDataType type) { return is_complex(type) ? 4 * flops : flops; }

}  // namespace maya
