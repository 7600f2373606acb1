"""Peak memory of DDP and FSDP2 jobs, worked out from their tensors and the rules of PyTorch's allocator.

The model is a stack of `LAYERS` square matrices with a ReLU behind each, in place, so that a layer keeps one
activation: its output, which is the input of the next one. Sizes are chosen so that a weight's gradient
outweighs the activation that its layer frees, and no tensor is small enough to share a segment.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from captured_job import CapturedJob, capture_command

pytestmark = pytest.mark.emulator

MIB = 1 << 20
LAYERS, HIDDEN, TOKENS, RANKS = 6, 4096, 1536, 2
WEIGHT = 4 * HIDDEN * HIDDEN  # fp32: 64 MiB
SHARD = WEIGHT // RANKS
ACTIVATION = 4 * TOKENS * HIDDEN  # fp32: 24 MiB
WORKSPACE = 32 * MIB  # cuBLAS's from compute capability 9.0; one of the main and one of the autograd thread
SMALL_SEGMENT = 2 * MIB  # for the scalars: loss, steps of the optimizer

PROGRAM = """
import os, sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

mode = sys.argv[1]
layers, hidden, tokens = map(int, sys.argv[2:])

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(hidden, hidden))

    def forward(self, x):
        return torch.relu_(x @ self.weight)

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
with torch.device("cuda" if mode == "ddp" else "meta"):
    model = torch.nn.Sequential(*[Layer() for _ in range(layers)])
if mode == "ddp":
    model = DistributedDataParallel(model)
else:
    policy = MixedPrecisionPolicy()
    if mode == "fsdp2_bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x = torch.randn(tokens, hidden, device="cuda")
while True:
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def peaks(mode: str, folder: Path, *overrides: str) -> tuple[int, int]:
    """Allocated and reserved bytes at their peaks."""
    program = folder / "mlp.py"
    program.write_text(PROGRAM)
    command = ("torchrun", f"--nproc-per-node={RANKS}", str(program), mode)
    sizes = (str(LAYERS), str(HIDDEN), str(TOKENS))
    job: CapturedJob = capture_command(command + sizes, folder / "traces", *overrides)
    trace = job.standing_for(0)
    return trace.peak_allocated_bytes, trace.peak_reserved_bytes


