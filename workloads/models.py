"""Decoder-only language models: GPT (learned positions, LayerNorm, GELU) and Llama (RoPE, RMSNorm, SwiGLU).

Shapes in comments: B batch, S sequence, D width, H heads, K key/value heads, E width of a head.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass
class ModelArgs:
    family: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    vocab_size: int
    seq_length: int


Rope = tuple[Tensor, Tensor]  # cosines and sines of rotary position embeddings, [S, E] each


def rope_table(seq_length: int, head_dim: int, theta: float = 10_000.0) -> Rope:
    """Rotary position embeddings (Su et al. 2021)."""
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(seq_length).float(), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Turn pairs of the last dimension by the angle of their position."""
    cos, sin = rope
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.num_heads = args.num_attention_heads
        self.num_groups = args.num_query_groups
        self.head_dim = args.hidden_size // args.num_attention_heads
        bias = args.family == "gpt"
        qkv_size = (self.num_heads + 2 * self.num_groups) * self.head_dim
        self.qkv = nn.Linear(args.hidden_size, qkv_size, bias=bias)
        self.proj = nn.Linear(args.hidden_size, args.hidden_size, bias=bias)

    def forward(self, x: Tensor, rope: Rope | None) -> Tensor:
        batch, length, _ = x.shape
        sizes = [self.num_heads * self.head_dim] + 2 * [self.num_groups * self.head_dim]
        query, key, value = (
            part.view(batch, length, -1, self.head_dim).transpose(1, 2)  # [B, H or K, S, E]
            for part in self.qkv(x).split(sizes, dim=-1)
        )
        if rope is not None:
            query, key = rotate(query, rope), rotate(key, rope)
        attended = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self.num_groups != self.num_heads
        )
        return self.proj(attended.transpose(1, 2).reshape(batch, length, -1))


class GeluMlp(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.fc = nn.Linear(args.hidden_size, args.ffn_hidden_size)
        self.proj = nn.Linear(args.ffn_hidden_size, args.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(F.gelu(self.fc(x), approximate="tanh"))


class SwigluMlp(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.gate = nn.Linear(args.hidden_size, args.ffn_hidden_size, bias=False)
        self.up = nn.Linear(args.hidden_size, args.ffn_hidden_size, bias=False)
        self.proj = nn.Linear(args.ffn_hidden_size, args.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(F.silu(self.gate(x)) * self.up(x))


def make_norm(args: ModelArgs) -> nn.Module:
    if args.family == "gpt":
        return nn.LayerNorm(args.hidden_size)
    return nn.RMSNorm(args.hidden_size, eps=1e-5)


class Block(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.attention_norm = make_norm(args)
        self.attention = Attention(args)
        self.mlp_norm = make_norm(args)
        self.mlp = GeluMlp(args) if args.family == "gpt" else SwigluMlp(args)

    def forward(self, x: Tensor, rope: Rope | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope)
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):
    """A GPT or a Llama. GPT ties the output layer to the embedding, Llama does not.

    ``recompute``: activations of blocks that are thrown away after the forward pass and computed
    again in the backward pass: "none", "selective" (every second block) or "full" (every block).
    """

    def __init__(self, args: ModelArgs, recompute: str = "none"):
        super().__init__()
        self.args = args
        self.recompute_every = {"none": 0, "selective": 2, "full": 1}[recompute]
        self.embedding = nn.Embedding(args.vocab_size, args.hidden_size)
        self.positions = nn.Embedding(args.seq_length, args.hidden_size) if args.family == "gpt" else None
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.num_layers))
        self.norm = make_norm(args)
        self.head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)
        if args.family == "gpt":
            self.head.weight = self.embedding.weight
        else:
            cos, sin = rope_table(args.seq_length, args.hidden_size // args.num_attention_heads)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)

    def init_weights(self) -> None:
        """GPT-2's initialisation: normal with 0.02, less for the layers that end a residual branch.

        Also fills the buffers, so that a model built on the meta device can be completed.
        """
        residual_std = 0.02 / math.sqrt(2 * self.args.num_layers)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=residual_std if name.endswith("proj") else 0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
                module.reset_parameters()
        if self.args.family == "llama":
            cos, sin = rope_table(
                self.args.seq_length, self.args.hidden_size // self.args.num_attention_heads
            )
            self.cos.copy_(cos)
            self.sin.copy_(sin)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, S, vocabulary] for token ids [B, S]."""
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        rope = None
        if self.args.family == "llama":
            length = tokens.shape[1]
            rope = self.cos[:length].to(x.dtype), self.sin[:length].to(x.dtype)
        for number, block in enumerate(self.blocks):
            if self.recompute_every and number % self.recompute_every == 0:
                x = checkpoint(block, x, rope, use_reentrant=False)
            else:
                x = block(x, rope)
        return self.head(self.norm(x))


def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy, computed in fp32."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
