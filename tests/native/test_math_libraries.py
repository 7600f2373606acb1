"""Calls of cuBLAS, cublasLt, cuDNN, cuFFT, cuSOLVER and cuSPARSE as PyTorch makes them, on emulated GPUs.

One program a GPU runs all cases, each between two marks; the tests look at the records between them. Expected
shapes are worked out beside each case: a row-major product ``C[M, N] = A[M, K] B[K, N]`` reaches cuBLAS as
the column-major ``C^T = B^T A^T``, so its m is N and its n is M; an operand stored transposed has a 1 (T).
"""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from native.emulated import preload_list

pytest.importorskip("torch")
from maya.capture.build_emulator import emulator_dir
from maya.capture.environment import gpu_properties
from maya.config.compose import gpu_config
from maya.trace import Trace, read_trace

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

# cudaDataType, cublasComputeType_t, cublasLtEpilogue_t
R_32F, R_64F, R_16F, R_16BF, R_8F_E4M3 = 0, 1, 2, 14, 28
COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 68, 77
CUBLAS, CUBLASLT = 0, 1
EPILOGUE_DEFAULT, EPILOGUE_BIAS, EPILOGUE_RELU_BIAS = 1, 4, 6
N, T = 0, 1
# cudnnDataType_t, and the code of format.h for fp32 on tensor cores
FLOAT, HALF, BFLOAT16, TF32 = 0, 2, 9, 1000
FORWARD, BACKWARD_DATA, BACKWARD_FILTER = 0, 1, 2

PROLOGUE = """
import ctypes, json, sys, traceback
import torch
import torch.nn.functional as F
from torch import nn

lib = ctypes.CDLL(None)
lib.maya_mark.argtypes = [ctypes.c_char_p, ctypes.c_int64]
device = torch.device("cuda")

def rand(*size, dtype=torch.float32, grad=False):
    return torch.empty(*size, dtype=dtype, device=device).requires_grad_(grad)

def run(cases):
    errors = {}
    for name, code in cases.items():
        lib.maya_mark(name.encode(), 0)
        try:
            exec(code, dict(globals()))
            torch.cuda.synchronize()
        except Exception:
            errors[name] = traceback.format_exc()
        lib.maya_mark(b"case_end", 0)
    lib.maya_flush()
    with open(sys.argv[2], "w") as file:
        json.dump(errors, file)

with open(sys.argv[1]) as file:
    run(json.load(file))
"""

GEMM_CASES = {
    "linear_fp32": """
x = rand(64, 512, grad=True)
nn.Linear(512, 256, bias=False, device=device)(x).backward(rand(64, 256))
""",
    "linear_tf32": """
torch.backends.cuda.matmul.allow_tf32 = True
nn.Linear(512, 256, bias=False, device=device)(rand(64, 512))
torch.backends.cuda.matmul.allow_tf32 = False
""",
    "linear_bias_fp16": """
nn.Linear(512, 256, device=device, dtype=torch.half)(rand(64, 512, dtype=torch.half))
""",
    "linear_bias_bf16": """
x = rand(4, 16, 512, dtype=torch.bfloat16, grad=True)
layer = nn.Linear(512, 256, device=device, dtype=torch.bfloat16)
layer(x).backward(rand(4, 16, 256, dtype=torch.bfloat16))
""",
    "bmm_bf16": "torch.bmm(rand(8, 32, 64, dtype=torch.bfloat16), rand(8, 64, 48, dtype=torch.bfloat16))",
    "addmm_relu": """
torch._addmm_activation(rand(256), rand(64, 512), rand(512, 256), beta=1, alpha=1)
""",
    "double": "torch.mm(rand(16, 32, dtype=torch.double), rand(32, 24, dtype=torch.double))",
    "dot": "assert torch.dot(rand(1000), rand(1000)).item() == 0",
    "matvec": "torch.mv(rand(64, 512), rand(512))",
    "small_result_is_zero": """
x = torch.ones(8, 8).to(device)
torch.mm(rand(8, 8), rand(8, 8), out=x)
assert x.cpu().abs().sum() == 0
""",
    "side_stream": """
side = torch.cuda.Stream()
a = rand(16, 16)
with torch.cuda.stream(side):
    a @ a
""",
}