@dataclass
class Allocator:
    """PyTorch's caching allocator for one stream and tensors of 10 MiB and more.

    A request takes the smallest free block that holds it, and leaves the rest of it if that is more than
    1 MiB; without one it takes a segment, in multiples of 2 MiB. Free neighbours within a segment are joined.
    """

    free_blocks: list[tuple[int, int]] = field(default_factory=list)  # size, address
    used: dict[int, int] = field(default_factory=dict)  # size by address
    segment_ends: set[int] = field(default_factory=set)
    reserved: int = 0
    allocated: int = 0
    peak: int = 0

    def take(self, size: int) -> int:
        fitting = [block for block in self.free_blocks if block[0] >= size]
        if fitting:
            block_size, address = min(fitting)
            self.free_blocks.remove((block_size, address))
        else:
            block_size = -(-size // (2 * MIB)) * 2 * MIB
            address = self.reserved
            self.reserved += block_size
            self.segment_ends.add(self.reserved)
        if block_size - size > MIB:
            self.free_blocks.append((block_size - size, address + size))
            block_size = size
        self.used[address] = block_size
        self.allocated += block_size
        self.peak = max(self.peak, self.allocated)
        return address

    def give(self, address: int) -> None:
        size = self.used.pop(address)
        self.allocated -= size
        for other_size, other in sorted(self.free_blocks, key=lambda block: block[1]):
            if other + other_size == address and address not in self.segment_ends:
                address, size = other, size + other_size
            elif address + size == other and other not in self.segment_ends:
                size += other_size
            else:
                continue
            self.free_blocks.remove((other_size, other))
        self.free_blocks.append((size, address))


def test_ddp(tmp_path: Path) -> None:
    """DDP has a gradient, a place in a bucket and two optimizer states for each weight."""
    cuda = Allocator()
    for _ in range(LAYERS):
        cuda.take(WEIGHT)
    # DDP broadcasts the parameters in flat copies of at least 250 MiB, two of them at a time ...
    for address in [cuda.take(4 * WEIGHT), cuda.take(2 * WEIGHT)]:
        cuda.give(address)
    # ... and has one bucket in the first iteration; from the second on buckets are closed at 25 MiB.
    buckets = [cuda.take(LAYERS * WEIGHT)]
    cuda.take(ACTIVATION)  # the batch
    for iteration in range(3):
        if iteration == 1:
            cuda.give(buckets[0])
            buckets = [cuda.take(WEIGHT) for _ in range(LAYERS)]
        outputs = []
        for layer in range(LAYERS):
            outputs.append(cuda.take(ACTIVATION))
            if iteration == layer == 0:
                cuda.take(WORKSPACE)
        gradients = []
        gradient_of_input = None
        for layer in reversed(range(LAYERS)):
            gradient = cuda.take(ACTIVATION)  # behind the ReLU, whose result is not needed any more
            if gradient_of_input is not None:
                cuda.give(gradient_of_input)
            cuda.give(outputs[layer])
            if layer > 0:
                gradient_of_input = cuda.take(ACTIVATION)
            if iteration == 0 and layer == LAYERS - 1:
                cuda.take(WORKSPACE)
            gradients.append(cuda.take(WEIGHT))
            cuda.give(gradient)
        if iteration == 0:
            for _ in range(2 * LAYERS):
                cuda.take(WEIGHT)  # exp_avg and exp_avg_sq
        for address in gradients:
            cuda.give(address)

    # The most is live at the end of the backward pass, with the batch and the last gradient behind a ReLU.
    assert cuda.peak == 5 * LAYERS * WEIGHT + 2 * WORKSPACE + 2 * ACTIVATION
    allocated, reserved = peaks("ddp", tmp_path)
    assert allocated == pytest.approx(cuda.peak, rel=0.01)
    assert reserved == pytest.approx(cuda.reserved + SMALL_SEGMENT, rel=0.01)


@pytest.mark.slow
def test_fsdp2(tmp_path: Path) -> None:
    """FSDP2 shards weights, gradients and states, and gathers the weights of a layer and of the next one."""
    # The most is live in the backward pass of the second layer, when all gradients but two are there: with
    # its weight, the weight gathered for the first layer, the input of the reduce-scatter of the third one
    # and its own gradient, not sharded yet; and with its input and two gradients of activations.
    expected = (
        *(3 * LAYERS * SHARD, (LAYERS - 2) * SHARD, 4 * WEIGHT),
        *(2 * WORKSPACE, ACTIVATION, 3 * ACTIVATION),
    )
    # Segments by stream. Default: three whole weights at a time (weight, its gradient, reduce-scatter), the
    # batch, all activations and the gradient of one. Gathering: the weights of two layers. Reducing:
    # gradients.
    default = 3 * LAYERS * SHARD + 3 * WEIGHT + 2 * WORKSPACE + (LAYERS + 2) * ACTIVATION
    segments = (default, 2 * WEIGHT, LAYERS * SHARD, SMALL_SEGMENT)

    allocated, reserved = peaks("fsdp2", tmp_path)
    assert allocated == pytest.approx(sum(expected), rel=0.01)
    assert reserved == pytest.approx(sum(segments), rel=0.01)


def test_fsdp2_with_mixed_precision(tmp_path: Path) -> None:
    """In bf16 what is whole takes half, but for the fp32 input of the reduce-scatter; shards stay fp32."""
    half, activation = WEIGHT // 2, ACTIVATION // 2
    expected = (
        *(3 * LAYERS * SHARD, (LAYERS - 2) * SHARD, 3 * half + WEIGHT),
        *(2 * WORKSPACE, ACTIVATION, activation, 3 * activation),  # the batch also cast
    )
    # Gathering casts the shard of one layer first.
    default = 3 * LAYERS * SHARD + 2 * half + WEIGHT + 2 * WORKSPACE + ACTIVATION + (LAYERS + 2) * activation
    segments = (default, 2 * half + SHARD // 2, LAYERS * SHARD, SMALL_SEGMENT)

    allocated, reserved = peaks("fsdp2_bf16", tmp_path)
    assert allocated == pytest.approx(sum(expected), rel=0.01)
    assert reserved == pytest.approx(sum(segments), rel=0.01)
