"""From the installed tables to an estimator on disk and back."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from maya.config.compose import gpu_config
from maya.errors import EstimatorError
from maya.estimators import Estimator, load_estimator, train
from maya.estimators.fits import BORROWED, BOUND, EXTRAPOLATED, INTERPOLATED, MEASURED
from maya.estimators.ingest import _drop_implausible, ingest
from maya.estimators.profile_schema import read_profile, write_profile

GPU = gpu_config("a100_sxm_80gb")


def products(
    estimator: Estimator,
    m: list[int],
    n: list[int],
    k: list[int],
    batch: list[int] | int = 1,
    dtype: str = "bf16",
) -> tuple[np.ndarray, np.ndarray]:
    ops = pd.DataFrame({"m": m, "n": n, "k": k, "batch": batch, "dtype": dtype})
    return estimator.predict("gemm", ops)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "a100.parquet"
    ingest(GPU, path)
    return path


@pytest.fixture(scope="module")
def folder(profile: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained on a quarter of the GEMM sizes, which keeps it short."""
    rows, dropped = read_profile(profile)
    small = rows[(rows.op_kind != "gemm") | (rows.m.isin(sorted(rows.m.dropna().unique())[::4]))]
    part = profile.with_name("part.parquet")
    write_profile(small, dropped, part)
    folder = tmp_path_factory.mktemp("estimator") / "a100"
    train([part], GPU, folder)
    return folder


@pytest.fixture(scope="module")
def estimator(folder: Path) -> Estimator:
    return load_estimator(folder)


def test_profile_has_all_kinds_and_says_what_it_left_out(profile: Path) -> None:
    rows, dropped = read_profile(profile)
    assert set(rows.op_kind) == {"gemm", "attention", "collective"}
    assert len(rows[rows.op_kind == "gemm"]) > 30_000
    assert (rows.duration_us > 0).all()
    assert all(count > 0 for count in dropped.values())
    assert rows.source.str.startswith("aiconfigurator-core a100_sxm/").all()


def test_a_gpu_without_tables_has_an_empty_profile_and_a_working_estimator(tmp_path: Path) -> None:
    gpu = gpu_config("v100_sxm_32gb")
    ingest(gpu, tmp_path / "v100.parquet")
    rows, _ = read_profile(tmp_path / "v100.parquet")
    assert rows.empty
    train([tmp_path / "v100.parquet"], gpu, tmp_path / "estimator")
    estimator = load_estimator(tmp_path / "estimator")
    duration_us, basis = products(estimator, [4096], [4096], [4096], dtype="fp16")
    # 2 x 4096^3 FLOP at 125 TFLOP/s take 1,100 us; no V100 reaches the peak, none needs twice as long.
    assert 1100 < duration_us[0] < 2200
    assert basis[0] == BOUND


def test_what_a_gpu_lacks_comes_from_another(folder: Path, tmp_path: Path) -> None:
    gpu = gpu_config("a40")
    write_profile(pd.DataFrame(), {}, tmp_path / "a40.parquet")
    train([tmp_path / "a40.parquet"], gpu, tmp_path / "estimator", lenders=[folder])
    estimator = load_estimator(tmp_path / "estimator")
    duration_us, basis = products(estimator, [4096], [4096], [4096], dtype="bf16")
    assert basis[0] == BORROWED
    # The A40's peak is 149.7 TFLOP/s, at which this product takes 918 us.
    assert 918 < duration_us[0] < 1500
    assert estimator.lenders["gemm"] == "a100_sxm_80gb"
    assert "collective" not in estimator.lenders


def test_rows_of_a_dry_run_are_refused(profile: Path, tmp_path: Path) -> None:
    rows, dropped = read_profile(profile)
    write_profile(rows.head(100).assign(harness="dry run"), dropped, tmp_path / "dry.parquet")
    with pytest.raises(EstimatorError, match="dry run"):
        train([tmp_path / "dry.parquet"], GPU, tmp_path / "estimator")
    assert not (tmp_path / "estimator").exists()


