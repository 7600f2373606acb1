"""Two diffusion models, which no package of the zoo has; they predict the noise in an image.

`UNet` is the network of *Denoising Diffusion Probabilistic Models* (Ho et al., 2020), `DiT` that of *Scalable
Diffusion Models with Transformers* (Peebles and Xie, 2023), of the size that the paper calls DiT-S/2.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

GROUPS = 32  # of group normalisation


def embed_timesteps(timesteps: Tensor, width: int) -> Tensor:
    """Sines and cosines of the timesteps, (batch, width)."""
    frequencies = torch.exp(
        -math.log(10000) * torch.arange(width // 2, device=timesteps.device) / (width // 2)
    )
    angles = timesteps[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class Attention(nn.Module):
    """Self-attention of a sequence, (batch, length, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.projection(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class ResidualBlock(nn.Module):
    """Two convolutions with the timestep added between them."""

    def __init__(self, channels_in: int, channels: int, time_width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(GROUPS, channels_in), nn.SiLU(), nn.Conv2d(channels_in, channels, 3, padding=1)
        )
        self.time = nn.Linear(time_width, channels)
        self.second = nn.Sequential(
            nn.GroupNorm(GROUPS, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1)
        )
        self.shortcut = nn.Conv2d(channels_in, channels, 1) if channels_in != channels else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.second(self.first(x) + self.time(time)[:, :, None, None]) + self.shortcut(x)


class ImageAttention(nn.Module):
    """Self-attention between the pixels of a feature map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.attention = Attention(channels, heads=4)

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        return x + self.attention(pixels).transpose(1, 2).unflatten(2, x.shape[2:])


class UNet(nn.Module):
    """Residual blocks at falling and rising resolutions, with skip connections; attention at the lowest."""

    def __init__(self, channels: int = 64, multipliers: Sequence[int] = (1, 2, 4)) -> None:
        super().__init__()
        self.channels = channels
        time_width = 4 * channels
        widths = [channels * multiplier for multiplier in multipliers]
        self.time = nn.Sequential(
            nn.Linear(channels, time_width), nn.SiLU(), nn.Linear(time_width, time_width)
        )
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.down = nn.ModuleList(
            ResidualBlock(before, width, time_width)
            for before, width in zip([channels, *widths], widths, strict=False)
        )
        self.shrink = nn.ModuleList(nn.Conv2d(width, width, 3, stride=2, padding=1) for width in widths)
        self.middle = ResidualBlock(widths[-1], widths[-1], time_width)
        self.attention = ImageAttention(widths[-1])
        self.grow = nn.ModuleList(nn.ConvTranspose2d(width, width, 2, stride=2) for width in reversed(widths))
        self.up = nn.ModuleList(
            ResidualBlock(2 * width, after, time_width)
            for width, after in zip(reversed(widths), [*reversed(widths[:-1]), channels], strict=True)
        )
        self.head = nn.Sequential(
            nn.GroupNorm(GROUPS, channels), nn.SiLU(), nn.Conv2d(channels, 3, 3, padding=1)
        )

    def forward(self, x: Tensor, timesteps: Tensor) -> Tensor:
        time = self.time(embed_timesteps(timesteps, self.channels))
        x = self.stem(x)
        skips = []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = block(x, time)
            skips.append(x)
            x = shrink(x)
        x = self.attention(self.middle(x, time))
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([grow(x), skips.pop()], dim=1), time)
        return self.head(x)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale[:, None]) + shift[:, None]


class DiTBlock(nn.Module):
    """A transformer block whose normalisation is set by the condition (adaLN-Zero)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition).chunk(6, dim=1)
        x = x + gate1[:, None] * self.attention(modulate(self.norm1(x), shift1, scale1))
        return x + gate2[:, None] * self.mlp(modulate(self.norm2(x), shift2, scale2))


class DiT(nn.Module):
    """A transformer over patches of 2 x 2 of a latent image, with timestep and class as condition."""

    def __init__(self, size: int = 32, channels: int = 4, width: int = 384, depth: int = 12) -> None:
        super().__init__()
        self.width = width
        self.patches = nn.Conv2d(channels, width, 2, stride=2)
        self.positions = nn.Parameter(torch.zeros(1, (size // 2) ** 2, width), requires_grad=False)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(1000, width)
        self.blocks = nn.ModuleList(DiTBlock(width, heads=6) for _ in range(depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.head = nn.Linear(width, 4 * channels)

    def forward(self, x: Tensor, timesteps: Tensor, labels: Tensor) -> Tensor:
        side = x.shape[-1] // 2
        condition = self.time(embed_timesteps(timesteps, 256)) + self.classes(labels)
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            tokens = block(tokens, condition)
        shift, scale = self.modulation(condition).chunk(2, dim=1)
        patches = self.head(modulate(self.norm(tokens), shift, scale))
        patches = patches.unflatten(1, (side, side)).unflatten(3, (2, 2, -1))
        return patches.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)
