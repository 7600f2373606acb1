"""What programs read back from the emulated device: bytes that the host put there, and zeros of kernels."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from native.emulated import run_checked

pytestmark = pytest.mark.emulator

# Each expression becomes one entry of the result; statements in front of it are its own.
READS = """
import json, torch
torch.manual_seed(0)
result = {}
def tensor(values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype).cuda()

x = tensor([3, 4, 5])
y = x * 2
result["read by a kernel"] = x.tolist()
result["written by a kernel"] = y.tolist()
x.add_(1)
result["changed in place"] = x.tolist()

x = tensor([3, 4, 5])
x[1:].mul_(2)
result["changed in part"] = x.tolist()

x = tensor([[1, 2], [3, 4]])
y = x.t() + 1
result["read by a strided kernel"] = x.tolist()
x.t().add_(tensor([[1, 2], [3, 4]]))
result["changed by a strided kernel"] = x.tolist()

x = tensor([1.5, 2.5], torch.float32)
result["zero_"] = x.zero_().tolist()
result["fill_"] = x.fill_(7).tolist()
result["full"] = torch.full((3,), 2.5, dtype=torch.bfloat16, device="cuda").tolist()
result["ones"] = torch.ones(3, dtype=torch.bool, device="cuda").tolist()
result["copy of a payload"] = tensor([1, 2]).clone().tolist()
result["large fill"] = torch.ones(100_000, device="cuda")[:2].tolist()

ids = tensor([[5, 1], [2, 7]])
embedding = torch.nn.Embedding(10, 8).cuda()
loss = embedding(ids).float().sum()
loss.backward()
result["indices after an embedding"] = ids.tolist()
labels = tensor([1, 0])
torch.nn.functional.cross_entropy(torch.randn(2, 4, device="cuda"), labels)
result["labels after a loss"] = labels.tolist()
_ = ids.flatten().unique()
_ = torch.sort(labels)
result["indices after unique and sort"] = [ids.tolist(), labels.tolist()]
result["sum"] = tensor([1, 2]).sum().item()
result["max"] = [v.item() for v in tensor([[1, 2]]).max(dim=1)]
result["any"] = tensor([1]).bool().any().item()

# Freed blocks that held payloads are used again.
def reused(make, payload=tuple(range(1, 129))):
    old = [tensor(payload) for _ in range(8)]
    del old
    return make()
result["sum in a used block"] = [reused(lambda: loss.detach().float() + i).item() for i in range(8)]
result["long tensor in used blocks"] = sum(reused(lambda: torch.arange(1024, device="cuda")).tolist())
result["reduction in a used block"] = [
    reused(lambda: torch.randn(4, 4, device="cuda").sum(1)).tolist() for _ in range(4)
]
result["norm in a used block"] = [reused(lambda: embedding.weight.norm(dim=1)).sum().item() for _ in range(4)]
result["mean and variance in used blocks"] = [
    v.tolist() for v in reused(lambda: torch.var_mean(embedding.weight, 1))
]
result["gathered in a used block"] = reused(lambda: embedding.weight[tensor([3, 1])]).sum(1).tolist()
result["random in a used block"] = reused(lambda: torch.randint(0, 9, (4,), device="cuda")).tolist()
result["bincount"] = reused(lambda: torch.bincount(tensor([0, 1, 1]), minlength=4)).tolist()
result["isnan"] = reused(lambda: torch.isnan(loss)).item()
result["isinf"] = reused(lambda: torch.isinf(loss)).item()
result["isfinite"] = reused(lambda: torch.isfinite(loss)).item()
result["cat"] = reused(lambda: torch.cat([loss.view(1), loss.view(1)])).tolist()
result["product in a used block"] = reused(
    lambda: torch.randn(8, 4, device="cuda") @ torch.randn(4, 2, device="cuda")
).flatten().tolist()

parameters = [torch.nn.Parameter(tensor([3.0, 4.0], torch.float32)) for _ in range(70)]
for p in parameters:
    p.grad = reused(lambda: torch.zeros_like(p)) + 1
result["clip_grad_norm_"] = reused(lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0)).item()
torch.optim.Adam(parameters, foreach=True).step()
result["parameter after a step"] = sum(sum(p.tolist()) for p in parameters)

x = tensor([1, 2, 3])
torch.cuda.empty_cache()
result["kept while the cache is emptied"] = x.tolist()

