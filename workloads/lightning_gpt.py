"""Train a GPT or Llama with Lightning's Trainer: DDP or FSDP, mixed precision, clipping.

torchrun --nproc-per-node 8 workloads/lightning_gpt.py --strategy fsdp --num-layers 24 --hidden-size 2048 ...
"""

import argparse
import os

import torch
from common import add_language_model_options, micro_batches_per_step, model_args
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import FSDPStrategy, Strategy
from models import Block, LanguageModel, next_token_loss
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


class LanguageModelModule(LightningModule):
    def __init__(self, args: argparse.Namespace):
        super().__init__()
        self.model = LanguageModel(model_args(args), recompute=args.recompute)
        self.model.init_weights()

    def training_step(self, batch: tuple[Tensor], batch_index: int) -> Tensor:
        (tokens,) = batch
        loss = next_token_loss(self.model(tokens[:, :-1]), tokens[:, 1:])
        self.log("loss", loss, prog_bar=False)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)


def make_strategy(name: str) -> str | Strategy:
    if name == "fsdp":
        return FSDPStrategy(auto_wrap_policy={Block})
    return "ddp"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_language_model_options(parser, ("gpt", "llama"))
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp")
    args = parser.parse_args()

    generator = torch.Generator().manual_seed(1234)
    tokens = torch.randint(args.vocab_size, (4096, args.seq_length + 1), generator=generator)
    trainer = Trainer(
        accelerator="gpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy=make_strategy(args.strategy),
        precision={"bf16": "bf16-mixed", "fp16": "16-mixed", "fp32": "32-true"}[args.precision],
        gradient_clip_val=1.0 if args.strategy == "ddp" else None,  # FSDP cannot clip by norm here
        accumulate_grad_batches=micro_batches_per_step(args, int(os.environ["WORLD_SIZE"])),
        max_steps=args.train_iters,
        log_every_n_steps=args.log_interval,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(TensorDataset(tokens), batch_size=args.micro_batch_size, pin_memory=True)
    trainer.fit(LanguageModelModule(args), loader)


if __name__ == "__main__":
    main()
