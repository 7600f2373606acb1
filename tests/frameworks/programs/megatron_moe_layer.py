"""Train one mixture-of-experts layer of megatron-core, its experts spread over all ranks."""

import argparse

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.moe_layer import MoELayer

# megatron-core 0.16 leaves this name undefined where Transformer Engine is absent.
moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--dispatcher", choices=("alltoall", "allgather"), default="alltoall")
parser.add_argument("--num-tokens", type=int, default=128)
parser.add_argument("--hidden-size", type=int, default=64)
parser.add_argument("--ffn-hidden-size", type=int, default=96)
parser.add_argument("--num-experts", type=int, default=4)
parser.add_argument("--topk", type=int, default=2)
args = parser.parse_args()

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
parallel_state.initialize_model_parallel(expert_model_parallel_size=dist.get_world_size())
model_parallel_cuda_manual_seed(1)
config = TransformerConfig(
    num_layers=1,
    hidden_size=args.hidden_size,
    ffn_hidden_size=args.ffn_hidden_size,
    moe_ffn_hidden_size=args.ffn_hidden_size,
    num_attention_heads=4,
    num_moe_experts=args.num_experts,
    moe_router_topk=args.topk,
    moe_router_load_balancing_type="aux_loss",
    moe_aux_loss_coeff=0.01,
    moe_token_dispatcher_type=args.dispatcher,
    expert_model_parallel_size=dist.get_world_size(),
    add_bias_linear=False,
    bf16=True,
    params_dtype=torch.bfloat16,
)
spec = get_gpt_layer_local_spec(num_experts=args.num_experts, moe_grouped_gemm=False)
layer = MoELayer(
    config,
    submodules=spec.submodules.mlp.submodules,
    layer_number=1,
    pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
)
layer.cuda().bfloat16()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
while True:
    shape = args.num_tokens, 1, args.hidden_size
    hidden_states = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    output, _ = layer(hidden_states)
    output.float().pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
