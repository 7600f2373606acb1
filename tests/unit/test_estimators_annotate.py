"""Durations of a small job of every kind of operation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from job_builder import make_cluster, make_gpu

from maya.collate.job import Communicator, Job, RankTrace
from maya.errors import EstimatorError
from maya.estimators import BASES, Annotation, Estimator, annotate
from maya.estimators.features import KERNEL_KEY

GPU = make_gpu(
    l2_bytes=50 * 10**6,
    l2_bytes_per_s=10e12,
    nvlink_bytes_per_s=500e9,
    pcie_bytes_per_s=60e9,
    min_kernel_us=1.0,
    peak_flops={"fp32": 5e13, "tf32": 5e14, "bf16": 1e15},
)
MISSING = -(2**63)
FUNCTOR = "at::native::CUDAFunctor_add<float>"
ADD = f"void at::native::vectorized_elementwise_kernel<4, {FUNCTOR}, std::array<char*, 3ul> >("
KERNEL = dict.fromkeys(KERNEL_KEY, MISSING) | {
    "name": ADD, "grid_x": 1, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1,
    "operator": "aten::add", "shapes": "",
}  # fmt: skip
GEMM = {
    "m": 512, "n": 1024, "k": 2048, "batch": 1, "type_a": 14, "type_b": 14, "type_c": 0, "compute_type": 68,
}  # fmt: skip
COLLECTIVE = {"communicator": 0, "op": "all_reduce", "dtype": "bfloat16", "bytes": 10**9, "peer": -1}


def run(*operations: tuple[str, dict[str, Any]], gpu: str = "test") -> Annotation:
    ops = pd.DataFrame({"kind": [kind for kind, _ in operations]})
    details = {
        kind: pd.DataFrame({i: row for i, (k, row) in enumerate(operations) if k == kind}).T.infer_objects()
        for kind in {kind for kind, row in operations if row}
    }
    rank = RankTrace(
        rank=1, members=(1,), ops=ops, details=details, rendezvous=np.zeros(0, np.int64), num_iterations=1,
        peak_allocated_bytes=0, peak_reserved_bytes=0, peak_device_bytes=0, peak_nccl_bytes=0,
    )  # fmt: skip
    job = Job(
        world_size=16,
        gpus_per_node=8,
        gpu="test",
        ranks=[rank],
        communicators=[Communicator(ranks=tuple(range(16)), label="")],
        rendezvous_arrivals=np.zeros(0, np.int64),
    )
    estimator = Estimator(gpu=replace(GPU, name=gpu), fits={})
    return annotate(job, estimator, GPU, make_cluster())[0]


def test_operations_without_device_time_get_none() -> None:
    result = run(("event_record", {}), ("kernel", KERNEL | {"num_elements": 10**6}), ("stream_sync", {}))
    # 12 MB at 4.4 TB/s from L2, and the shortest kernel.
    assert result.duration_ns.tolist() == [0, round(1000 + 12e6 / 4.4e12 * 1e9), 0]
    assert result.op_kind.tolist() == ["", "elementwise", ""]
    assert result.bytes.tolist() == [0, 12e6, 0]


def test_equal_operations_get_equal_durations_in_their_own_rows() -> None:
    large = KERNEL | {"num_elements": 10**8}
    small = KERNEL | {"num_elements": 10}
    result = run(("kernel", large), ("gemm", GEMM), ("kernel", small), ("kernel", large), ("gemm", GEMM))
    times = result.duration_ns
    assert times[0] == times[3] > times[1] == times[4] > times[2]
    assert result.op_kind.tolist() == ["elementwise", "gemm", "elementwise", "elementwise", "gemm"]


def test_flops_and_bytes_of_a_product() -> None:
    result = run(("gemm", GEMM | {"batch": 4}))
    assert result.flops[0] == 2 * 4 * 512 * 1024 * 2048
    # bf16 inputs, fp32 output.
    assert result.bytes[0] == 4 * (2 * 512 * 2048 + 2 * 1024 * 2048 + 4 * 512 * 1024)


def test_tf32_products_are_faster_than_fp32() -> None:
    fp32 = GEMM | {"m": 4096, "n": 4096, "type_a": 0, "type_b": 0}
    result = run(("gemm", fp32), ("gemm", fp32 | {"compute_type": 77}))
    assert result.duration_ns[1] < 0.3 * result.duration_ns[0]


def test_copies() -> None:
    copy = {"direction": 0, "bytes": 10**9, "host_pinned": 1}
    result = run(("memcpy", copy), ("memcpy", copy | {"host_pinned": 0}), ("memcpy", copy | {"direction": 2}))
    # Pinned at 60e9 x 0.82, pageable at 10e9, on the device 2 GB through memory at 3e12 x 0.88.
    expected = [1e9 / 49.2e9 * 1e9, 1e9 / 10e9 * 1e9, 2e9 / 2.64e12 * 1e9]
    np.testing.assert_allclose(result.duration_ns, expected, rtol=0.01)
    assert [BASES[b] for b in result.basis] == ["model", "model", "bound"]


def test_a_pair_is_placed_by_its_own_two_ranks() -> None:
    # Rank 1 sends to rank 2 on its node, and to rank 9 on the other.
    result = run(
        ("collective", COLLECTIVE | {"op": "send", "peer": 2}),
        ("collective", COLLECTIVE | {"op": "send", "peer": 9}),
    )
    assert result.duration_ns[0] < 0.2 * result.duration_ns[1]
    assert result.op_kind.tolist() == ["collective"] * 2


def test_attention_flops() -> None:
    attention = {
        "direction": 0, "dtype": 9, "batch": 2, "heads_q": 8, "heads_kv": 8, "seq_q": 1024, "seq_kv": 1024,
        "head_dim_qk": 64, "head_dim_v": 64, "causal": 1,
    }  # fmt: skip
    result = run(("attention", attention), ("attention", attention | {"direction": 1}))
    forward = 4 * 2 * 8 * 1024**2 * 64 / 2
    assert result.flops.tolist() == [forward, 2.5 * forward]


def test_the_estimator_must_be_of_the_gpu() -> None:
    with pytest.raises(EstimatorError, match="trained for other"):
        run(("gemm", GEMM), gpu="other")


def test_unknown_kernels_are_reported_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    mystery = KERNEL | {"name": "mystery(float*)", "operator": ""}
    result = run(("kernel", mystery), ("kernel", mystery))
    assert (result.duration_ns > 0).all()
    assert [r.message for r in caplog.records if "2 kernels are of no known kind" in r.message]