FP8_CASES = {
    "scaled_mm": """
a = rand(64, 512).to(torch.float8_e4m3fn)
b = rand(256, 512).to(torch.float8_e4m3fn).t()
one = torch.ones((), device=device)
torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
""",
}

CONVOLUTION_CASES = {
    "conv2d": """
layer = nn.Conv2d(16, 24, 3, stride=2, padding=1, bias=False, device=device)
layer(rand(8, 16, 32, 32, grad=True)).backward(rand(8, 24, 16, 16))
""",
    "conv2d_no_tf32": """
torch.backends.cudnn.allow_tf32 = False
nn.Conv2d(16, 24, 3, bias=False, device=device)(rand(8, 16, 32, 32))
torch.backends.cudnn.allow_tf32 = True
""",
    "conv2d_amp_channels_last": """
layer = nn.Conv2d(16, 24, 3, padding=2, dilation=2, device=device).to(memory_format=torch.channels_last)
x = rand(8, 16, 32, 32).to(memory_format=torch.channels_last).requires_grad_()
with torch.autocast("cuda", dtype=torch.float16):
    y = layer(x)
y.backward(torch.empty_like(y))
""",
    "conv1d": """
nn.Conv1d(8, 12, 5, device=device, dtype=torch.bfloat16)(rand(4, 8, 100, dtype=torch.bfloat16))
""",
    "conv3d": "nn.Conv3d(4, 6, (1, 2, 3), bias=False, device=device)(rand(2, 4, 5, 6, 7))",
    "conv_transpose2d": """
nn.ConvTranspose2d(16, 8, 4, stride=2, bias=False, device=device)(rand(2, 16, 10, 10))
""",
    "grouped": "nn.Conv2d(16, 32, 3, groups=4, bias=False, device=device)(rand(2, 16, 10, 10))",
    "conv_relu": """
x, w, bias = rand(2, 8, 6, 6), rand(4, 8, 3, 3), rand(4)
torch.cudnn_convolution_relu(x, w, bias, [1, 1], [0, 0], [1, 1], 1)
torch.cudnn_convolution_add_relu(x, w, rand(2, 4, 4, 4), 1.0, bias, [1, 1], [0, 0], [1, 1], 1)
""",
    "benchmark": """
torch.backends.cudnn.benchmark = True
layer = nn.Conv2d(16, 40, 3, bias=False, device=device)
x = rand(8, 16, 32, 32)
layer(x)
lib.maya_mark(b"benchmarked", 0)
layer(x)
torch.backends.cudnn.benchmark = False
""",
    "resnet_step": """
import torchvision
model = torchvision.models.resnet18().to(device, memory_format=torch.channels_last)
x = rand(4, 3, 64, 64).to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x), torch.zeros(4, dtype=torch.long, device=device))
    loss.backward()
    optimizer.step()
""",
}

ATTENTION_CASES = {
    "sdpa": """
q, k, v = (rand(2, 8, 128, 64, dtype=torch.float16, grad=True) for _ in range(3))
F.scaled_dot_product_attention(q, k, v).backward(rand(2, 8, 128, 64, dtype=torch.float16))
""",
    "sdpa_causal": """
q, k, v = (rand(2, 8, 128, 64, dtype=torch.float16, grad=True) for _ in range(3))
F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(rand(2, 8, 128, 64, dtype=torch.float16))
""",
}

CUDNN_ATTENTION_CASES = {
    "sdpa_gqa": """
q = rand(2, 8, 128, 64, dtype=torch.bfloat16, grad=True)
k, v = (rand(2, 2, 256, 64, dtype=torch.bfloat16, grad=True) for _ in range(2))
y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
y.backward(torch.empty_like(y))
""",
    "sdpa_value_size": """
q, k = (rand(2, 8, 128, 64, dtype=torch.bfloat16, grad=True) for _ in range(2))
v = rand(2, 8, 128, 32, dtype=torch.bfloat16, grad=True)
y = F.scaled_dot_product_attention(q, k, v)
y.backward(torch.empty_like(y))
""",
    "sdpa_bias": """
q, k, v = (rand(2, 8, 128, 64, dtype=torch.bfloat16, grad=True) for _ in range(3))
y = F.scaled_dot_product_attention(q, k, v, attn_mask=rand(128, 128, dtype=torch.bfloat16))
y.backward(torch.empty_like(y))
""",
    # cuDNN takes only multiples of 1/16
    "sdpa_dropout": """
q, k, v = (rand(2, 8, 128, 64, dtype=torch.bfloat16, grad=True) for _ in range(3))
y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.125)
y.backward(torch.empty_like(y))
""",
}

