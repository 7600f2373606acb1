"""A Triton kernel by hand and one of torch.compile in each step."""

import torch
import triton
import triton.language as tl


@triton.jit
def product(a, b, c, scale, SIZE: tl.constexpr):
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    at = rows * SIZE + columns
    tl.store(c + at, tl.exp(tl.dot(tl.load(a + at), tl.load(b + at)) * scale))


@torch.compile
def norm(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x / x.sum(dim=-1, keepdim=True))


def main() -> None:
    model = torch.nn.Linear(32, 32, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    a, c = (torch.ones(64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(8):
        for size in (16, 32):
            product[(1,)](a, a, c, 0.5, size, num_warps=size // 8)
        model(norm(torch.ones(8, 32, device="cuda"))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
