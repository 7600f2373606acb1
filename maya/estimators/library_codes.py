"""The number codes of NVIDIA's libraries in the trace, as types of the estimators."""

import numpy as np
import pandas as pd

# cudaDataType (library_types.h): code to (type, bytes).
CUDA_DTYPES = {
    0: ("fp32", 4),
    1: ("fp64", 8),
    2: ("fp16", 2),
    3: ("int8", 1),
    4: ("fp32", 8),  # complex
    5: ("fp64", 16),  # complex
    10: ("int8", 4),  # 32-bit integers: the result of an int8 product
    14: ("bf16", 2),
    28: ("fp8", 1),
    29: ("fp8", 1),
    33: ("fp8", 1),  # 4-bit floats: no table, taken as fp8
}
# cublasComputeType_t (cublas_api.h): single precision by way of a faster type.
FAST_COMPUTE = {74: "fp16", 75: "bf16", 77: "tf32"}

# compute_dtype of a convolution of fp32 tensors on tensor cores (kTensorFloat32 of the trace format).
CONV_COMPUTE_TF32 = 1000

# cudnnDataType_t (cudnn_graph_v9.h).
CUDNN_DTYPES = {0: "fp32", 1: "fp64", 2: "fp16", 3: "int8", 9: "bf16", 12: "fp8", 13: "fp8"}


def gemm_dtypes(keys: pd.DataFrame) -> tuple[np.ndarray, list[np.ndarray]]:
    """Type that decides the rate of each product, and the element sizes of A, B and C in bytes."""
    types = [CUDA_DTYPES.get(int(code), ("fp32", 4))[0] for code in keys.type_a]
    fast = [FAST_COMPUTE.get(int(code)) for code in keys.compute_type]
    rate = np.array([f if f and t == "fp32" else t for t, f in zip(types, fast, strict=True)], object)
    sizes = [
        np.array([CUDA_DTYPES.get(int(code), ("fp32", 4))[1] for code in keys[column]], np.float64)
        for column in ("type_a", "type_b", "type_c")
    ]
    return rate.astype(str), sizes
