"""What training loops use of torch.cuda, torch.optim and torch.utils.checkpoint, on one emulated GPU."""

from dataclasses import dataclass

import pandas as pd
import pytest
from native.emulated import MEMORY_BYTES, run_checked

from maya.trace import Trace

pytestmark = pytest.mark.emulator

WIDTH, ROWS, NUM_PARAMETERS = 64, 32, 10

# Sections of one program, as importing PyTorch takes longer than any of them.
PROGRAM = """
import functools
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

def section(name, function):
    torch.cuda.nvtx.range_push("section " + name)
    function()
    torch.cuda.nvtx.range_pop()

def mlp():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)).cuda()

mlp()(torch.zeros(ROWS, WIDTH, device="cuda"))  # makes cuBLAS's workspaces

def memory():
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    reserved = torch.cuda.memory_reserved()
    torch.cuda.memory._record_memory_history()
    small = torch.empty(1000, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before == 1024  # multiples of 512
    large = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before == 1024 + (30 << 20)
    del large
    assert torch.cuda.memory_allocated() - before == 1024
    assert torch.cuda.max_memory_allocated() - before == 1024 + (30 << 20)
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
    assert stats["num_ooms"] == 0
    grown = torch.cuda.memory_reserved() - reserved
    assert grown >= 30 << 20  # the freed block stays
    now_free, total = torch.cuda.mem_get_info()
    assert total == MEMORY_BYTES and free - now_free == grown
    snapshot = torch.cuda.memory._snapshot()
    actions = [event["action"] for event in snapshot["device_traces"][0] if event.get("size") == 30 << 20]
    assert actions.count("alloc") == 1 and actions.count("free_completed") == 1, actions
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == torch.cuda.memory_reserved()
    torch.cuda.memory._record_memory_history(enabled=None)
section("memory", memory)

def side_streams():
    least, greatest = torch.cuda.Stream.priority_range()
    assert greatest < 0 == least
    copies, urgent = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    assert urgent.priority < copies.priority == 0
    batch = torch.zeros(ROWS, WIDTH).pin_memory()
    assert batch.is_pinned()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    with torch.cuda.stream(copies):
        on_device = batch.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(copies)
    on_device.record_stream(torch.cuda.current_stream())
    on_device.mul_(2)
    end.record()
    end.synchronize()
    assert end.query() and begin.elapsed_time(end) > 0
section("side_streams", side_streams)

def pageable_copy():
    torch.zeros(ROWS, WIDTH).to("cuda")
section("pageable_copy", pageable_copy)

def parameters():
    made = [nn.Parameter(torch.zeros(1000 + n, device="cuda")) for n in range(NUM_PARAMETERS)]
    for parameter in made:
        parameter.grad = torch.zeros_like(parameter)
    return made

def stepped(**options):
    optimizer = torch.optim.AdamW(parameters(), **options)
    optimizer.step()  # makes the state
    return optimizer

foreach, fused = stepped(foreach=True), stepped(fused=True)
one_by_one, capturable = stepped(foreach=False), stepped(foreach=True, capturable=True)
assert all(state["step"].is_cuda for state in capturable.state.values())
assert not any(state["step"].is_cuda for state in foreach.state.values())
section("foreach", foreach.step)
section("fused", fused.step)
section("one_by_one", one_by_one.step)
section("capturable", capturable.step)

block = mlp()
x = torch.zeros(ROWS, WIDTH, device="cuda", requires_grad=True)

def kept():
    block(x).sum().backward()
section("kept", kept)

def recomputed():
    checkpoint(block, x, use_reentrant=False).sum().backward()
section("recomputed", recomputed)

def keep_products(context, op, *args, **kwargs):
    is_product = op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

def products_kept():
    contexts = functools.partial(create_selective_checkpoint_contexts, keep_products)
    checkpoint(block, x, use_reentrant=False, context_fn=contexts).sum().backward()
section("products_kept", products_kept)

def offloaded():
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = x.exp()  # keeps its result
    y.sum().backward()
section("offloaded", offloaded)

model = mlp()
optimizer = torch.optim.AdamW(model.parameters(), capturable=True, fused=True)
target = torch.zeros(ROWS, WIDTH, device="cuda")
def train():
    optimizer.zero_grad(set_to_none=True)
    (model(x) - target).square().mean().backward()
    optimizer.step()

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train()
torch.cuda.current_stream().wait_stream(side)

def eager_step():
    train()
section("eager_step", eager_step)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    train()

def replays():
    for _ in range(5):
        graph.replay()
section("replays", replays)

eager = mlp()
graphed = torch.cuda.make_graphed_callables(mlp(), (x.detach().requires_grad_(),))

def eager_module():
    eager(x).sum().backward()
section("eager_module", eager_module)

def graphed_module():
    graphed(x).sum().backward()
section("graphed_module", graphed_module)
"""


