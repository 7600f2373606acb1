"""What kernel names say. They are those that PyTorch 2.14 registers, demangled and cut at the parameters."""

import pytest

from maya.estimators.kernel_names import element_bytes, foreach_accesses, operand_bytes, trailing_bools

NATIVE = "void at::native::"
LOCAL = NATIVE + "(anonymous namespace)::"


LAMBDA = "(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda"


@pytest.mark.parametrize(
    ("name", "size", "per_element"),
    [
        # Two bf16 operands and a result.
        (
            "vectorized_elementwise_kernel<8, CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >(",
            2,
            6,
        ),
        # A scalar is bound into the functor: two pointers remain.
        (
            "vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, float, "
            "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul>, false>(",
            4,
            8,
        ),
        # The name does not give the type of the result: the widest argument's.
        (
            f"unrolled_elementwise_kernel<where_kernel_impl{LAMBDA}(bool, c10::Half, c10::Half)#1}}, "
            "std::array<char*, 4ul>, 4>(",
            1,
            2 + 1 + 2 + 2,
        ),
        # No array: the lambda around the functor takes an index, the inner one the operands.
        (
            "elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<tanh_backward_kernel_cuda"
            f"{LAMBDA}(c10::BFloat16, c10::BFloat16)#1}}>(at::TensorIteratorBase&)::{{lambda(int)#1}}>(int",
            2,
            6,
        ),
        # Casts between fp32 and bf16.
        (
            "vectorized_elementwise_kernel<2, bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::"
            "{lambda(float)#1}, std::array<char*, 2ul>, false>(",
            2,
            6,
        ),
        (
            f"unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda{LAMBDA}(float)#1}}, "
            "std::array<char*, 2ul>, 4, TrivialOffsetCalculator<1, unsigned int>, "
            "at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1> >(",
            4,
            6,
        ),
        # fp32 += bf16.
        (
            "unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>, 4, "
            "TrivialOffsetCalculator<2, unsigned int>, TrivialOffsetCalculator<1, unsigned int>, "
            "at::native::memory::LoadWithCast<2>, at::native::memory::StoreWithCast<1> >(",
            4,
            4 + 4 + 2,
        ),
        # Functors name the types of both arguments and of the result.
        (
            "elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<"
            "long, long, bool, at::native::CompareEqFunctor<long> > >(",
            8,
            1 + 8 + 8,
        ),
        ("vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(", 4, 4),
    ],
)
def test_elementwise(name: str, size: int, per_element: int) -> None:
    assert element_bytes(NATIVE + name) == size
    assert sum(operand_bytes(NATIVE + name)) == per_element


def test_types_of_other_kernels() -> None:
    opaque = "CatArrayBatchedCopy_contig<at::native::OpaqueType<2u>, unsigned int, 1, 64, 64>("
    assert element_bytes(LOCAL + opaque) == 2
    softmax = (
        "cunn_SoftMaxForwardSmem<8, c10::Half, float, c10::Half, at::native::SoftMaxForwardEpilogue, long>("
    )
    assert element_bytes(LOCAL + softmax) == 2
    backward = "fmha_cutlassB_bf16(AttentionBackwardKernel<cutlass::arch::Sm80, cutlass::bfloat16_t, true>)"
    assert element_bytes(backward) == 2
    assert element_bytes("triton_poi_fused_add_0") == 4


@pytest.mark.parametrize(
    ("name", "accesses"),
    [
        # Parameter, gradient and two moments are read; all but the gradient are written.
        (
            "FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, float, 4, 0, false>",
            7,
        ),
        (
            "TensorListMetadata<1>, LpNormFunctor<c10::Half, (at::native::NormType)1, float, 1, 1, 0>",
            1,
        ),
        # x *= s in place: one list is read and written. a*b+c to a fourth list: three are read.
        ("TensorListMetadata<1>, at::native::BinaryOpScalarFunctor<float, 1, 1, 0>", 2),
        ("TensorListMetadata<4>, at::native::PointwiseOpScalarFunctor<float, 4, 3, 3>", 4),
    ],
)
def test_foreach(name: str, accesses: int) -> None:
    assert foreach_accesses(f"{LOCAL}multi_tensor_apply_kernel<{LOCAL[5:]}{name}>(") == accesses


def test_flags_at_the_end_of_the_template_arguments() -> None:
    traits = "Flash_fwd_kernel_traits<64, 128, 64, 4, false, false, cutlass::half_t>"
    name = (
        f"void pytorch_flash::flash_fwd_kernel<{traits}, false, true, false>(pytorch_flash::Flash_fwd_params)"
    )
    assert trailing_bools(name) == (False, True, False)
