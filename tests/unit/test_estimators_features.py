"""Kinds and bytes of kernels, worked out by hand."""

from typing import Any

import pandas as pd
import pytest

from maya.estimators.features import KERNEL_KEY, kernel_features, parse_sizes

MISSING = -(2**63)
LOCAL = "void at::native::(anonymous namespace)::"


def features(name: str, **values: Any) -> pd.Series:
    row = dict.fromkeys(KERNEL_KEY, MISSING) | {"name": name, "operator": "", "shapes": ""}
    row |= {"grid_x": 100, "grid_y": 1, "grid_z": 1, "block_x": 256, "block_y": 1, "block_z": 1}
    return kernel_features(pd.DataFrame([row | values])).iloc[0]


def test_sizes_of_lists_are_flattened() -> None:
    assert parse_sizes("[[[2, 3], [4]], [5], []]") == ((2, 3), (4,), (5,), ())
    assert parse_sizes("[[2, 3], [4") == ()


def test_an_elementwise_kernel_counts_its_own_elements() -> None:
    functor = "at::native::CUDAFunctor_add<float>"
    name = f"void at::native::vectorized_elementwise_kernel<4, {functor}, std::array<char*, 3ul> >("
    row = features(name, num_elements=1000, operator="aten::add", shapes="[[10, 100], [100], []]")
    assert (row.op_kind, row.num_bytes) == ("elementwise", 12_000)


STRIDED_ADD = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
    "at::native::CUDAFunctor_add<c10::BFloat16> >(at::TensorIteratorBase&)::{lambda(int)#1}>(int"
)


def test_a_broadcast_operand_counts_at_its_own_size() -> None:
    # A bias of 100 bf16 elements is added to 10 rows; without sizes all three operands count in full.
    row = features(STRIDED_ADD, num_elements=1000, operator="aten::add", shapes="[[10, 100], [100], []]")
    assert row.num_bytes == 2 * (1000 + 1000 + 100)
    assert features(STRIDED_ADD, num_elements=1000).num_bytes == 6000


def test_a_boolean_mask_is_one_byte_an_element() -> None:
    # masked_fill_ of 2 x 8 x 16 x 16 fp32 scores by a 16 x 16 mask.
    name = (
        "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
        "masked_fill_kernel(at::TensorIterator&)::{lambda(float, bool)#1}>(at::TensorIteratorBase&)"
        "::{lambda(int)#1}>(int"
    )
    row = features(name, num_elements=4096, shapes="[[2, 8, 16, 16], [16, 16], []]")
    assert row.num_bytes == 4096 * 8 + 256


BF16_TENSOR_BYTES = 2 * 8 * 1024 * 2048
FUSED_ADAM = (
    "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, float, 4> >("
)
OPAQUE_4 = "at::native::(anonymous namespace)::OpaqueType<4u>"