@dataclass(frozen=True)
class Sections:
    """Records of one program by its sections."""

    trace: Trace

    def of(self, section: str, kind: str) -> pd.DataFrame:
        """Records of one kind between the marks of a section."""
        begin = self.trace.table("range_push").query(f"name == 'section {section}'").index[0]
        end = min(end for end in self.trace.positions("range_pop") if end > begin)
        return self.trace.table(kind).loc[begin:end]

    def num_kernels(self, section: str, pattern: str = "") -> int:
        return int(self.of(section, "kernel")["name"].str.contains(pattern).sum())


@pytest.fixture(scope="module")
def sections(tmp_path_factory: pytest.TempPathFactory) -> Sections:
    constants = {"WIDTH": WIDTH, "ROWS": ROWS, "NUM_PARAMETERS": NUM_PARAMETERS, "MEMORY_BYTES": MEMORY_BYTES}
    program = "".join(f"{name} = {value}\n" for name, value in constants.items()) + PROGRAM
    return Sections(run_checked(program, tmp_path_factory.mktemp("features"), preload=True).trace())


def test_nothing_is_left_to_stubs(sections: Sections) -> None:
    """Also runs the program, which checks memory statistics, timing and priorities itself."""
    assert list(sections.trace.table("unemulated")["name"]) == []


def test_copies_on_a_side_stream(sections: Sections) -> None:
    copies = sections.of("side_streams", "memcpy")
    kernels = sections.of("side_streams", "kernel")
    waits = sections.of("side_streams", "stream_wait_event")
    copy = copies[copies["host_pinned"] == 1].iloc[0]
    assert copy["bytes"] == 4 * ROWS * WIDTH
    assert copy["is_blocking"] == 0
    assert copy["stream"] != kernels["stream"].iloc[-1]
    assert list(waits["stream"]) == [kernels["stream"].iloc[-1]]
    assert (sections.of("pageable_copy", "memcpy")["host_pinned"] == 0).all()
    assert len(sections.of("pageable_copy", "stream_sync")) == 1


def test_optimizers(sections: Sections) -> None:
    """Ten small parameters fit into one launch of a fused or foreach kernel."""
    assert sections.num_kernels("fused") == sections.num_kernels("fused", "FusedAdam") + 1
    assert sections.num_kernels("fused", "FusedAdam") == 1
    assert sections.num_kernels("foreach") == sections.num_kernels("foreach", "multi_tensor_apply")
    # torch/optim/adam.py, _single_tensor_adam: weight decay, lerp, mul, addcmul, sqrt, div, add, addcdiv.
    assert sections.num_kernels("one_by_one") == NUM_PARAMETERS * 8
    # Bias corrections are computed on the device.
    assert sections.num_kernels("capturable") > sections.num_kernels("foreach")


def test_checkpointing_recomputes_what_its_policy_says(sections: Sections) -> None:
    products = {name: len(sections.of(name, "gemm")) for name in ("kept", "recomputed", "products_kept")}
    # Two layers, each with one product forward and two backward; recomputation stops before the last layer.
    assert products == {"kept": 6, "recomputed": 7, "products_kept": 6}
    gelus = {name: sections.num_kernels(name, "GeluCUDAKernelImpl") for name in products}
    assert gelus == {"kept": 1, "recomputed": 2, "products_kept": 2}


def test_offloaded_activations_cross_the_bus_twice(sections: Sections) -> None:
    copies = sections.of("offloaded", "memcpy")
    pinned = copies[copies["host_pinned"] == 1]
    assert list(pinned["bytes"]) == [4 * ROWS * WIDTH] * 2
    assert sorted(pinned["direction"]) == [0, 1]


def test_replays_expand_to_their_operations(sections: Sections) -> None:
    for kind in ("kernel", "gemm"):
        once = sections.of("eager_step", kind)
        replayed = sections.of("replays", kind)
        columns = [column for column in once.columns if column != "stream"]
        expected = pd.concat([once[columns]] * 5)
        assert replayed[columns].values.tolist() == expected.values.tolist()
    assert len(sections.of("replays", "graph_launch")) == 5


def test_graphed_callables_launch_one_graph_for_each_pass(sections: Sections) -> None:
    assert len(sections.of("graphed_module", "graph_launch")) == 2
    assert len(sections.of("graphed_module", "gemm")) == len(sections.of("eager_module", "gemm")) == 6
