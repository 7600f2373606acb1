"""Train a GPT or Llama with FullyShardedDataParallel (FSDP1) in mixed precision.

torchrun --nproc-per-node 8 workloads/gpt_fsdp1.py --sharding-strategy SHARD_GRAD_OP --num-layers 24 ...
"""

import argparse
import functools

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
from models import Block, LanguageModel, next_token_loss
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_language_model_options(parser, ("gpt", "llama"))
    parser.add_argument(
        "--sharding-strategy", choices=("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"), default="FULL_SHARD"
    )
    args = parser.parse_args()
    if args.precision == "fp16":
        parser.error("--precision fp16 needs loss scaling, which this program does not do; use bf16 or fp32")

    device = init_distributed()
    precision = None
    if args.precision == "bf16":
        precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = FullyShardedDataParallel(
        LanguageModel(model_args(args), recompute=args.recompute),
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        mixed_precision=precision,
        sharding_strategy=ShardingStrategy[args.sharding_strategy],
        device_id=device,
        use_orig_params=True,
    )
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
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        log(step, loss.detach(), args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
