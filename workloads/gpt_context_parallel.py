"""Train a Llama with context parallelism: ranks hold parts of each sequence (ring attention), FSDP2 over all.

torchrun --nproc-per-node 8 workloads/gpt_context_parallel.py --num-layers 24 --seq-length 32768 ...
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
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_language_model_options(parser, ("llama",))
    parser.add_argument(
        "--context-parallel-size", type=int, default=None, help="ranks that share a sequence; default: all"
    )
    args = parser.parse_args()
    if args.precision != "bf16":
        parser.error("this program trains in bf16")

    device = init_distributed()
    cp_size = args.context_parallel_size or dist.get_world_size()
    mesh = init_device_mesh(
        device.type, (dist.get_world_size() // cp_size, cp_size), mesh_dim_names=("dp", "cp")
    )
    all_ranks = mesh["dp", "cp"]._flatten()
    with torch.device("meta"):
        model = LanguageModel(model_args(args), recompute=args.recompute)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=all_ranks, mp_policy=policy)
    fully_shard(model, mesh=all_ranks, mp_policy=policy)
    model.to_empty(device=device)
    with torch.no_grad():
        model.init_weights()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
    num_micro_batches = micro_batches_per_step(args, mesh["dp"].size())
    batches = token_batches(args, device)
    for step in range(args.train_iters):
        for _ in range(num_micro_batches):
            tokens, targets = (part.contiguous() for part in next(batches))
            with (
                sdpa_kernel(SDPBackend.FLASH_ATTENTION),
                context_parallel(
                    mesh["cp"],
                    buffers=[tokens, targets, model.cos, model.sin],
                    buffer_seq_dims=[1, 1, 0, 0],
                    no_restore_buffers={tokens, targets},
                ),
            ):
                loss = next_token_loss(model(tokens), targets)
                (loss / num_micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        log(step, loss.detach(), args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
