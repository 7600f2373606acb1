// Reductions of NCCL on the CPU, for the payloads of small collectives.
#pragma once

#include <cstddef>
#include <span>

#include "nccl_api.h"

namespace maya {

size_t element_bytes(ncclDataType_t dtype);
bool is_integer_type(ncclDataType_t dtype);

// Reduces `count` elements of each input, in order, into `output`, which may be one of the inputs. Types of
// 16 and 8 bits are accumulated in float and rounded once; integers wrap. `op` is a built-in operator.
void reduce(ncclRedOp_t op, ncclDataType_t dtype, size_t count, std::span<const void* const> inputs,
            void* output);

// The same for `num_copies` equal inputs, without a pass for each.
void reduce_copies(ncclRedOp_t op, ncclDataType_t dtype, size_t count, const void* input, int num_copies,
                   void* output);

// The pre-multiplication of ncclRedOpCreatePreMulSum: output = factor * input.
void scale(ncclDataType_t dtype, size_t count, const void* input, double factor, void* output);

// One element as a number.
double load_scalar(ncclDataType_t dtype, const void* element);

}  // namespace maya
