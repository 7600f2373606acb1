"""Train a Llama with tensor and sequence parallelism through DTensor, and FSDP2 over the other ranks.

Column-wise then row-wise linear layers; norms and residuals on shards of the sequence; the loss on shards of
the vocabulary. Query, key and value are layers of their own here, so that heads can be split.

torchrun --nproc-per-node 8 workloads/gpt_tensor_parallel.py --tensor-parallel-size 4 --num-layers 24 ...
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import (
    add_language_model_options,
    init_distributed,
    log,
    micro_batches_per_step,
    token_batches,
)
from models import Rope, rope_table, rotate
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)


class Attention(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int, num_query_groups: int):
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.query, self.proj = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(2))
        self.key, self.value = (
            nn.Linear(hidden_size, num_query_groups * self.head_dim, bias=False) for _ in range(2)
        )

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            layer(x).view(batch, length, -1, self.head_dim).transpose(1, 2)  # [B, H of this rank, S, E]
            for layer in (self.query, self.key, self.value)
        )
        query, key = rotate(query, rope), rotate(key, rope)
        grouped = key.shape[1] != query.shape[1]
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        return self.proj(attended.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, hidden_size: int, ffn_hidden_size: int):
        super().__init__()
        self.gate = nn.Linear(hidden_size, ffn_hidden_size, bias=False)
        self.up = nn.Linear(hidden_size, ffn_hidden_size, bias=False)
        self.proj = nn.Linear(ffn_hidden_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, args: argparse.Namespace):
        super().__init__()
        self.attention_norm = nn.RMSNorm(args.hidden_size, eps=1e-5)
        self.attention = Attention(args.hidden_size, args.num_attention_heads, args.num_query_groups)
        self.mlp_norm = nn.RMSNorm(args.hidden_size, eps=1e-5)
        self.mlp = Mlp(args.hidden_size, args.ffn_hidden_size)

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope)
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    def __init__(self, args: argparse.Namespace):
        super().__init__()
        self.embedding = nn.Embedding(args.vocab_size, args.hidden_size)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.num_layers))
        self.norm = nn.RMSNorm(args.hidden_size, eps=1e-5)
        self.head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)

    def forward(self, tokens: Tensor, rope: Rope) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, rope)
        return self.head(self.norm(x))


def parallelize(model: Model, mesh: DeviceMesh) -> None:
    """Shard the model over one row of ranks; activations between blocks are shards of the sequence."""
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        },
    )
    for block in model.blocks:
        gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        gathered_with_rope = PrepareModuleInput(
            input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
        )
        parallelize_module(
            block,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": gathered_with_rope,
                "attention.query": ColwiseParallel(),
                "attention.key": ColwiseParallel(),
                "attention.value": ColwiseParallel(),
                "attention.proj": RowwiseParallel(output_layouts=Shard(1)),
                "mlp_norm": SequenceParallel(),
                "mlp": gathered,
                "mlp.gate": ColwiseParallel(),
                "mlp.up": ColwiseParallel(),
                "mlp.proj": RowwiseParallel(output_layouts=Shard(1)),
            },
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_language_model_options(parser, ("llama",))
    parser.add_argument("--tensor-parallel-size", type=int, default=2)
    args = parser.parse_args()
    if args.precision != "bf16" or args.recompute != "none":
        parser.error("this program trains in bf16 and keeps all activations")

    device = init_distributed()
    tp_size = args.tensor_parallel_size
    mesh = init_device_mesh(
        device.type, (dist.get_world_size() // tp_size, tp_size), mesh_dim_names=("dp", "tp")
    )
    with torch.device("meta"):
        model = Model(args)
    parallelize(model, mesh["tp"])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    model.to_empty(device=device)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), foreach=True)
    cos, sin = rope_table(args.seq_length, args.hidden_size // args.num_attention_heads)
    rope = cos.to(device, torch.bfloat16), sin.to(device, torch.bfloat16)
    num_micro_batches = micro_batches_per_step(args, mesh["dp"].size())
    batches = token_batches(args, device)
    for step in range(args.train_iters):
        for _ in range(num_micro_batches):
            tokens, targets = next(batches)
            with loss_parallel():
                logits = model(tokens, rope)
                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
                (loss / num_micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        log(step, loss.detach(), args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
