"""Train a Llama with pipeline parallelism by torch.distributed.pipelining, and FSDP2 over the other ranks.

torchrun --nproc-per-node 8 workloads/gpt_pipeline.py --schedule Interleaved1F1B --num-layers 24 ...
"""

import argparse

import torch
import torch.distributed as dist
from common import (
    add_language_model_options,
    init_distributed,
    micro_batches_per_step,
    model_args,
    token_batches,
)
from models import LanguageModel, Rope, next_token_loss, rope_table
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleZBVZeroBubble
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class


class Stage(nn.Module):
    """Some consecutive blocks of a language model, with the embedding before the first and the head behind
    the last."""

    def __init__(self, model: LanguageModel, number: int, num_stages: int):
        super().__init__()
        per_stage, rest = divmod(len(model.blocks), num_stages)
        if rest:
            raise SystemExit(f"--num-layers {len(model.blocks)} is not a multiple of {num_stages} stages")
        self.embedding = model.embedding if number == 0 else None
        self.blocks = model.blocks[number * per_stage : (number + 1) * per_stage]
        is_last = number == num_stages - 1
        self.norm = model.norm if is_last else None
        self.head = model.head if is_last else None
        self.rope: Rope | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = block(x, self.rope)
        return x if self.norm is None else self.head(self.norm(x))


def stage_numbers(schedule: type, rank: int, size: int) -> list[int]:
    """Which stages a rank holds: one, two that are apart, or for V schedules the mirrored ones."""
    if schedule is ScheduleZBVZeroBubble:
        return [rank, 2 * size - 1 - rank]
    return [rank, rank + size] if issubclass(schedule, PipelineScheduleMulti) else [rank]


def stage_shapes(args: argparse.Namespace, number: int, num_stages: int) -> tuple[Tensor, Tensor]:
    """Examples of what a stage takes and gives for one micro-batch, without data."""
    shape = (args.micro_batch_size, args.seq_length)
    tokens = torch.empty(shape, dtype=torch.int64, device="meta")
    hidden, logits = (
        torch.empty(*shape, width, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for width in (args.hidden_size, args.vocab_size)
    )
    return tokens if number == 0 else hidden, logits if number == num_stages - 1 else hidden


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_language_model_options(parser, ("llama",))
    parser.add_argument("--pipeline-parallel-size", type=int, default=2)
    parser.add_argument(
        "--schedule",
        choices=("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"),
        default="1F1B",
    )
    args = parser.parse_args()
    if args.precision != "bf16" or args.recompute != "none":
        parser.error("this program trains in bf16 and keeps all activations")

    device = init_distributed()
    pp_size = args.pipeline_parallel_size
    mesh = init_device_mesh(
        device.type, (dist.get_world_size() // pp_size, pp_size), mesh_dim_names=("dp", "pp")
    )
    group, rank = mesh.get_group("pp"), mesh.get_local_rank("pp")
    schedule_class = get_schedule_class(args.schedule)
    numbers = stage_numbers(schedule_class, rank, pp_size)
    num_stages = pp_size * len(numbers)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    num_micro_batches = micro_batches_per_step(args, mesh["dp"].size())
    rope = rope_table(args.seq_length, args.hidden_size // args.num_attention_heads)
    with torch.device("meta"):
        model = LanguageModel(model_args(args))
    modules = [Stage(model, number, num_stages) for number in numbers]
    for module in modules:
        for block in module.blocks:
            # Gathered once a step, not once a micro-batch; zero-bubble schedules need the weights to stay.
            fully_shard(block, mesh=mesh["dp"], mp_policy=policy, reshard_after_forward=False)
        fully_shard(module, mesh=mesh["dp"], mp_policy=policy)
        module.to_empty(device=device)
        module.rope = rope[0].to(device, torch.bfloat16), rope[1].to(device, torch.bfloat16)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.02)
    stages = [
        PipelineStage(
            module, number, num_stages, device, *stage_shapes(args, number, num_stages), group=group
        )
        for module, number in zip(modules, numbers, strict=True)
    ]
    is_multi = len(stages) > 1
    schedule = schedule_class(stages if is_multi else stages[0], num_micro_batches, loss_fn=next_token_loss)
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), fused=True)

    has_first, has_last = 0 in numbers, num_stages - 1 in numbers
    args.micro_batch_size *= num_micro_batches  # a batch is split along its first dimension
    batches = token_batches(args, device)
    for step in range(args.train_iters):
        tokens, targets = (part.contiguous() for part in next(batches))
        losses: list[Tensor] = []
        schedule.step(
            *((tokens,) if has_first else ()),
            target=targets if has_last else None,
            losses=losses if has_last else None,
        )
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if losses and (step + 1) % args.log_interval == 0:
            print(f"step {step + 1}: loss {torch.stack(losses).mean().item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
