"""torch.compile on the emulated GPU: fused kernels, CUDA graphs, and autotuning without a clock."""

from pathlib import Path

import pytest
from native.emulated import Run, run_checked

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

ROWS, WIDTH, STEPS = 256, 512, 6


def run(program: str, folder: Path, **variables: str) -> Run:
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
    trace_dir = folder / "trace"
    trace_dir.mkdir(parents=True)
    return run_checked(program, trace_dir, preload=True, **caches, **variables)


def test_reduce_overhead_replays_graphs(tmp_path: Path) -> None:
    """One graph launch for each call, once the first two have warmed up and recorded."""
    program = f"""
        import torch
        @torch.compile(mode="reduce-overhead")
        def f(x, w): return torch.nn.functional.gelu(x @ w) * 2
        x, w = torch.ones({ROWS}, {WIDTH}, device="cuda"), torch.ones({WIDTH}, {WIDTH}, device="cuda")
        for step in range({STEPS}):
            torch.cuda.nvtx.range_push(f"step {{step}}")
            f(x, w)
            torch.cuda.nvtx.range_pop()
    """
    trace = run(program, tmp_path).trace()
    ranges = trace.table("range_push")
    begins = [ranges.query(f"name == 'step {step}'").index[0] for step in range(2, STEPS)]
    launches, products = trace.positions("graph_launch"), trace.positions("gemm")
    for begin, end in zip(begins, [*begins[1:], len(trace.kind)], strict=True):
        assert ((launches >= begin) & (launches < end)).sum() == 1
        assert ((products >= begin) & (products < end)).sum() == 1
        kernels = trace.table("kernel").loc[begin:end]
        assert kernels["name"].str.startswith("triton_").sum() == 1


def test_max_autotune_ends_soon_and_picks_the_same_twice(tmp_path: Path) -> None:
    """Elapsed times come from a rule, so that a choice is made, and the same one in each run and rank."""
    program = f"""
        import torch
        @torch.compile(mode="max-autotune-no-cudagraphs")
        def f(x, w): return torch.nn.functional.gelu(x @ w)
        x, w = (torch.ones(n, {WIDTH}, device="cuda", dtype=torch.bfloat16) for n in ({ROWS}, {WIDTH}))
        f(x, w)
        torch.cuda.nvtx.range_push("tuned")
        f(x, w)
        torch.cuda.nvtx.range_pop()
    """
    picks = []
    for name in ("first", "second"):
        trace = run(program, tmp_path / name, TORCHINDUCTOR_COMPILE_THREADS="1").trace()
        begin = trace.table("range_push").query("name == 'tuned'").index[0]
        kernels = trace.table("kernel").loc[begin:]
        kernels = kernels[kernels["name"].str.startswith("triton_")]
        assert len(kernels) >= 1
        products = trace.table("gemm").loc[begin:]
        tuned = kernels["name"].str.contains("triton_tem_").sum()
        assert tuned + len(products) == 1
        columns = ["name", "grid_x", "grid_y", "block_x", "shared_bytes"]
        picks.append([kernels[columns].values.tolist(), len(products)])
    assert picks[0] == picks[1]