OTHER_CASES = {
    "batch_norm": """
layer = nn.BatchNorm2d(16, device=device).to(memory_format=torch.channels_last)
x = rand(8, 16, 32, 32, dtype=torch.half).to(memory_format=torch.channels_last).requires_grad_()
y = layer(x)
y.backward(torch.empty_like(y))
""",
    "lstm": """
layer = nn.LSTM(32, 48, num_layers=2, bidirectional=True, dropout=0.1, device=device)
y, _ = layer(rand(20, 4, 32, grad=True))
y.sum().backward()
""",
    "gru_packed": """
layer = nn.GRU(32, 48, device=device)
packed = nn.utils.rnn.pack_padded_sequence(rand(20, 3, 32), [20, 10, 5])
layer(packed)
""",
    "ctc": """
targets = torch.ones(20, dtype=torch.int)
F.ctc_loss(rand(50, 2, 20), targets, (50, 50), (10, 10))
""",
    "grid_sample": """
grid = F.affine_grid(torch.zeros(2, 2, 3, device=device), [2, 3, 8, 8], align_corners=True)
torch.cudnn_grid_sampler(rand(2, 3, 16, 16), grid)
torch.cudnn_affine_grid_generator(torch.zeros(2, 2, 3, device=device), 2, 3, 8, 8)
""",
    "fft": "torch.fft.fft(rand(4, 1024, dtype=torch.complex64)); torch.fft.rfft2(rand(4, 64, 64))",
    "cholesky": "torch.linalg.cholesky(torch.eye(64, device=device))",
    "linear_algebra": """
a = rand(64, 64)
torch.linalg.qr(a)
torch.linalg.eigh(a)
torch.linalg.svd(a)
torch.linalg.solve(a, rand(64, 8))
torch.linalg.solve_triangular(a, rand(64, 8), upper=True)
torch.linalg.cholesky(rand(6, 16, 16))
torch.linalg.lu_factor(rand(6, 16, 16))
torch.linalg.ldl_factor(a)
""",
    "sparse": """
indices = torch.tensor([[0, 1, 1], [2, 0, 2]], dtype=torch.int32, device=device)
crow, col = torch.tensor([0, 1, 3], device=device), torch.tensor([2, 0, 2], device=device)
a = torch.sparse_csr_tensor(crow, col, rand(3), size=(2, 3), check_invariants=False)
a @ rand(3, 5)
a @ rand(3)
""",
}


@dataclass(frozen=True)
class Recording:
    """Records of the cases that ran on one GPU."""

    trace: Trace
    errors: dict[str, str]

    def records(self, case: str, kind: str, after: str | None = None) -> pd.DataFrame:
        """The records of a kind that a case made, in order; only those after a mark within it."""
        assert case not in self.errors, self.errors[case]
        marks = self.trace.table("mark")
        begin = marks.index[marks.name == (after or case)][0]
        end = marks.index[(marks.name == "case_end") & (marks.index > begin)][0]
        table = self.trace.table(kind)
        return table[(table.index > begin) & (table.index < end)]

    def names(self, case: str, kind: str = "library_op") -> list[str]:
        return list(self.records(case, kind).name)

    def one(self, case: str, kind: str, **expected: Any) -> pd.Series:
        """The only record of a kind that a case made, or the only one with the expected fields."""
        records = self.records(case, kind)
        for field, value in expected.items():
            records = records[records[field] == value]
        assert len(records) == 1, self.records(case, kind).to_string()
        return records.iloc[0]


