"""Train a GPT, Llama or BERT with DistributedDataParallel and automatic mixed precision.

torchrun --nproc-per-node 8 workloads/lm_ddp.py --family bert --num-layers 24 --hidden-size 1024 ...
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
    mixed_precision,
    model_args,
    token_batches,
)
from models import LanguageModel, next_token_loss
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class MaskedLanguageModel(nn.Module):
    """BERT with its masked-token head, from Hugging Face's definition and random weights."""

    def __init__(self, args: argparse.Namespace):
        super().__init__()
        from transformers import BertConfig, BertForMaskedLM

        config = BertConfig(
            vocab_size=args.vocab_size,
            hidden_size=args.hidden_size,
            num_hidden_layers=args.num_layers,
            num_attention_heads=args.num_attention_heads,
            intermediate_size=args.ffn_hidden_size,
            max_position_embeddings=args.seq_length,
            attn_implementation="sdpa",
        )
        self.bert = BertForMaskedLM(config)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.bert(input_ids=tokens).logits


def build_model(args: argparse.Namespace, device: torch.device) -> nn.Module:
    with device:
        if args.family == "bert":
            model: nn.Module = MaskedLanguageModel(args)
        else:
            model = LanguageModel(model_args(args), recompute=args.recompute)
            with torch.no_grad():
                model.init_weights()
    device_ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(
        model,
        device_ids=device_ids,
        bucket_cap_mb=args.bucket_cap_mb,
        find_unused_parameters=args.find_unused_parameters,
        static_graph=args.static_graph,
        gradient_as_bucket_view=args.gradient_as_bucket_view,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_language_model_options(parser, ("gpt", "llama", "bert"))
    parser.add_argument(
        "--bucket-cap-mb",
        type=int,
        default=None,
        help="MiB of gradients in one all-reduce; default: 1, then 25",
    )
    parser.add_argument("--find-unused-parameters", action="store_true")
    parser.add_argument("--static-graph", action="store_true")
    parser.add_argument(
        "--gradient-as-bucket-view",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let gradients lie in the buckets that are reduced",
    )
    args = parser.parse_args()

    device = init_distributed()
    model = build_model(args, device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    autocast, scaler = mixed_precision(args, device)
    num_micro_batches = micro_batches_per_step(args, dist.get_world_size())
    batches = token_batches(args, device)
    for step in range(args.train_iters):
        for micro_batch in range(num_micro_batches):
            tokens, targets = next(batches)
            is_last = micro_batch == num_micro_batches - 1
            with nullcontext() if is_last else model.no_sync():
                with autocast:
                    loss = next_token_loss(model(tokens), targets)
                scaler.scale(loss / num_micro_batches).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        log(step, loss.detach(), args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
