"""Train a GPT or Llama with FSDP2: every block is sharded over all ranks.

torchrun --nproc-per-node 8 workloads/gpt_fsdp2.py --num-layers 24 --hidden-size 2048 ...
"""

import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
from common import (
    add_language_model_options,
    init_distributed,
    log,
    micro_batches_per_step,
    model_args,
    token_batches,
)
from models import LanguageModel, next_token_loss
from torch.autograd.graph import save_on_cpu
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_language_model_options(parser, ("gpt", "llama"))
    parser.add_argument("--num-replicas", type=int, default=1, help="HSDP: shard within each of N replicas")
    parser.add_argument(
        "--reshard-after-forward",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="free gathered parameters between the passes",
    )
    for option, meaning in {
        "--cpu-offload": "keep parameters and optimizer on the CPU",
        "--offload-activations": "keep activations in pinned memory",
        "--compile": "torch.compile every block",
    }.items():
        parser.add_argument(option, action=argparse.BooleanOptionalAction, default=False, help=meaning)
    args = parser.parse_args()
    if args.precision == "fp16":
        parser.error("--precision fp16 needs loss scaling, which this program does not do; use bf16 or fp32")
    return args


def build_model(args: argparse.Namespace, device: torch.device) -> LanguageModel:
    """Shard on the meta device first, so that no rank ever holds the whole model."""
    num_ranks = dist.get_world_size()
    if args.num_replicas > 1:
        shape = (args.num_replicas, num_ranks // args.num_replicas)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh(device.type, (num_ranks,), mesh_dim_names=("shard",))
    policy = MixedPrecisionPolicy()
    if args.precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy() if args.cpu_offload else OffloadPolicy()
    with torch.device("meta"):
        model = LanguageModel(model_args(args), recompute=args.recompute)
    for block in model.blocks:
        if args.compile:
            block.compile()
        fully_shard(
            block,
            mesh=mesh,
            mp_policy=policy,
            offload_policy=offload,
            reshard_after_forward=args.reshard_after_forward,
        )
    fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload)
    model.to_empty(device="cpu" if args.cpu_offload else device)
    with torch.no_grad():
        model.init_weights()
    return model


def main() -> None:
    args = parse_args()
    device = init_distributed(cpu_collectives=args.cpu_offload)  # norms of offloaded gradients
    model = build_model(args, device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    num_micro_batches = micro_batches_per_step(args, dist.get_world_size())
    batches = token_batches(args, device)
    for step in range(args.train_iters):
        for _ in range(num_micro_batches):
            tokens, targets = next(batches)
            with save_on_cpu(pin_memory=True) if args.offload_activations else nullcontext():
                loss = next_token_loss(model(tokens), targets)
            (loss / num_micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        log(step, loss.detach(), args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
