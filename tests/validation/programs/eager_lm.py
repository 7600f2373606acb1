"""Forward and backward of a Hugging Face language model in fp32 with eager attention, without an optimizer.

python eager_lm.py CONFIG.json --batch-size 4 --seq-length 1024

The repeated step is that of the published measurements: logits of random tokens, their loss, gradients that
are added to those of the steps before.
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM, PreTrainedModel

MODELS = {"gpt2": (GPT2Config, GPT2LMHeadModel), "opt": (OPTConfig, OPTForCausalLM)}


def build_model(config_file: Path) -> PreTrainedModel:
    values = json.loads(config_file.read_text())
    config_type, model_type = MODELS[values["model_type"]]
    config = config_type(**values, use_cache=False)
    config._attn_implementation = "eager"
    with torch.device("cuda"):
        return model_type(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--seq-length", type=int, required=True)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    model = build_model(args.config).train()
    shape = (args.batch_size, args.seq_length)
    tokens = torch.randint(model.config.vocab_size, shape, device="cuda")
    # Its steps mark the iterations and cost one tiny kernel.
    optimizer = torch.optim.SGD([model.get_input_embeddings().weight.new_zeros(1).requires_grad_()], lr=0.0)
    optimizer.param_groups[0]["params"][0].grad = torch.zeros(1, device="cuda")
    for _ in range(args.steps):
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