@pytest.mark.parametrize(
    ("name", "values", "kind", "num_bytes"),
    [
        # Forward reads and writes a tensor; the gradient of the weights reads two of them.
        (
            "vectorized_layer_norm_kernel<c10::BFloat16, float, false>(int",
            {"shapes": "[[8, 1024, 2048], [], [2048]]"},
            "norm",
            2 * BF16_TENSOR_BYTES,
        ),
        (
            "GammaBetaBackwardCUDAKernelTemplate<c10::BFloat16, float, 32u>(long",
            {"shapes": "[[8, 1024, 2048], [8, 1024, 2048]]"},
            "norm",
            2 * BF16_TENSOR_BYTES,
        ),
        # 4,096 tokens of 1,024 features, two bytes each, are read and written; labels are 8 bytes.
        (
            "indexSelectLargeIndex<c10::Half, long, unsigned int, 2, 2, -2, true>(",
            {"shapes": "[[50304, 1024], [4, 1024]]"},
            "embedding",
            4096 * (2 * 1024 * 2 + 8),
        ),
        (
            "fused_dropout_kernel_vec<c10::BFloat16, float, unsigned int, 1, 8, bool>(",
            {"shapes": "[[16, 100]]"},
            "dropout",
            1600 * 5,
        ),
        # A list of 1,000 and 24 elements is concatenated.
        (
            f"CatArrayBatchedCopy<{OPAQUE_4}, unsigned int, 2, 64, 64>(",
            {"shapes": "[[[1000], [24]], []]"},
            "copy",
            2 * 1024 * 4,
        ),
        # FSDP2: gradients of 3,000 bf16 elements are read, packed and written in fp32; or copied as they are.
        (
            "chunk_cat_cuda_kernel<float, c10::BFloat16>(",
            {"shapes": "[[[1000], [2000]], [], [], [8, 375]]"},
            "copy",
            18_000,
        ),
        (
            "split_with_sizes_copy_out_contiguous_no_cast_kernel(char**",
            {"shapes": "[[8, 10], [], [[8, 4], [8, 6]]]"},
            "copy",
            320,
        ),
        # Sizes from the launch alone: 80 rows of 1,024, a block for each of 100 rows of 512, 32 rows of 64.
        (
            "softmax_warp_backward<float, float, float, 10, false, false, 32>(float*",
            {"scalar0": 80, "scalar1": 1024, "scalar2": 1024},
            "softmax",
            3 * 80 * 1024 * 4,
        ),
        (
            "layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float, false>(",
            {"scalar0": 512},
            "norm",
            3 * 100 * 512 * 2,
        ),
        (
            "batch_norm_transform_input_channels_last_kernel<c10::BFloat16, float, float, 4>(",
            {"scalar0": 32, "scalar1": 64},
            "norm",
            2 * 32 * 64 * 2,
        ),
        # Rows of 4,096 bytes, whatever their type.
        ("vectorized_gather_kernel<16, long>(", {"scalar0": 10, "scalar1": 4096}, "embedding", 10 * 8200),
        # A loss picks one of 25,600 logits for each of 4,096 tokens.
        (
            "index_elementwise_kernel<128, 4, gpu_index_kernel<index_kernel_impl<OpaqueType<4> > > >(",
            {"scalar0": 4096, "shapes": "[[4096, 25600], [4096], [4096]]"},
            "embedding",
            4096 * (4 + 4 + 8),
        ),
        # Seven values for each channel, not for each element of the images.
        (
            "unrolled_elementwise_kernel_for_multi_outputs<3, batch_norm_update_stats_and_invert"
            "::{lambda(float, float, float, float)#1}, std::array<char*, 7ul> >(int",
            {"scalar0": 64, "shapes": "[[256, 64, 112, 112], [64]]"},
            "elementwise",
            64 * 7 * 4,
        ),
        # The gradient of a bias reads bf16, though it sums in fp32.
        (
            "reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t<"
            "c10::BFloat16, at::native::sum_functor<c10::BFloat16, float>::{lambda(float, float)#1}> > >(",
            {"shapes": "[[16, 100], [], []]"},
            "reduction",
            1600 * 2,
        ),
        # The embedding's gradient sorts its 4,096 indices, not the 4M elements: int64 keys and values, twice.
        (
            "DeviceRadixSortOnesweepKernel<long, long>(",
            {"shapes": "[[4, 1024, 1024], [4, 1024]]", "operator": "aten::embedding_dense_backward"},
            "sort",
            4096 * 2 * 16,
        ),
        # Adam in fp32: 7 accesses of 4 bytes; without a count every block has its full chunk.
        (FUSED_ADAM, {"num_elements": 10**6}, "optimizer", 28 * 10**6),
        (FUSED_ADAM, {"grid_x": 3}, "optimizer", 28 * 3 * 65536),
    ],
)
def test_bytes(name: str, values: dict[str, Any], kind: str, num_bytes: int) -> None:
    row = features(LOCAL + name, **values)
    assert (row.op_kind, row.num_bytes) == (kind, num_bytes)


def test_flash_attention_takes_its_dims_from_the_operator() -> None:
    traits = "Flash_bwd_kernel_traits<128, 64, 128, 8, 2, 4, 2, true, false, cutlass::bfloat16_t>"
    kernel = "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel"
    name = f"void pytorch_flash::{kernel}<{traits}, false, true, false>(params)"
    shapes = "[[2, 16, 512, 128], [2, 16, 512, 128], [2, 4, 1024, 128], [2, 4, 1024, 128], [], []]"
    row = features(name, operator="aten::_scaled_dot_product_flash_attention_backward", shapes=shapes)
    dims = (row.batch, row.heads_q, row.heads_kv, row.seq_q, row.seq_kv, row.head_dim)
    assert dims == (2, 16, 4, 512, 1024, 128)
    assert (row.op, row["dtype"], row.direction, row.causal) == ("flash", "bf16", "backward", True)


def test_heads_come_third_in_the_inner_operators() -> None:
    parameters = "PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80, true>"
    name = f"fmha_cutlassF_f32_aligned_64x64_rf_sm80({parameters})"
    shapes = "[[2, 512, 16, 64], [2, 512, 16, 64], [2, 512, 16, 64], []]"
    row = features(name, operator="aten::_efficient_attention_forward", shapes=shapes)
    assert (row.heads_q, row.seq_q, row.op, row["dtype"], row.causal) == (
        16,
        512,
        "efficient",
        "fp32",
        False,
    )


def test_an_unknown_kernel_is_generic_and_not_free() -> None:
    row = features("mystery(float*)", grid_x=1000)
    assert row.op_kind == "generic"
    assert row.num_bytes == 2 * 1000 * 256 * 4 * 4
