// Declares the half-precision types that the library headers name only behind pointers. The headers
// that define them need libcu++ (nv/target), which PyTorch does not bring along; defining their
// include guards keeps them out.
#pragma once

#define __CUDA_FP16_H__
#define __CUDA_BF16_H__

struct __half;
struct __nv_bfloat16;
