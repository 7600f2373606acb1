"""Train a model of the zoo for a few steps: forward pass, loss, backward pass and AdamW under bf16 autocast.

python zoo/train_step.py timm/resnet18 --steps 4
"""

import argparse

import torch
from models import build


def train(name: str, device: torch.device, steps: int = 1) -> None:
    """Trains the named model on random inputs."""
    torch.manual_seed(0)
    entry = build(name, device)
    entry.model.train()
    optimizer = torch.optim.AdamW(entry.model.parameters(), lr=1e-4)
    for _ in range(steps):
        with torch.autocast(device.type, torch.bfloat16):
            loss = entry.loss(entry.model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a name of zoo/models.py")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    train(args.model, torch.device(args.device), args.steps)


if __name__ == "__main__":
    main()
