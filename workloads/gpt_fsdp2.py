"""Train a GPT or Llama with FSDP2: every block is sharded over all ranks.

torchrun --nproc-per-node 8 workloads/gpt_fsdp2.py --num-layers 24 --hidden-size 2048 ...
"""

import argparse

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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_language_model_options(parser, ("gpt", "llama"))
    args = parser.parse_args()
    if args.precision == "fp16":
        parser.error("--precision fp16 needs loss scaling, which this program does not do; use bf16 or fp32")
    return args


def build_model(args: argparse.Namespace, device: torch.device) -> LanguageModel:
    """Shard on the meta device first, so that no rank ever holds the whole model."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp",))
    policy = MixedPrecisionPolicy()
    if args.precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with torch.device("meta"):
        model = LanguageModel(model_args(args), recompute=args.recompute)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    with torch.no_grad():
        model.init_weights()
    return model


def main() -> None:
    args = parse_args()
    device = init_distributed()
    model = build_model(args, device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    num_micro_batches = micro_batches_per_step(args, dist.get_world_size())
    batches = token_batches(args, device)
    for step in range(args.train_iters):
        for _ in range(num_micro_batches):
            tokens, targets = next(batches)
            loss = next_token_loss(model(tokens), targets)
            (loss / num_micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        log(step, loss.detach(), args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
