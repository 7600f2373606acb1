"""What the training programs share: options of language models, the process group and synthetic data."""

import argparse
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from models import ModelArgs
from torch import Tensor


def add_language_model_options(parser: argparse.ArgumentParser, families: tuple[str, ...]) -> None:
    """Dimensions of the model and the recipe, with defaults that train in a minute on one small GPU."""
    parser.add_argument("--family", choices=families, default=families[0])
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--ffn-hidden-size", type=int, default=1024)
    parser.add_argument("--num-attention-heads", type=int, default=4)
    parser.add_argument("--num-query-groups", type=int, default=4, help="key/value heads")
    parser.add_argument("--vocab-size", type=int, default=1024)
    parser.add_argument("--seq-length", type=int, default=128)
    parser.add_argument("--recompute", choices=("none", "selective", "full"), default="none")
    add_training_options(parser)


def add_training_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--micro-batch-size", type=int, default=2)
    parser.add_argument(
        "--global-batch-size", type=int, default=None, help="default: one micro-batch per rank"
    )
    parser.add_argument("--precision", choices=("bf16", "fp16", "fp32"), default="bf16")
    parser.add_argument("--train-iters", type=int, default=20)
    parser.add_argument("--log-interval", type=int, default=10)


def model_args(args: argparse.Namespace) -> ModelArgs:
    return ModelArgs(
        family=args.family,
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        ffn_hidden_size=args.ffn_hidden_size,
        num_attention_heads=args.num_attention_heads,
        num_query_groups=args.num_query_groups,
        vocab_size=args.vocab_size,
        seq_length=args.seq_length,
    )


def init_distributed(cpu_collectives: bool = False) -> torch.device:
    """Join the process group that torchrun describes; NCCL on GPUs, Gloo without, or for CPU tensors too."""
    if "RANK" not in os.environ:
        raise SystemExit("Start this program with torchrun, e.g. `torchrun --nproc-per-node 1 ...`.")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl" if cpu_collectives else "nccl"
        dist.init_process_group(backend, device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    return device


def mixed_precision(
    args: argparse.Namespace, device: torch.device
) -> tuple[torch.autocast, torch.amp.GradScaler]:
    """Autocast for the forward pass, and a scaler of the loss, which does something for fp16 only."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[args.precision]
    autocast = torch.autocast(device.type, dtype=dtype, enabled=args.precision != "fp32")
    return autocast, torch.amp.GradScaler(device.type, enabled=args.precision == "fp16")


def micro_batches_per_step(args: argparse.Namespace, num_replicas: int) -> int:
    """How many micro-batches a replica accumulates for one global batch."""
    if args.global_batch_size is None:
        return 1
    count, rest = divmod(args.global_batch_size, args.micro_batch_size * num_replicas)
    if rest or not count:
        raise SystemExit(
            f"--global-batch-size {args.global_batch_size} is not a multiple of --micro-batch-size "
            f"{args.micro_batch_size} x {num_replicas} replicas"
        )
    return count


def host_tensor(tensor: Tensor, device: torch.device) -> Tensor:
    """Pinned where a GPU will read it, as a data loader with pin_memory gives it."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


def token_batches(args: argparse.Namespace, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Random token ids and their successors, [B, S] each, made on the host and copied to the device."""
    generator = torch.Generator().manual_seed(1234 + dist.get_rank())
    shape = (args.micro_batch_size, args.seq_length + 1)
    while True:
        tokens = host_tensor(torch.randint(args.vocab_size, shape, generator=generator), device)
        tokens = tokens.to(device, non_blocking=True)
        yield tokens[:, :-1], tokens[:, 1:]


def log(step: int, loss: Tensor, args: argparse.Namespace, loss_scale: float | None = None) -> None:
    if dist.get_rank() == 0 and (step + 1) % args.log_interval == 0:
        scale = "" if loss_scale is None else f", loss scale {loss_scale:g}"
        print(f"step {step + 1}: loss {loss.item():.4f}{scale}", flush=True)