x, graph = tensor([1, 2]), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x.add_(1)
result["kernel captured"] = x.tolist()
graph.replay()
result["kernel replayed"] = x.tolist()
print(json.dumps(result))
"""


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    run = run_checked(READS, tmp_path_factory.mktemp("reads"), preload=True)
    result: dict[str, object] = json.loads(run.output)
    return result


@pytest.mark.parametrize(
    ("what", "value"),
    {
        "read by a kernel": [3, 4, 5],
        "written by a kernel": [0, 0, 0],
        "changed in place": [0, 0, 0],
        "changed in part": [0, 0, 0],
        "read by a strided kernel": [[1, 2], [3, 4]],
        "changed by a strided kernel": [[0, 0], [0, 0]],
        "zero_": [0, 0],
        "fill_": [7, 7],
        "full": [2.5, 2.5, 2.5],
        "ones": [True, True, True],
        "copy of a payload": [1, 2],
        "large fill": [0, 0],  # beyond 64 KiB no bytes move
        "indices after an embedding": [[5, 1], [2, 7]],
        "labels after a loss": [1, 0],
        "indices after unique and sort": [[[5, 1], [2, 7]], [1, 0]],
        "sum": 0,
        "max": [0, 0],
        "any": False,
        "sum in a used block": [0] * 8,
        "long tensor in used blocks": 0,
        "reduction in a used block": [[0] * 4] * 4,
        "norm in a used block": [0] * 4,
        "mean and variance in used blocks": [[0] * 10] * 2,
        "gathered in a used block": [0] * 2,
        "random in a used block": [0] * 4,
        "bincount": [0] * 4,
        "isnan": False,
        "isinf": False,
        "isfinite": True,
        "cat": [0, 0],
        "product in a used block": [0] * 16,
        "clip_grad_norm_": 0,
        "parameter after a step": 0,
        "kept while the cache is emptied": [1, 2, 3],
        "kernel captured": [1, 2],
        "kernel replayed": [0, 0],
    }.items(),
)
def test_read(reads: dict[str, object], what: str, value: object) -> None:
    assert reads[what] == value


def test_loss_scaling_steps_every_time(tmp_path: Path) -> None:
    program = """
    import json, torch
    layers = torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 4)
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda", growth_interval=8)
    num_steps = 0
    def count(*_):
        global num_steps
        num_steps += 1
    optimizer.register_step_post_hook(count)
    scales, norms = [], []
    for i in range(12):
        inputs = torch.randn(32, 64).cuda()
        labels = torch.randint(0, 4, (32,)).cuda()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    print(json.dumps([num_steps, scales, norms, loss.item()]))
    """
    run = run_checked(program, tmp_path, preload=True)
    num_steps, scales, norms, loss = json.loads(run.output)
    assert num_steps == 12
    assert scales == [65536.0] * 7 + [131072.0] * 5  # grows after growth_interval steps
    assert norms == [0.0] * 12
    assert loss == 0.0


def test_small_collectives_before_and_after_kernels(tmp_path: Path) -> None:
    program = """
    import json, os, torch, torch.distributed as dist
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    x = torch.tensor([2.0, 3.0]).cuda()
    dist.all_reduce(x)
    y = [torch.empty(2, device="cuda")]
    dist.all_gather(y, x)
    before = [x.tolist(), y[0].tolist()]
    x /= 2
    dist.all_reduce(x)
    print(json.dumps([before, x.tolist()]))
    """
    run = run_checked(program, tmp_path, preload=True)
    assert json.loads(run.output) == [[[2.0, 3.0], [2.0, 3.0]], [0.0, 0.0]]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_a_kernel_overwrites_the_result_of_a_collective_under_way(tmp_path: Path) -> None:
    # Rank 1 joins the second collective after rank 0 has launched the kernel that writes over its result.
    program = """
    import os, time, torch, torch.distributed as dist
    rank, launched = int(os.environ["RANK"]), os.environ["LAUNCHED"]
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    x, y = torch.tensor([2.0]).cuda(), torch.tensor([5.0]).cuda()
    dist.all_reduce(y)
    assert y.item() == 10, y
    while rank == 1 and not os.path.exists(launched):
        time.sleep(0.01)
    dist.all_reduce(x)
    dist.all_reduce(y)
    if rank == 0:
        x.add_(1)
        open(launched, "w").close()
    assert x.item() == (0 if rank == 0 else 4), x
    assert y.item() == 20, y
    os._exit(0)
    """
    shared = {
        "MAYA_MODE": "linked",
        "MAYA_EXCHANGE": str(tmp_path / "exchange"),
        "MAYA_EXCHANGE_TIMEOUT_S": "60",
        "MAYA_NUM_DEVICES": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "LAUNCHED": str(tmp_path / "launched"),
    }
    with ThreadPoolExecutor() as pool:
        ranks = [
            pool.submit(run_checked, program, tmp_path, preload=True, RANK=str(rank), **shared)
            for rank in range(2)
        ]
        for rank in ranks:
            rank.result()


def test_time_inside_of_recorded_calls(tmp_path: Path) -> None:
    program = """
    import json
    e, s = event(), stream()
    for _ in range(1000):
        call("cudaEventRecord", e, s)
    for _ in range(400):
        call("cudaGetLastError")  # leaves no record
    rt.maya_call_counts.restype = ctypes.c_char_p
    print(rt.maya_call_counts().decode())
    """
    counts = json.loads(run_checked(program, tmp_path).output)
    assert counts["cudaEventRecord"] == 1000
    assert 1000 <= counts["recorded"] < 1010
    assert 0 < counts["overhead_ns_median"] < 4096


def test_what_is_not_known_is_finite_in_all_spellings(tmp_path: Path) -> None:
    program = """
    import math, torch
    weight = torch.randn(64, 64, device="cuda", requires_grad=True)
    loss = (weight @ torch.randn(64, 1, device="cuda")).pow(2).mean()
    loss.backward()
    half = loss.half()
    assert math.isfinite(loss.item())
    for value in (loss, half, loss.bfloat16(), loss.double(), weight.grad, weight.grad.T):
        assert torch.isfinite(value).all()
        assert not torch.isnan(value).any()
        assert not torch.isinf(value).any()
        assert not (~torch.isfinite(value)).any()
        assert not torch.isfinite(value).logical_not().any()
    assert torch.isfinite(loss)
    assert torch.isfinite(half).item()
    assert torch.all(torch.stack([torch.isfinite(loss), torch.isfinite(half)]))
    assert torch.isfinite(loss) & torch.isfinite(half)
    assert torch.logical_and(torch.isfinite(loss), torch.isfinite(half))
    large = torch.randn(1 << 20, device="cuda")
    assert torch.isfinite(large).all()
    assert torch.equal(large, large) and torch.allclose(large, large)
    torch._assert_async(torch.isfinite(loss))
    norm = torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)
    assert torch.isfinite(norm)
    # A mask that the program has made keeps its values.
    mask = torch.tensor([[True, True], [True, False]]).cuda()
    assert not mask.all() and mask[0].all()
    """
    run_checked(program, tmp_path, preload=True)


def test_reads_of_what_kernels_wrote_are_told(tmp_path: Path) -> None:
    program = """
    import ctypes, torch
    library = ctypes.CDLL(None)
    reads = []
    observe = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int)(lambda *read: reads.append(read))
    library.maya_observe_reads(observe)
    def read(tensor):
        reads.clear()
        tensor.tolist()
        return list(reads)
    known = torch.tensor([0, 1]).cuda()
    assert read(known) == []
    assert read(torch.zeros(2, device="cuda")) == []
    assert read(torch.full((2,), 3.0, device="cuda")) == []
    assert read(known.clone()) == []
    made = torch.rand(3, device="cuda")
    assert read(made) == [(12, 3)]
    assert read(made.clone()) == [(12, 3)]
    assert read(torch.isfinite(made)) == [(3, 1)]
    known += 1
    assert read(known) == [(16, 3)]
    """
    run_checked(program, tmp_path, preload=True)


def test_size_of_a_result_follows_a_mask_that_is_known(tmp_path: Path) -> None:
    program = """
    import torch
    from maya.capture.startup.maya_startup.computed_values import computing
    from maya.capture.startup.maya_startup.value_rules import Rule
    mask = torch.tensor([0, 1, 1, 0, 1]).cuda()
    data = torch.rand(5, 2, device="cuda")
    with computing():
        chosen = (mask > 0).nonzero()
        assert chosen.tolist() == [[1], [2], [4]]
        assert data[mask.bool()].shape == (3, 2)
        assert data.masked_select(mask.bool()[:, None]).shape == (6,)
        assert torch.where(mask == 0)[0].tolist() == [0, 3]
        assert torch.bincount(mask).tolist() == [2, 3]
        assert torch.repeat_interleave(data, mask + 1, dim=0).shape == (8, 2)
        assert mask.unique(return_counts=True)[1].tolist() == [2, 3]
        assert torch.nn.functional.one_hot(mask).sum(0).tolist() == [2, 3]
        offsets = torch.cumsum(torch.histc(mask, bins=2, min=0, max=1), 0)
        assert offsets.tolist() == [2, 5]
        order = torch.argsort(mask, stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(5, device="cuda")
        assert inverse.tolist() == [0, 2, 3, 1, 4]
        large = torch.arange(1 << 20, device="cuda")
        assert large.cpu()[-1] == (1 << 20) - 1 and (large % 2).sum() == 1 << 19
        assert data.nonzero().shape == (0, 2)  # nothing is known of it
    half = Rule(sites=("*",), operators=("nonzero",), answer="fraction", value=0.5)
    with computing([half]):
        assert data.nonzero().shape == (5, 2)
        assert data.gt(0).nonzero().shape == (5, 2)
    ones = Rule(sites=("*",), operators=("item", "masked_select"), answer="constant", value=1)
    with computing([ones]):
        assert data.sum().item() == 1.0 and data.masked_select(data > 0.5).shape == (10,)
    counts = Rule(sites=("*",), operators=("bincount",), answer="balanced")
    with computing([counts]):
        drawn = torch.randint(0, 4, (10,), device="cuda")
        assert torch.bincount(drawn, minlength=4).tolist() == [3, 3, 2, 2]
    """
    run_checked(program, tmp_path, preload=True)
