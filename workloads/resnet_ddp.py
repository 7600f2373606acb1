"""Train a ResNet on synthetic images with DistributedDataParallel and automatic mixed precision.

torchrun --nproc-per-node 8 workloads/resnet_ddp.py --depth 50 --micro-batch-size 256 --channels-last
"""

import argparse
from collections.abc import Iterator
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import (
    add_training_options,
    host_tensor,
    init_distributed,
    log,
    micro_batches_per_step,
    mixed_precision,
)
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torchvision.models import resnet18, resnet34, resnet50, resnet101, resnet152

RESNETS = {18: resnet18, 34: resnet34, 50: resnet50, 101: resnet101, 152: resnet152}


def image_batches(args: argparse.Namespace, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """The same random images and labels over and over, copied from pinned host memory each time."""
    memory_format = torch.channels_last if args.channels_last else torch.contiguous_format
    images = torch.randn(args.micro_batch_size, 3, args.image_size, args.image_size)
    images = host_tensor(images.to(memory_format=memory_format), device)
    labels = host_tensor(torch.randint(args.num_classes, (args.micro_batch_size,)), device)
    while True:
        yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--depth", type=int, choices=sorted(RESNETS), default=50)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--channels-last", action="store_true")
    add_training_options(parser)
    args = parser.parse_args()

    device = init_distributed()
    model = RESNETS[args.depth](num_classes=args.num_classes).to(device)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    device_ids = [device.index] if device.type == "cuda" else None
    model = DistributedDataParallel(model, device_ids=device_ids)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    autocast, scaler = mixed_precision(args, device)
    num_micro_batches = micro_batches_per_step(args, dist.get_world_size())
    batches = image_batches(args, device)
    for step in range(args.train_iters):
        for micro_batch in range(num_micro_batches):
            images, labels = next(batches)
            is_last = micro_batch == num_micro_batches - 1
            with nullcontext() if is_last else model.no_sync():
                with autocast:
                    loss = F.cross_entropy(model(images), labels)
                scaler.scale(loss / num_micro_batches).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        log(step, loss.detach(), args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
