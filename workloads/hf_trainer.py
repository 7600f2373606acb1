"""Train a causal language model with the Trainer of Hugging Face Transformers.

    torchrun --nproc-per-node 8 workloads/hf_trainer.py --output_dir out --bf16 --max_steps 20
    accelerate launch --config_file fsdp.yaml workloads/hf_trainer.py --output_dir out --max_steps 20

The model is built from a configuration of Transformers, e.g. `--model_type mixtral`, with random weights. All
other options are those of transformers.TrainingArguments; how ranks share the model (DDP, FSDP, DeepSpeed) is
chosen there or in the file that `accelerate launch` reads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
)


@dataclass
class ModelArguments:
    model_type: str = "llama"
    num_layers: int = 2
    hidden_size: int = 256
    ffn_hidden_size: int = 1024
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    vocab_size: int = 1024
    seq_length: int = 128
    num_experts: int = 8  # of a mixture of experts, such as mixtral
    num_experts_per_token: int = 2


class RandomTokens(Dataset):
    """Sequences of random token ids, the same for the same index."""

    def __init__(self, args: ModelArguments, length: int = 100_000):
        self.args = args
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(self.args.vocab_size, (self.args.seq_length,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    args, training_args = parser.parse_args_into_dataclasses()
    experts = {}
    if args.model_type == "mixtral":
        experts = {"num_local_experts": args.num_experts, "num_experts_per_tok": args.num_experts_per_token}
    config = AutoConfig.for_model(
        args.model_type,
        num_hidden_layers=args.num_layers,
        hidden_size=args.hidden_size,
        intermediate_size=args.ffn_hidden_size,
        num_attention_heads=args.num_attention_heads,
        num_key_value_heads=args.num_key_value_heads,
        vocab_size=args.vocab_size,
        max_position_embeddings=args.seq_length,
        pad_token_id=0,
        use_cache=False,
        **experts,
    )
    trainer = Trainer(
        model=AutoModelForCausalLM.from_config(config),
        args=training_args,
        train_dataset=RandomTokens(args),
        data_collator=default_data_collator,
    )
    trainer.train()


if __name__ == "__main__":
    main()
