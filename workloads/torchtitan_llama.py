"""Train a Llama 3 with torchtitan: FSDP2, tensor, pipeline and context parallelism, FlexAttention.

    torchrun --nproc-per-node 8 workloads/torchtitan_llama.py --tensor-parallel-size 2 --num-layers 32 ...

That is on random tokens. A two-layer model for torchtitan's own program, with a tokenizer and a text:

    PYTHONPATH=workloads torchrun --nproc-per-node 8 -m torchtitan.train --module torchtitan_llama \\
        --config llama3_2layers --hf_assets_path tokenizer/ --dataloader.dataset_path text/
"""

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from common import add_language_model_options
from torch import Tensor
from torch.utils.data import IterableDataset
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.common import ComplexRoPE
from torchtitan.models.llama3 import _build_llama3_layers, model_registry
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.models.llama3.model import Llama3Model
from torchtitan.trainer import Trainer


def llama3_2layers() -> Trainer.Config:
    config = llama3_debugmodel()
    config.model_spec.model.layers = config.model_spec.model.layers[:2]
    config.activation_checkpoint = FullAC.Config()
    config.training.local_batch_size = 1
    config.training.seq_len = 512
    config.parallelism.pipeline_parallel_schedule = "1F1B"
    config.checkpoint.enable = False
    config.validator.enable = False
    return config


class RandomTokens(IterableDataset):
    """Sequences of random token ids with their positions, and their successors."""

    def __init__(self, vocab_size: int, seq_length: int, seed: int):
        self.vocab_size, self.seq_length, self.seed = vocab_size, seq_length, seed

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            tokens = torch.randint(self.vocab_size, (self.seq_length + 1,), generator=generator)
            yield {"input": tokens[:-1], "positions": torch.arange(self.seq_length)}, tokens[1:]


class RandomDataLoader(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        vocab_size: int = 2048
        pin_memory: bool = True

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        **_: object,
    ):
        super().__init__(
            RandomTokens(config.vocab_size, seq_len, 1234 + dp_rank),
            dp_rank,
            dp_world_size,
            batch_size=local_batch_size,
            pin_memory=config.pin_memory,
        )


class NoTokenizer(BaseTokenizer):
    """Random tokens need none."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, *, tokenizer_path: str):
        super().__init__()

    def encode(self, *args: object, **kwargs: object) -> list[int]:
        raise NotImplementedError

    def decode(self, *args: object, **kwargs: object) -> str:
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        raise NotImplementedError


def model_config(args: argparse.Namespace) -> Llama3Model.Config:
    """torchtitan's Llama 3 with other dimensions."""
    model = model_registry("debugmodel").model
    head_dim = args.hidden_size // args.num_attention_heads
    return replace(
        model,
        dim=args.hidden_size,
        vocab_size=args.vocab_size,
        tok_embeddings=replace(
            model.tok_embeddings, num_embeddings=args.vocab_size, embedding_dim=args.hidden_size
        ),
        norm=replace(model.norm, normalized_shape=args.hidden_size),
        lm_head=replace(model.lm_head, in_features=args.hidden_size, out_features=args.vocab_size),
        layers=_build_llama3_layers(
            n_layers=args.num_layers,
            dim=args.hidden_size,
            n_heads=args.num_attention_heads,
            n_kv_heads=args.num_query_groups,
            hidden_dim=args.ffn_hidden_size,
            rope=ComplexRoPE.Config(dim=head_dim, max_seq_len=args.seq_length, theta=500_000),
            attn_backend="flex",
        ),
    )


def trainer_config(args: argparse.Namespace) -> Trainer.Config:
    num_ranks = args.tensor_parallel_size * args.pipeline_parallel_size * args.context_parallel_size
    num_replicas = int(os.environ["WORLD_SIZE"]) // num_ranks
    global_batch_size = args.global_batch_size or args.micro_batch_size * num_replicas
    is_pipelined = args.pipeline_parallel_size > 1
    # A pipeline takes all micro-batches of a step at once.
    local_batch_size = global_batch_size // num_replicas if is_pipelined else args.micro_batch_size
    config = llama3_debugmodel()
    return replace(
        config,
        model_spec=replace(config.model_spec, model=model_config(args)),
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=args.vocab_size)),
        tokenizer=NoTokenizer.Config(),
        dataloader=RandomDataLoader.Config(vocab_size=args.vocab_size),
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(
            local_batch_size=local_batch_size,
            global_batch_size=global_batch_size,
            seq_len=args.seq_length,
            steps=args.train_iters,
            disable_cuda_graphs=is_pipelined or not args.cuda_graphs,
        ),
        parallelism=ParallelismConfig(
            tensor_parallel_degree=args.tensor_parallel_size,
            pipeline_parallel_degree=args.pipeline_parallel_size,
            context_parallel_degree=args.context_parallel_size,
            pipeline_parallel_schedule=args.schedule,
            pipeline_parallel_microbatch_size=args.micro_batch_size,
            context_parallel_load_balancer="ptrr",
        ),
        checkpoint=replace(config.checkpoint, enable=False),
        validator=replace(config.validator, enable=False),
        activation_checkpoint={"none": None, "selective": SelectiveAC.Config(), "full": FullAC.Config()}[
            args.recompute
        ],
        compile=replace(config.compile, enable=args.compile),
    )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_language_model_options(parser, ("llama",))
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--pipeline-parallel-size", type=int, default=1)
    parser.add_argument("--context-parallel-size", type=int, default=1)
    parser.add_argument("--schedule", default="1F1B", help="of the pipeline, as torch.distributed names them")
    parser.add_argument("--cuda-graphs", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=False)
    args = parser.parse_args()
    if args.precision != "bf16":
        parser.error("this program trains in bf16")
    return args


def main() -> None:
    trainer = trainer_config(parse_args()).build()
    trainer.train()
    trainer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
