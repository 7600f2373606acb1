"""Train a GPT or Llama with DeepSpeed: ZeRO 1 to 3, offload to the CPU, activation checkpointing, pipelines.

torchrun --nproc-per-node 8 workloads/gpt_deepspeed.py --zero-stage 3 --num-layers 24 --hidden-size 2048 ...
torchrun --nproc-per-node 8 workloads/gpt_deepspeed.py --pipeline-parallel-size 4 --global-batch-size 64 ...
"""

import argparse
import os
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from common import add_language_model_options, log, micro_batches_per_step, model_args, token_batches
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from models import Block, LanguageModel, ModelArgs, next_token_loss, rope_table
from torch import Tensor, nn


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_language_model_options(parser, ("gpt", "llama"))
    parser.add_argument("--zero-stage", type=int, choices=(0, 1, 2, 3), default=0)
    parser.add_argument("--offload-optimizer", action="store_true", help="keep optimizer states on the host")
    parser.add_argument("--offload-param", action="store_true", help="keep parameters on the host (ZeRO 3)")
    parser.add_argument("--reduce-bucket-size", type=int, default=500_000_000, help="gradients at a time")
    parser.add_argument(
        "--max-live-parameters", type=int, default=1_000_000_000, help="gathered at a time (ZeRO 3)"
    )
    parser.add_argument("--pipeline-parallel-size", type=int, default=1)
    return parser.parse_args()


def deepspeed_config(args: argparse.Namespace, num_micro_batches: int) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": args.zero_stage,
        "reduce_bucket_size": args.reduce_bucket_size,
        "stage3_max_live_parameters": args.max_live_parameters,
        "stage3_max_reuse_distance": args.max_live_parameters,
    }
    if args.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if args.offload_param:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return {
        "train_micro_batch_size_per_gpu": args.micro_batch_size,
        "gradient_accumulation_steps": num_micro_batches,
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
        # torch's AdamW runs on both sides; DeepSpeed's own needs a compiler for the host.
        "zero_force_ds_cpu_optimizer": False,
        args.precision: {"enabled": True},
        "activation_checkpointing": {"partition_activations": False},
        "steps_per_print": args.log_interval,
    }


class Embedding(nn.Module):
    """First layer of a pipeline, and the last one of a GPT, which shares its weight."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.positions = nn.Embedding(args.seq_length, args.hidden_size) if args.family == "gpt" else None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        if self.positions is None:
            return x
        return x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))


class PipelineBlock(Block):
    """A block that knows its positions, since a stage hands on nothing but activations."""

    def __init__(self, args: ModelArgs):
        super().__init__(args)
        if args.family == "llama":
            cos, sin = rope_table(args.seq_length, args.hidden_size // args.num_attention_heads)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "cos"):
            return super().forward(x, None)
        return super().forward(x, (self.cos.to(x.dtype), self.sin.to(x.dtype)))


def pipeline_layers(args: ModelArgs) -> list[LayerSpec]:
    blocks = [LayerSpec(PipelineBlock, args) for _ in range(args.num_layers)]
    if args.family == "llama":
        norm = LayerSpec(nn.RMSNorm, args.hidden_size, eps=1e-5)
        head = LayerSpec(nn.Linear, args.hidden_size, args.vocab_size, bias=False)
        return [LayerSpec(Embedding, args), *blocks, norm, head]

    def tied_head(embedding: Embedding, x: Tensor) -> Tensor:
        return nn.functional.linear(x, embedding.tokens.weight)

    attribute = {"tied_weight_attr": ["tokens.weight"]}
    first = TiedLayerSpec("embedding", Embedding, args, **attribute)
    last = TiedLayerSpec("embedding", Embedding, args, forward_fn=tied_head, **attribute)
    return [first, *blocks, LayerSpec(nn.LayerNorm, args.hidden_size), last]


def train_pipeline(args: argparse.Namespace, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
    """DeepSpeed's PipelineModule: stages of equal parameters, 1F1B, replicas over the remaining ranks."""
    num_stages = args.pipeline_parallel_size
    num_micro_batches = micro_batches_per_step(args, dist.get_world_size() // num_stages)
    model = PipelineModule(
        layers=pipeline_layers(model_args(args)),
        num_stages=num_stages,
        loss_fn=next_token_loss,
        partition_method="type:PipelineBlock",
        activation_checkpoint_interval=1 if args.recompute == "full" else 0,
        checkpointable_layers=["PipelineBlock"],
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=deepspeed_config(args, num_micro_batches)
    )
    for step in range(args.train_iters):
        log(step, engine.train_batch(batches), args)


def train_zero(args: argparse.Namespace, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
    config = deepspeed_config(args, micro_batches_per_step(args, dist.get_world_size()))
    # With ZeRO 3 every parameter is sharded where it is made, so that no rank ever holds the whole model.
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=args.zero_stage == 3):
        model = LanguageModel(model_args(args), recompute=args.recompute)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for step in range(args.train_iters):
        for _ in range(engine.gradient_accumulation_steps()):
            tokens, targets = next(batches)
            loss = next_token_loss(engine(tokens), targets)
            engine.backward(loss)
            engine.step()
        log(step, loss.detach(), args)


def main() -> None:
    args = parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    deepspeed.init_distributed("nccl")
    batches = token_batches(args, device)
    if args.pipeline_parallel_size > 1:
        train_pipeline(args, batches)
    else:
        train_zero(args, batches)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