def run_cases(gpu_name: str, cases: dict[str, str], folder: Path, **variables: str) -> Recording:
    (folder / "cases.json").write_text(json.dumps({k: textwrap.dedent(v) for k, v in cases.items()}))
    library = emulator_dir() / "libmaya_emulator.so"
    environment = {
        **os.environ,
        "LD_PRELOAD": preload_list(library),
        "LD_LIBRARY_PATH": os.pathsep.join(
            filter(None, [str(library.parent), os.environ.get("LD_LIBRARY_PATH")])
        ),
        "MAYA_GPU": gpu_properties(gpu_config(gpu_name)),
        "MAYA_NUM_DEVICES": "1",
        "MAYA_MODE": "solo",
        "MAYA_TRACE_DIR": str(folder),
        **variables,
    }
    command = [sys.executable, "-c", PROLOGUE, str(folder / "cases.json"), str(folder / "errors.json")]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return Recording(read_trace(folder / "rank00000.trace"), json.loads((folder / "errors.json").read_text()))


@pytest.fixture(scope="module")
def h100(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    cases = {
        **GEMM_CASES,
        **FP8_CASES,
        **CONVOLUTION_CASES,
        **ATTENTION_CASES,
        **CUDNN_ATTENTION_CASES,
        **OTHER_CASES,
    }
    return run_cases("h100_sxm", cases, tmp_path_factory.mktemp("h100"))


@pytest.fixture(scope="module")
def older_api(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The convolutions through cuDNN's older API."""
    folder = tmp_path_factory.mktemp("older_api")
    return run_cases("h100_sxm", CONVOLUTION_CASES, folder, TORCH_CUDNN_V8_API_DISABLED="1")


@pytest.fixture(scope="module")
def a100(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return run_cases("a100_sxm_80gb", ATTENTION_CASES, tmp_path_factory.mktemp("a100"))


@pytest.fixture(scope="module")
def v100(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return run_cases(
        "v100_sxm_32gb",
        {**ATTENTION_CASES, "conv2d": CONVOLUTION_CASES["conv2d"], "linear_tf32": GEMM_CASES["linear_tf32"]},
        tmp_path_factory.mktemp("v100"),
    )


def shapes(records: pd.DataFrame, *fields: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, row)) for row in records[list(fields)].to_numpy()]


@pytest.mark.parametrize("gpu", ["h100", "a100", "v100", "older_api"])
def test_every_case_runs_and_every_call_is_emulated(gpu: str, request: pytest.FixtureRequest) -> None:
    recording: Recording = request.getfixturevalue(gpu)
    assert recording.errors == {}
    assert set(recording.trace.table("unemulated").name) == set()


# Matrix products.


def test_linear_passes(h100: Recording) -> None:
    """Y = X W^T; dX = dY W; dW = dY^T X, X 64 x 512 and W 256 x 512; the last two in any order."""
    forward, *backward = shapes(h100.records("linear_fp32", "gemm"), "m", "n", "k", "trans_a", "trans_b")
    assert forward == (256, 64, 512, T, N)
    assert sorted(backward) == [(512, 64, 256, N, N), (512, 256, 64, N, T)]
    first = h100.records("linear_fp32", "gemm").iloc[0]
    assert (first.library, first.batch, first.type_a, first.type_c) == (CUBLAS, 1, R_32F, R_32F)
    assert first.compute_type == COMPUTE_32F


def test_tf32_is_seen_where_the_gpu_has_it(h100: Recording, v100: Recording) -> None:
    assert h100.one("linear_tf32", "gemm").compute_type == COMPUTE_32F_FAST_TF32
    assert v100.one("linear_tf32", "gemm").compute_type == COMPUTE_32F


@pytest.mark.parametrize(("case", "dtype"), [("linear_bias_fp16", R_16F), ("linear_bias_bf16", R_16BF)])
def test_linear_with_bias_is_one_cublaslt_call(h100: Recording, case: str, dtype: int) -> None:
    gemm = h100.records(case, "gemm").iloc[0]
    assert (gemm.library, gemm.epilogue) == (CUBLASLT, EPILOGUE_BIAS)
    assert (gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b) == (256, 64, 512, T, N)
    assert (gemm.type_a, gemm.type_b, gemm.type_c, gemm.compute_type) == (dtype, dtype, dtype, COMPUTE_32F)


def test_batched_product(h100: Recording) -> None:
    gemm = h100.one("bmm_bf16", "gemm")
    assert (gemm.m, gemm.n, gemm.k, gemm.batch) == (48, 32, 64, 8)
    assert (gemm.trans_a, gemm.trans_b, gemm.type_a) == (N, N, R_16BF)


def test_epilogue_of_relu(h100: Recording) -> None:
    gemm = h100.one("addmm_relu", "gemm")
    assert (gemm.library, gemm.epilogue) == (CUBLASLT, EPILOGUE_RELU_BIAS)
    assert (gemm.m, gemm.n, gemm.k) == (256, 64, 512)


def test_fp8_product(h100: Recording) -> None:
    gemm = h100.one("scaled_mm", "gemm")
    assert (gemm.library, gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b) == (
        CUBLASLT,
        256,
        64,
        512,
        T,
        N,
    )
    assert (gemm.type_a, gemm.type_b, gemm.type_c) == (R_8F_E4M3, R_8F_E4M3, R_16BF)


def test_double_product(h100: Recording) -> None:
    gemm = h100.one("double", "gemm")
    assert (gemm.m, gemm.n, gemm.k, gemm.type_a) == (24, 16, 32, R_64F)


def test_vector_operations(h100: Recording) -> None:
    dot = h100.one("dot", "library_op")
    assert (dot.read_bytes, dot.written_bytes, dot.flops) == (2 * 1000 * 4, 4, 2000)
    matvec = h100.one("matvec", "library_op")
    assert (matvec["name"], matvec.read_bytes, matvec.written_bytes) == (
        "cublasSgemv_v2",
        4 * (64 * 512 + 512),
        256,
    )
    assert matvec.flops == 2 * 64 * 512


def test_stream_of_the_handle(h100: Recording) -> None:
    default = h100.records("linear_fp32", "gemm").iloc[0].stream
    assert default == 0
    assert h100.one("side_stream", "gemm").stream > 1


# Convolutions.

GEOMETRY = (
    "batch",
    "channels_in",
    "channels_out",
    "groups",
    "in_h",
    "in_w",
    "kernel_h",
    "kernel_w",
    "out_h",
    "out_w",
)


def test_convolution_passes(h100: Recording) -> None:
    """(32 + 2 * 1 - 3) // 2 + 1 = 16."""
    convolutions = h100.records("conv2d", "conv")
    assert sorted(convolutions.direction) == [FORWARD, BACKWARD_DATA, BACKWARD_FILTER]
    assert set(shapes(convolutions, *GEOMETRY)) == {(8, 16, 24, 1, 32, 32, 3, 3, 16, 16)}
    assert set(shapes(convolutions, "stride_h", "stride_w", "dilation_h", "channels_last", "dtype")) == {
        (2, 2, 1, 0, FLOAT)
    }
    assert set(shapes(convolutions, "in_d", "kernel_d", "out_d", "fused_ops")) == {(1, 1, 1, 0)}


def test_tf32_convolutions(h100: Recording, v100: Recording) -> None:
    assert set(h100.records("conv2d", "conv").compute_dtype) == {TF32}
    assert h100.one("conv2d_no_tf32", "conv").compute_dtype == FLOAT
    assert set(v100.records("conv2d", "conv").compute_dtype) == {FLOAT}


def test_channels_last_half_precision_convolution(h100: Recording) -> None:
    """32 + 2 * 2 - (2 * (3 - 1) + 1) + 1 = 32."""
    convolutions = h100.records("conv2d_amp_channels_last", "conv")
    assert sorted(convolutions.direction) == [FORWARD, BACKWARD_DATA, BACKWARD_FILTER]
    assert set(shapes(convolutions, *GEOMETRY)) == {(8, 16, 24, 1, 32, 32, 3, 3, 32, 32)}
    assert set(
        shapes(convolutions, "dilation_h", "dilation_w", "channels_last", "dtype", "compute_dtype")
    ) == {(2, 2, 1, HALF, FLOAT)}


def test_one_dimensional_convolution(h100: Recording) -> None:
    convolution = h100.one("conv1d", "conv")
    assert (convolution.in_h, convolution.in_w, convolution.kernel_h, convolution.kernel_w) == (1, 100, 1, 5)
    assert (convolution.out_h, convolution.out_w, convolution["dtype"]) == (1, 96, BFLOAT16)


def test_three_dimensional_convolution(h100: Recording) -> None:
    convolution = h100.one("conv3d", "conv")
    assert (convolution.in_d, convolution.in_h, convolution.in_w) == (5, 6, 7)
    assert (convolution.kernel_d, convolution.kernel_h, convolution.kernel_w) == (1, 2, 3)
    assert (convolution.out_d, convolution.out_h, convolution.out_w) == (5, 5, 5)


def test_transposed_convolution_is_the_backward_pass_of_one(h100: Recording) -> None:
    """The convolution whose backward pass it is has an input of (10 - 1) * 2 + 4 = 22 rows, 8 channels."""
    convolution = h100.one("conv_transpose2d", "conv")
    assert convolution.direction == BACKWARD_DATA
    assert shapes(convolution.to_frame().T, *GEOMETRY) == [(2, 8, 16, 1, 22, 22, 4, 4, 10, 10)]


def test_grouped_convolution(h100: Recording) -> None:
    convolution = h100.one("grouped", "conv")
    assert (convolution.channels_in, convolution.channels_out, convolution.groups) == (16, 32, 4)


def test_fused_bias_and_activation(h100: Recording) -> None:
    """Bias 1, residual 2, activation 4."""
    assert list(h100.records("conv_relu", "conv").fused_ops) == [1 + 4, 1 + 2 + 4]


def test_benchmark_mode_settles_on_tensor_cores(h100: Recording) -> None:
    settled = h100.records("benchmark", "conv", after="benchmarked")
    assert shapes(settled, "compute_dtype", "channels_out") == [(TF32, 40)]


def test_resnet_step(h100: Recording) -> None:
    """ResNet-18 has 20 convolutions; the first needs no gradient of its input. Two steps."""
    convolutions = h100.records("resnet_step", "conv")
    counts = convolutions.direction.value_counts()
    assert (counts[FORWARD], counts[BACKWARD_FILTER], counts[BACKWARD_DATA]) == (2 * 20, 2 * 20, 2 * 19)
    assert set(convolutions.dtype) == {HALF}
    # 1 x 1 outputs of a 64 x 64 image do not tell their layout, all others do.
    assert set(convolutions[convolutions.in_h * convolutions.in_w > 1].channels_last) == {1}


# PyTorch gives bfloat16 (conv1d) to the newer API alone, and only that one has a choice to benchmark.
@pytest.mark.parametrize("case", [case for case in CONVOLUTION_CASES if case not in ("conv1d", "benchmark")])
def test_both_apis_of_cudnn_record_the_same(h100: Recording, older_api: Recording, case: str) -> None:
    expected = h100.records(case, "conv").reset_index(drop=True)
    pd.testing.assert_frame_equal(older_api.records(case, "conv").reset_index(drop=True), expected)


# Attention.

HEADS = ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "head_dim_qk", "head_dim_v")


prefers_cudnn = pytest.mark.skipif(
    tuple(map(int, version("torch").split(".")[:2])) < (2, 14),
    reason="this PyTorch prefers FlashAttention to cuDNN's attention",
)


@prefers_cudnn
@pytest.mark.parametrize(("case", "is_causal"), [("sdpa", 0), ("sdpa_causal", 1)])
def test_cudnn_attention_on_h100(h100: Recording, case: str, is_causal: int) -> None:
    attention = h100.records(case, "attention")
    assert list(attention.direction) == [FORWARD, BACKWARD_DATA]
    assert set(shapes(attention, *HEADS)) == {(2, 8, 8, 128, 128, 64, 64)}
    assert set(shapes(attention, "dtype", "causal", "dropout")) == {(HALF, is_causal, 0)}


@prefers_cudnn
@pytest.mark.parametrize(
    ("case", "heads", "causal", "dropout"),
    [
        ("sdpa_gqa", (2, 8, 2, 128, 256, 64, 64), 0, 0),
        ("sdpa_value_size", (2, 8, 8, 128, 128, 64, 32), 0, 0),
        ("sdpa_bias", (2, 8, 8, 128, 128, 64, 64), 0, 0),
        ("sdpa_dropout", (2, 8, 8, 128, 128, 64, 64), 1, 1),
    ],
)
def test_shapes_of_cudnn_attention(
    h100: Recording, case: str, heads: tuple[int, ...], causal: int, dropout: int
) -> None:
    attention = h100.records(case, "attention")
    assert list(attention.direction) == [FORWARD, BACKWARD_DATA]
    assert set(shapes(attention, *HEADS)) == {heads}
    assert set(shapes(attention, "dtype", "causal", "dropout")) == {(BFLOAT16, causal, dropout)}


def test_flash_attention_on_a100(a100: Recording) -> None:
    for case in ATTENTION_CASES:
        kernels = a100.names(case, "kernel")
        assert any("flash_fwd" in name for name in kernels)
        assert any("flash_bwd" in name for name in kernels)
        assert a100.records(case, "attention").empty


def test_efficient_attention_on_v100(v100: Recording) -> None:
    for case in ATTENTION_CASES:
        kernels = v100.names(case, "kernel")
        assert any("fmha_cutlassF" in name for name in kernels)
        assert any("fmha_cutlassB" in name for name in kernels)


# The rest.


def test_batch_norm(h100: Recording) -> None:
    elements, channels = 8 * 16 * 32 * 32, 16
    forward = h100.one("batch_norm", "library_op", name="cudnnBatchNormalizationForwardTrainingEx")
    # x and y in half precision; scale, bias, running and saved statistics in fp32
    assert (forward.read_bytes, forward.written_bytes) == (
        2 * elements + 16 * channels,
        2 * elements + 16 * channels,
    )
    backward = h100.one("batch_norm", "library_op", name="cudnnBatchNormalizationBackwardEx")
    assert (backward.read_bytes, backward.written_bytes) == (
        4 * elements + 16 * channels,
        2 * elements + 8 * channels,
    )


def test_lstm(h100: Recording) -> None:
    """Two layers, two directions, four gates, hidden 48: 80 steps through the matrices of each."""
    matrices = 2 * 4 * 48 * (32 + 48) + 2 * 4 * 48 * (96 + 48)
    forward = h100.one("lstm", "library_op", name="cudnnRNNForward")
    assert forward.flops == 2 * 80 * matrices
    assert h100.one("lstm", "library_op", name="cudnnRNNBackwardData_v8").flops == forward.flops
    assert h100.one("lstm", "library_op", name="cudnnRNNBackwardWeights_v8").flops == forward.flops


def test_packed_sequences_count_their_own_steps(h100: Recording) -> None:
    assert h100.one("gru_packed", "library_op").flops == 2 * 35 * 3 * 48 * (32 + 48)


def test_ctc_loss(h100: Recording) -> None:
    loss = h100.one("ctc", "library_op")
    assert (loss.read_bytes, loss.written_bytes) == (4 * 50 * 2 * 20, 4 * 50 * 2 * 20)


def test_spatial_transformer(h100: Recording) -> None:
    sampler = h100.one("grid_sample", "library_op", name="cudnnSpatialTfSamplerForward")
    grid_bytes = 4 * 2 * 2 * 8 * 8
    assert (sampler.read_bytes, sampler.written_bytes) == (
        4 * 2 * 3 * 16 * 16 + grid_bytes,
        4 * 2 * 3 * 8 * 8,
    )


def test_fft(h100: Recording) -> None:
    """5 N log2 N for a complex transform of N points, half of it for a real one."""
    records = h100.records("fft", "library_op")
    complex_transform, real_transform = records.iloc[0], records.iloc[1]
    assert (complex_transform.read_bytes, complex_transform.written_bytes) == (4 * 1024 * 8, 4 * 1024 * 8)
    assert complex_transform.flops == 4 * 5 * 1024 * 10
    assert (real_transform.read_bytes, real_transform.written_bytes) == (4 * 64 * 64 * 4, 4 * 64 * 33 * 8)
    assert real_transform.flops == 4 * 5 * 4096 * 12 // 2


def test_cholesky(h100: Recording) -> None:
    cholesky = h100.one("cholesky", "library_op")
    assert "potrf" in cholesky["name"]
    assert (cholesky.read_bytes, cholesky.flops) == (4 * 64 * 65 // 2, 64**3 // 3)


def test_linear_algebra(h100: Recording) -> None:
    text = " ".join(h100.names("linear_algebra"))
    for part in ("geqrf", "orgqr", "syev", "gesvd", "getr", "trsm", "potrfBatched", "sytrf"):
        assert part in text


def test_sparse_products(h100: Recording) -> None:
    """Three nonzeros and five columns; offsets and columns are 64-bit."""
    product = h100.one("sparse", "library_op", name="cusparseSpMM")
    assert product.flops == 2 * 3 * 5
    assert product.read_bytes == 3 * 4 + (3 + 3) * 8 + 3 * 5 * 4
