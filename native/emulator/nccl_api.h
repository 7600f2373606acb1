// <nccl.h> without the device headers that it includes but whose types it does not use.
#pragma once

#include "half_types.h"
#ifndef __CUDA_FP8_H__
#define __CUDA_FP8_H__
#endif
#include <nccl.h>
