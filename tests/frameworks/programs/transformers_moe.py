"""Train a tiny mixture-of-experts language model of Transformers on one GPU."""

import argparse

import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, MixtralConfig

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", choices=("mixtral", "deepseek"), default="mixtral")
parser.add_argument("--experts-implementation", default="eager")
args = parser.parse_args()

common = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 128,
    "num_experts_per_tok": 2,
}
if args.model == "mixtral":
    config = MixtralConfig(intermediate_size=96, num_local_experts=8, **common)
else:
    config = DeepseekV3Config(
        moe_intermediate_size=96,
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=0,
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=16,
        **common,
    )
config._experts_implementation = args.experts_implementation
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    tokens = torch.randint(0, 128, (2, 33)).cuda()
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
