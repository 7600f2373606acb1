"""Train an image model of timm as its own training script does: prefetching loader with mixup, EMA, schedule.

torchrun --nproc-per-node 8 workloads/timm_ddp.py --model vit_base_patch16_224 --batch-size 128
"""

import argparse

import torch
import torch.distributed as dist
from common import init_distributed
from timm.data import FastCollateMixup, create_loader
from timm.loss import SoftTargetCrossEntropy
from timm.models import create_model
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3, NativeScaler
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchvision.datasets import FakeData


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="resnet50")
    for option in ("--depth", "--embed-dim", "--num-heads"):
        parser.add_argument(option, type=int, default=None, help="of a vision transformer; default: its own")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--opt", default="adamw")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip-grad", type=float, default=1.0)
    parser.add_argument("--amp-dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--train-iters", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1)
    return parser.parse_args()


def make_loader(args: argparse.Namespace, device: torch.device) -> DataLoader:
    """Random images through timm's augmentation; the loader normalises on the device, on a side stream."""
    num_images = args.batch_size * dist.get_world_size() * args.train_iters
    return create_loader(
        FakeData(num_images, (3, args.image_size, args.image_size), args.num_classes),
        input_size=(3, args.image_size, args.image_size),
        batch_size=args.batch_size,
        is_training=True,
        # Capped: at 10 posterization is left with 0 bits, which Pillow refuses.
        auto_augment="rand-m9-mstd0.5-mmax9-inc1",
        re_prob=0.25,
        num_workers=args.workers,
        distributed=True,
        pin_memory=True,
        collate_fn=FastCollateMixup(mixup_alpha=0.8, label_smoothing=0.1, num_classes=args.num_classes),
        device=device,
    )


def main() -> None:
    args = parse_args()
    device = init_distributed()
    dimensions = {"depth": args.depth, "embed_dim": args.embed_dim, "num_heads": args.num_heads}
    model: nn.Module = create_model(args.model, num_classes=args.num_classes, **dimensions).to(
        device, memory_format=torch.channels_last
    )
    ema = ModelEmaV3(model, decay=0.9998)
    optimizer = create_optimizer_v2(model, opt=args.opt, lr=args.lr, weight_decay=0.05)
    model = DistributedDataParallel(model, device_ids=[device.index])
    loader = make_loader(args, device)
    scheduler, num_epochs = create_scheduler_v2(
        optimizer, "cosine", num_epochs=args.epochs, step_on_epochs=False, updates_per_epoch=len(loader)
    )
    loss_function = SoftTargetCrossEntropy().to(device)
    scaler = NativeScaler() if args.amp_dtype == "float16" else None
    num_updates = 0
    for epoch in range(num_epochs):
        loader.sampler.set_epoch(epoch)
        for images, targets in loader:
            images = images.contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, dtype=getattr(torch, args.amp_dtype)):
                loss = loss_function(model(images), targets)
            if scaler is None:
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
                optimizer.step()
            else:
                scaler(loss, optimizer, clip_grad=args.clip_grad, parameters=model.parameters())
            optimizer.zero_grad()
            num_updates += 1
            ema.update(model.module, step=num_updates)
            scheduler.step_update(num_updates)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
