"""Train a GPT with context parallelism: every rank holds a part of each sequence (ring attention).

torchrun --nproc-per-node 8 workloads/gpt_context_parallel.py --num-layers 24 --seq-length 32768 ...
"""

import argparse

import torch
import torch.distributed as dist
from common import add_language_model_options, init_distributed, log, model_args, token_batches
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
    args = parser.parse_args()

    device = init_distributed()
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("cp",))
    with torch.device("meta"):
        model = LanguageModel(model_args(args), recompute=args.recompute)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    with torch.no_grad():
        model.init_weights()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
    batches = token_batches(args, device)
    for step in range(args.train_iters):
        tokens, targets = (part.contiguous() for part in next(batches))
        buffers = [tokens, targets, model.cos, model.sin]
        with (
            sdpa_kernel(SDPBackend.FLASH_ATTENTION),
            context_parallel(
                mesh, buffers=buffers, buffer_seq_dims=[1, 1, 0, 0], no_restore_buffers={tokens, targets}
            ),
        ):
            loss = next_token_loss(model(tokens), targets)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        log(step, loss.detach(), args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
