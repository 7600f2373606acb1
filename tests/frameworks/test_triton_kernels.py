"""Launches of Triton kernels find what the kernel does, counted in its IR."""

from pathlib import Path

import pytest
from captured_job import capture_command

from maya.collate import read_job, write_job
from maya.trace.triton_kernels import Dot

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

PROGRAM = Path(__file__).parent / "programs" / "triton_kernels.py"


def test_launches_find_their_kernel(tmp_path: Path) -> None:
    captured = capture_command(("python", str(PROGRAM)), tmp_path / "trace")
    launches = captured.details(0, "kernel")
    rows = captured.job.triton_kernels

    # Two kernels of one name, told apart by their code.
    by_hand = launches[launches["name"] == "product"]
    small, large = (rows[code] for code in by_hand["code"])
    assert small.code != large.code
    for kernel, size in ((small, 16), (large, 32)):
        assert kernel.name == "product"
        assert kernel.signature == ("!tt.ptr<bf16>", "!tt.ptr<bf16>", "!tt.ptr<bf16>", "f32")
        assert kernel.num_warps == size // 8
        assert kernel.dots == (Dot(m=size, n=size, k=size, dtype="bf16"),)
        assert kernel.operations == {"load": 2, "dot": 1, "exp": 1, "store": 1, "arithmetic": 1}
    assert by_hand["block_x"].tolist() == [32 * small.num_warps, 32 * large.num_warps]
    assert by_hand["shared_bytes"].tolist() == [small.shared_bytes, large.shared_bytes]

    # The one of torch.compile; PyTorch's own kernels have no code.
    (compiled,) = launches.loc[launches["name"].str.startswith("triton_"), "code"].unique()
    assert rows[compiled].operations["reduce"] == 1 and rows[compiled].operations["div"] >= 1
    assert (launches.loc[launches["name"].str.startswith("void at::"), "code"] == 0).all()

    write_job(captured.job, tmp_path / "job")
    assert read_job(tmp_path / "job").triton_kernels == rows
