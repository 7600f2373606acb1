"""Over what rows and columns a kernel works, where its scalar arguments and its grid say so.

Kernels of PyTorch (ATen/native/cuda: PersistentSoftmax.cuh, SoftMax.cu, layer_norm_kernel.cu,
Normalization.cuh, NLLLoss.cu, Dropout.cu, Embedding.cu, IndexKernel.cu); their integer arguments in order,
pointers and structs left out. Columns are what a norm, a softmax or a loss reduces.
"""

import re
from collections.abc import Callable
from functools import lru_cache

Scalars = tuple[int, ...]
Shape = tuple[int, int]

_SHAPES: tuple[tuple[re.Pattern[str], Callable[[int, Scalars], Shape]], ...] = tuple(
    (re.compile(pattern), shape)
    for pattern, shape in (
        # (rows, stride, columns)
        ("softmax_warp_(?:forward|backward)", lambda blocks, s: (s[0], s[2])),
        # (outer, dim, inner)
        ("cunn_SpatialSoftMax", lambda blocks, s: (s[0] * s[2], s[1])),
        # (columns), a block for each row
        ("cunn_SoftMax", lambda blocks, s: (blocks, s[0])),
        ("vectorized_layer_norm_kernel|layer_norm_grad_input_kernel", lambda blocks, s: (blocks, s[0])),
        ("RowwiseMomentsCUDAKernel|LayerNormForwardCUDAKernel", lambda blocks, s: (blocks, s[0])),
        # (rows, columns)
        ("GammaBetaBackward", lambda blocks, s: (s[0], s[1])),
        # (elements of a channel, channels)
        ("batch_norm_\\w+_channels_last_kernel", lambda blocks, s: (s[1], s[0])),
        # (is it an average, rows, columns, ...)
        ("nll_loss_\\w+_reduce_cuda_kernel_2d", lambda blocks, s: (s[1], s[2])),
        # (indices, width)
        ("compute_grad_weight|embedding_backward_feature_kernel", lambda blocks, s: (s[0], s[1])),
        # (elements)
        ("fused_dropout_kernel|unrolled_elementwise_kernel_for_multi_outputs", lambda blocks, s: (1, s[0])),
        ("index_elementwise_kernel|elementwise_kernel_with_index", lambda blocks, s: (1, s[0])),
    )
)


@lru_cache(maxsize=65536)
def _shape_of(name: str) -> Callable[[int, Scalars], Shape] | None:
    return next((shape for pattern, shape in _SHAPES if pattern.search(name)), None)


def shape_of_launch(name: str, num_blocks: int, scalars: Scalars) -> Shape:
    """Rows and columns of the index space, (0, 0) where the arguments do not say.

    Args:
        scalars: the first six integer arguments, 0 where there are fewer
    """
    shape = _shape_of(name)
    return shape(num_blocks, scalars) if shape else (0, 0)
