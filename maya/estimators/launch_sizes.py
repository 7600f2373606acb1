"""How many elements a kernel works on, where its scalar arguments and its grid say so.

Kernels of PyTorch (ATen/native/cuda: PersistentSoftmax.cuh, SoftMax.cu, layer_norm_kernel.cu,
Normalization.cuh, Dropout.cu, Embedding.cu, IndexKernel.cu); their integer arguments in order, pointers and
structs left out.
"""

import re
from collections.abc import Callable

Scalars = tuple[int, ...]

_SIZES: tuple[tuple[re.Pattern[str], Callable[[int, Scalars], int]], ...] = tuple(
    (re.compile(pattern), size)
    for pattern, size in (
        # (rows, stride, columns)
        ("softmax_warp_(?:forward|backward)", lambda blocks, s: s[0] * s[2]),
        # (outer, dim, inner)
        ("cunn_SpatialSoftMax", lambda blocks, s: s[0] * s[1] * s[2]),
        # (columns), a block for each row
        ("cunn_SoftMax", lambda blocks, s: blocks * s[0]),
        ("vectorized_layer_norm_kernel|layer_norm_grad_input_kernel", lambda blocks, s: blocks * s[0]),
        ("RowwiseMomentsCUDAKernel|LayerNormForwardCUDAKernel", lambda blocks, s: blocks * s[0]),
        # (rows, columns)
        ("GammaBetaBackward", lambda blocks, s: s[0] * s[1]),
        ("batch_norm_\\w+_channels_last_kernel", lambda blocks, s: s[0] * s[1]),
        # (indices, width)
        ("compute_grad_weight|embedding_backward_feature_kernel", lambda blocks, s: s[0] * s[1]),
        # (elements)
        ("fused_dropout_kernel|unrolled_elementwise_kernel_for_multi_outputs", lambda blocks, s: s[0]),
        ("index_elementwise_kernel|elementwise_kernel_with_index", lambda blocks, s: s[0]),
    )
)


def elements_of_launch(name: str, num_blocks: int, scalars: Scalars) -> int:
    """Elements of the index space, 0 where the arguments do not say.

    Args:
        scalars: the first six integer arguments, 0 where there are fewer
    """
    return next((size(num_blocks, scalars) for pattern, size in _SIZES if pattern.search(name)), 0)
