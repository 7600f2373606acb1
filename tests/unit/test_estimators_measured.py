"""Estimates against kernels measured by others. The data are not part of the project.

Tolerances are what was found, with some room: harnesses, drivers and library versions differ by 4 to 8 %
for one and the same product.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from data_dir import shared_data_dir

from maya.config.compose import gpu_config
from maya.estimators.attention import fit_attention
from maya.estimators.bounds import gemm_tiled_us, memory_us
from maya.estimators.estimator import Estimator
from maya.estimators.features import KERNEL_KEY, kernel_features
from maya.estimators.ingest import ingest
from maya.estimators.profile_schema import read_profile

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def kernels() -> Path:
    return shared_data_dir() / "kernels"


def attention_estimator(gpu_name: str, folder: Path) -> Estimator:
    gpu = gpu_config(gpu_name)
    ingest(gpu, folder / "profile.parquet")
    rows, _ = read_profile(folder / "profile.parquet")
    return Estimator(gpu=gpu, fits=fit_attention(gpu, rows[rows.op_kind == "attention"]))


def attention_ops(table: pd.DataFrame, columns: dict[str, str], **values: object) -> pd.DataFrame:
    ops = pd.DataFrame({name: table[source].to_numpy() for name, source in columns.items()})
    return ops.assign(**values)


FLASH_COLUMNS = {
    "batch": "batch", "heads_q": "num_heads", "heads_kv": "num_heads", "seq_q": "seqlen", "seq_kv": "seqlen",
    "head_dim": "head_dim", "causal": "causal",
}  # fmt: skip


def mape(predicted: np.ndarray, measured: np.ndarray) -> float:
    return float(np.abs(predicted / measured - 1).mean())


@pytest.mark.parametrize(("gpu", "name", "limit"), [("a40", "A40", 0.12), ("a100_sxm_80gb", "A100", 0.09)])
def test_tiled_gemms_against_vidur(kernels: Path, gpu: str, name: str, limit: float) -> None:
    rows = pd.read_parquet(kernels / "vidur_mlp_layer_ops_fp16_fwd.parquet")
    rows = rows[(rows.op == "gemm") & rows.gpu.str.startswith(name) & (rows.latency_ms > 0.05)]
    m, n, k = (rows[c].to_numpy(np.float64) for c in "mnk")
    predicted = gemm_tiled_us(gpu_config(gpu), m, n, k, np.ones(len(m)), "fp16")
    assert mape(predicted, rows.latency_ms.to_numpy() * 1e3) < limit


@pytest.mark.parametrize(
    ("gpu", "name", "limit"),
    [
        ("v100_sxm_32gb", "V100-PCIE-32GB", 0.10),
        ("a100_sxm_80gb", "A100-PCIE-80GB", 0.09),
        ("h100_sxm", "H100-SXM5-80GB", 0.10),
    ],
)
def test_fp32_linear_layers_against_neusight(kernels: Path, gpu: str, name: str, limit: float) -> None:
    rows = pd.read_parquet(kernels / "neusight_gemm_fp32.parquet")
    # Shorter rows hold the time to launch an operator as well.
    rows = rows[(rows.gpu == name) & (rows.op == "linear") & (rows.latency_ms > 0.2)]
    config = gpu_config(gpu)
    if name.startswith("V100-PCIE"):  # its clock is 1,380 MHz, that of the SXM card 1,530
        config = dataclasses.replace(config, peak_flops=config.peak_flops | {"fp32": 14.1e12})
    m, n, k = (rows[c].to_numpy(np.float64) for c in "mnk")
    predicted = gemm_tiled_us(config, m, n, k, np.ones(len(m)), "fp32")
    assert mape(predicted, rows.latency_ms.to_numpy() * 1e3) < limit


def test_attention_forward_against_the_figures_of_flash_attention(kernels: Path, tmp_path: Path) -> None:
    figures = pd.read_csv(kernels / "flash_attention_published_figures.csv")
    figures = figures[
        (figures["pass"] == "fwd") & figures.gpu.str.startswith("H100") & (figures.head_dim == 128)
    ]
    estimator = attention_estimator("h100_sxm", tmp_path)
    for implementation, family in (("FlashAttention-3", "library"), ("FlashAttention-2", "flash")):
        rows = figures[(figures.implementation == implementation) & (figures.seqlen >= 1024)]
        ops = attention_ops(rows, FLASH_COLUMNS, op=family, dtype="fp16", direction="forward")
        predicted, _ = estimator.predict("attention", ops)
        assert len(rows) >= 9
        assert mape(predicted, rows.time_ms.to_numpy() * 1e3) < 0.10


def test_attention_in_training_against_cudnn_on_h200(kernels: Path, tmp_path: Path) -> None:
    rows = pd.read_csv(kernels / "cudnn_sdpa_train_fwd_bwd.csv")
    keep = (rows.gpu == "H200") & (rows.data_type == "bfloat16") & (rows.config_name == "llama3.1")
    rows = rows[keep & ~rows.deterministic_bwd.fillna(False).astype(bool)]
    columns = {
        "batch": "batch_size", "heads_q": "num_q_heads", "heads_kv": "num_kv_heads", "seq_q": "q_seqlen",
        "seq_kv": "kv_seqlen", "head_dim": "head_dim_qk", "head_dim_v": "head_dim_vo",
    }  # fmt: skip
    ops = attention_ops(rows, columns, op="library", dtype="bf16")
    ops["causal"] = (rows.attn_mask == "top_left").to_numpy()
    ops["direction"] = rows["pass"].map({"fwd": "forward", "bwd": "backward"}).to_numpy()
    predicted, _ = attention_estimator("h200_sxm", tmp_path).predict("attention", ops)
    assert len(ops) >= 20
    assert mape(predicted, rows.time_ms.to_numpy() * 1e3) < 0.15


def test_elementwise_kernels_of_real_traces(kernels: Path) -> None:
    rows = pd.read_parquet(kernels / "kineto_kernel_durations.parquet")
    gpus = {
        "A100-SXM4-80GB": "a100_sxm_80gb",
        "A100-PG509-200": "a100_sxm_40gb",
        "V100-SXM2-32GB": "v100_sxm_32gb",
    }
    keep = (
        rows.gpu.isin(gpus)
        & rows.kernel.str.contains("vectorized_elementwise_kernel")
        & (rows.dur_us_median > 20)
    )
    rows = rows[keep & rows.op.isin(["aten::add", "aten::add_", "aten::mul", "aten::div_", "aten::fill_"])]
    rows = rows[rows.input_dims.str.startswith("[[") & (rows.input_dims.str.len() > 6)]
    launches = pd.DataFrame(dict.fromkeys(KERNEL_KEY, 1), index=rows.index)
    launches[["name", "operator", "shapes"]] = rows[["kernel", "op", "input_dims"]]
    launches["num_elements"] = 0  # from the sizes of the operator
    features = kernel_features(launches)
    predicted = np.array(
        [memory_us(gpu_config(gpus[g]), b, 1.0) for g, b in zip(rows.gpu, features.num_bytes, strict=True)]
    )
    assert len(rows) >= 10
    assert (features.op_kind == "elementwise").all()
    assert abs(np.median(predicted / rows.dur_us_median) - 1) < 0.1
