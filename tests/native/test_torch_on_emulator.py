"""PyTorch programs, unmodified, on the emulated GPU."""

import pytest
from native.emulated import run_checked

pytestmark = pytest.mark.emulator


def test_first_steps(tmp_path):
    program = """
        import torch
        x = torch.ones(4, 4, device="cuda") + 1
        assert (x @ x).shape == (4, 4)
        assert torch.arange(10).cuda().cpu().tolist() == list(range(10))
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record(); x.mul_(2); b.record(); torch.cuda.synchronize()
        assert a.elapsed_time(b) > 0
        try:
            torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
            raise SystemExit("no OutOfMemoryError")
        except torch.OutOfMemoryError as error:
            assert "100.00 GiB" in str(error)
        torch.ones(4, device="cuda")
    """
    trace = run_checked(program, tmp_path, preload=True).trace()
    assert trace.table("kernel")["num_elements"].iloc[0] == 16
    assert len(trace.positions("gemm")) == 1
    assert len(trace.positions("unemulated")) == 0


def test_fused_optimizer_steps_count_their_elements(tmp_path):
    # More parameters than one launch holds, of sizes that are not multiples of a chunk.
    program = """
        import torch
        parameters = [torch.nn.Parameter(torch.empty(n, device="cuda")) for n in [200_001] + [70_000] * 400]
        for p in parameters: p.grad = torch.empty_like(p)
        torch.optim.AdamW(parameters, fused=True).step()
    """
    kernels = run_checked(program, tmp_path, preload=True).trace().table("kernel")
    adam = kernels[kernels["name"].str.contains("FusedAdam")]
    assert len(adam) > 1
    assert adam["num_elements"].sum() == 200_001 + 400 * 70_000


def test_cuda_graph(tmp_path):
    program = """
        import torch
        x = torch.ones(64, 64, device="cuda")
        y = (x @ x).relu()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = (x @ x).relu() + 1
        for _ in range(10): graph.replay()
    """
    trace = run_checked(program, tmp_path, preload=True).trace()
    assert list(trace.table("graph_launch")["num_operations"]) == [3] * 10
    assert len(trace.positions("gemm")) == 1 + 10


def test_operators_are_announced_as_ranges(tmp_path):
    program = """
        import torch
        x = torch.ones(64, 32, device="cuda")
        with torch.autograd.profiler.emit_nvtx(record_shapes=True):
            x + x
        x.cumsum(0)  # CUB announces its algorithms in a domain of its own
    """
    trace = run_checked(program, tmp_path, preload=True).trace()
    names = trace.table("range_push")["name"]
    assert any(name.startswith("aten::add") and "[[64, 32], [64, 32], []]" in name for name in names)
    assert not any("cub::" in name for name in names)
    assert len(trace.positions("range_pop")) == len(names)


@pytest.mark.slow
def test_compiled_with_triton(tmp_path):
    program = """
        import torch
        @torch.compile
        def f(x): return torch.nn.functional.gelu(x) * 2 + 1
        f(torch.ones(1024, 512, device="cuda"))
    """
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
    }
    kernels = run_checked(program, tmp_path, preload=True, **caches).trace().table("kernel")
    fused = kernels[kernels["name"].str.startswith("triton_poi_")]
    # xnumel, read by the parameter sizes of the cubin; the autotuner launches the kernel many times.
    assert set(fused["scalar0"]) == {1024 * 512}


@pytest.mark.parametrize("options", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_other_allocators(tmp_path, options):
    program = """
        import torch
        blocks = []
        start = torch.cuda.mem_get_info()[0]
        try:
            while True: blocks.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            pass
        assert len(blocks) == 7, len(blocks)
        blocks.clear(); torch.cuda.empty_cache(); torch.cuda.synchronize()
        assert torch.cuda.mem_get_info()[0] == start
    """
    run_checked(program, tmp_path, preload=True, PYTORCH_CUDA_ALLOC_CONF=options)


def test_data_loader_workers(tmp_path):
    program = """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        model = torch.nn.Linear(16, 16).cuda()
        data = TensorDataset(torch.randn(64, 16))
        for (x,) in DataLoader(data, batch_size=16, num_workers=2, pin_memory=True):
            model(x.cuda(non_blocking=True)).sum().backward()
    """
    trace = run_checked(program, tmp_path, preload=True).trace()
    assert len(list(tmp_path.iterdir())) == 1
    assert len(trace.threads) >= 2