def test_implausible_rows_are_dropped_and_counted() -> None:
    rows = pd.DataFrame(
        {
            "op_kind": "gemm", "dtype": "bf16", "m": 4096, "n": 4096, "k": [4096, 4096, 4096, 1024],
            "duration_us": [500.0, 510.0, 100.0, 0.0], "source": "test",
        }
    )  # fmt: skip
    kept, reasons = _drop_implausible(rows, GPU)
    # 100 us would be 1,374 TFLOP/s; the slower of the two equal points goes.
    assert kept.duration_us.tolist() == [500.0]
    assert sorted(reasons.values()) == [1, 1, 1]


def test_a_measured_point_is_returned_as_measured(profile: Path, estimator: Estimator) -> None:
    rows, _ = read_profile(profile)
    gemm = rows[(rows.op_kind == "gemm") & (rows.m == 1) & (rows.n == 4096) & (rows.k == 4096)]
    duration_us, basis = products(estimator, [1], [4096], [4096])
    # Tables are kept as 32-bit logarithms.
    assert duration_us[0] == pytest.approx(gemm.duration_us.iloc[0], rel=1e-5)
    assert basis[0] == MEASURED
    fp16, basis = products(estimator, [1], [4096], [4096], dtype="fp16")
    assert fp16[0] == duration_us[0]
    assert basis[0] == INTERPOLATED


def test_off_the_grid_the_basis_says_so(estimator: Estimator) -> None:
    duration_us, basis = products(estimator, [3000, 3000, 3000], [3000, 3000, 10], [5000] * 3, [1, 8, 1])
    assert basis.tolist() == [INTERPOLATED, EXTRAPOLATED, EXTRAPOLATED]
    # Eight products take about eight times one: at this size one of them fills the GPU.
    assert duration_us[1] == pytest.approx(8 * duration_us[0], rel=0.15)


def test_a_product_too_tall_for_the_grid_is_read_transposed(estimator: Estimator) -> None:
    duration_us, _ = products(estimator, [60_000, 2048], [2048, 60_000], [4096, 4096])
    assert duration_us[0] == duration_us[1]


def test_attention_backward_is_a_multiple_of_forward(estimator: Estimator) -> None:
    op = {
        "op": "library", "dtype": "bf16", "batch": 4, "heads_q": 16, "heads_kv": 16, "seq_q": 4096,
        "seq_kv": 4096, "head_dim": 128, "causal": True,
    }  # fmt: skip
    ops = pd.DataFrame([op | {"direction": direction} for direction in ("forward", "backward")])
    duration_us, basis = estimator.predict("attention", ops)
    assert duration_us[1] == pytest.approx(3 * duration_us[0])
    assert basis.tolist() == [MEASURED, EXTRAPOLATED]
    # 275 GFLOP; FlashAttention-2 reaches 50 to 65 % of 312 TFLOP/s here.
    assert 0.5 < 2 * 4 * 16 * 4096**2 * 128 / (duration_us[0] * 1e-6) / 312e12 < 0.65


def test_a_band_around_products_was_calibrated(estimator: Estimator) -> None:
    lower, upper = estimator.intervals.band("gemm", "bf16", "interpolated")
    assert -0.2 < lower < 0 < upper < 0.2
    beyond = estimator.intervals.band("gemm", "bf16", "extrapolated")
    assert beyond[0] < lower and beyond[1] > upper


def test_files_hold_no_code(folder: Path) -> None:
    assert {p.suffix for p in folder.iterdir()} <= {".json", ".npz", ".ubj"}


def test_missing_or_foreign_files_are_errors(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EstimatorError, match="maya train"):
        load_estimator(tmp_path)
    card = json.loads((folder / "card.json").read_text())
    (tmp_path / "card.json").write_text(json.dumps(card | {"schema_version": 99}))
    (tmp_path / "tables.npz").write_bytes((folder / "tables.npz").read_bytes())
    with pytest.raises(EstimatorError, match="schema 99"):
        load_estimator(tmp_path)
    (tmp_path / "profile.parquet").write_text("no table")
    with pytest.raises(EstimatorError, match="maya ingest"):
        train([tmp_path / "profile.parquet"], GPU, tmp_path / "out")
