"""Pretraining without labels as users of lightly do it, ended exactly when the time does: its SimCLR or its DINO.

lightly's own transforms, heads, losses and momentum, as its example (SimCLR) and its script for CIFAR-10 (DINO,
docs/source/getting_started/benchmarks/cifar10_benchmark.py) put them together, around the very encoder that Vitrail
trains: fresh weights of the config in `--model`. AdamW in both. bfloat16 where the CPU computes in it, as ours.
    pip install --no-deps lightly lightning-utilities
"""

from __future__ import annotations

import argparse
import copy
from itertools import chain, repeat
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from peers.pictures import labelled_files
from peers.process import keep_large_blocks, let_torchvision_import, report
from peers.timed_training import decay_groups, train_for
from vitrail.model.precision import computes_bf16

let_torchvision_import()

PROTOTYPES, MOMENTUM = 2048, 0.99
FROZEN = 1  # epochs
MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]  # of CIFAR-10


class Views(Dataset):
    """Decoded pictures, and lightly's transform of one when it is asked for."""

    def __init__(self, files: list[Path], transform: object) -> None:
        self.pictures, self.transform = [], transform
        for path in files:
            with Image.open(path) as file:
                self.pictures.append(file.convert("RGB"))

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> list[Tensor]:
        return self.transform(self.pictures[index])


def fresh_encoder(model: Path) -> nn.Module:
    """The network of a model file, with new weights."""
    from vitrail.model.presets import build_network
    from vitrail.weights.load import load

    torch.manual_seed(0)
    return build_network(load(model).config)


def save(encoder: nn.Module, model: Path, path: Path) -> None:
    """As a model file that `vitrail knn` and `vitrail train --from` take. It is shown the same part of a picture as
    `model`, normalised as in training."""
    from vitrail.weights.checkpoint import Checkpoint
    from vitrail.weights.load import load

    preprocessing = load(model).preprocessing.replace(mean=tuple(MEAN), std=tuple(STD))
    Checkpoint(encoder.eval(), preprocessing, "embed").save(path)


class SimCLR(nn.Module):
    """As lightly's example: backbone, SimCLRProjectionHead, NTXentLoss."""

    batch = 256

    def __init__(self, encoder: nn.Module, width: int, size: int) -> None:
        super().__init__()
        from lightly.loss import NTXentLoss
        from lightly.models.modules import SimCLRProjectionHead
        from lightly.transforms import SimCLRTransform

        self.encoder, self.head = encoder, SimCLRProjectionHead(width, width, 128)
        self.loss = NTXentLoss(temperature=0.5)
        normalize = {"mean": MEAN, "std": STD}
        self.transform = SimCLRTransform(input_size=size, gaussian_blur=0.0, cj_strength=0.5, normalize=normalize)

    def forward(self, views: list[Tensor], epoch: int) -> Tensor:
        """The loss of a batch."""
        one, other = self.head(self.encoder(torch.cat(views))).float().chunk(2)
        return self.loss(one, other)

    @property
    def kept(self) -> nn.Module:
        return self.encoder

    def after_backward(self, epoch: int) -> None:
        """Nothing stands still."""

    def follow(self) -> None:
        """Nothing follows the weights."""


class DINO(nn.Module):
    """As lightly's script for CIFAR-10: two global crops, a head of two layers with batch norm, momentum 0.99. The
    prototypes stand still in the first epoch, as in lightly's example."""

    batch = 128

    def __init__(self, encoder: nn.Module, width: int, size: int) -> None:
        super().__init__()
        from lightly.loss import DINOLoss
        from lightly.models.utils import deactivate_requires_grad
        from lightly.transforms import DINOTransform

        self.encoder, self.head = encoder, dino_head(width)
        self.teacher, self.teacher_head = copy.deepcopy(encoder), dino_head(width)
        deactivate_requires_grad(self.teacher)
        deactivate_requires_grad(self.teacher_head)
        self.loss = DINOLoss(output_dim=PROTOTYPES)
        self.transform = DINOTransform(
            global_crop_size=size,
            n_local_views=0,
            gaussian_blur=(0.0, 0.0, 0.0),
            normalize={"mean": MEAN, "std": STD},
        )

    def forward(self, views: list[Tensor], epoch: int) -> Tensor:
        """The loss of a batch."""
        pictures = torch.cat(views)
        with torch.no_grad():
            teacher = self.teacher_head(self.teacher(pictures)).float().chunk(2)
        student = self.head(self.encoder(pictures)).float().chunk(2)
        return self.loss(list(teacher), list(student), epoch=epoch)

    @property
    def kept(self) -> nn.Module:
        return self.teacher

    def after_backward(self, epoch: int) -> None:
        """No gradient for the prototypes at first."""
        self.head.cancel_last_layer_gradients(epoch)

    def follow(self) -> None:
        """The teacher follows."""
        from lightly.models.utils import update_momentum

        update_momentum(self.encoder, self.teacher, m=MOMENTUM)
        update_momentum(self.head, self.teacher_head, m=MOMENTUM)


def dino_head(width: int) -> nn.Module:
    """The script's own: two layers before the prototypes instead of three."""
    from lightly.models.modules.heads import DINOProjectionHead, ProjectionHead

    head = DINOProjectionHead(width, 2048, 256, PROTOTYPES, batch_norm=True, freeze_last_layer=FROZEN)
    layers = [(width, 2048, nn.BatchNorm1d(2048), nn.GELU()), (2048, 256, None, None)]
    head.layers = ProjectionHead(layers).layers
    return head


def main() -> None:
    """Train for the time, save the encoder's weights, report speed as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=("simclr", "dino"), required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="a model file whose config is used")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch", type=int, help="default: 256 for SimCLR, 128 for DINO")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction, default=computes_bf16("cpu"))
    given = parser.parse_args()
    keep_large_blocks()
    encoder = fresh_encoder(given.model)
    kind = {"simclr": SimCLR, "dino": DINO}[given.method]
    method = kind(encoder, encoder.config.pooled_width, encoder.config.image_size[0]).train()
    files = [path for path, _ in labelled_files(given.data / "train")[0]]
    batch = given.batch or method.batch
    loader = DataLoader(
        Views(files, method.transform),
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=given.workers,
        persistent_workers=given.workers > 0,
        generator=torch.Generator().manual_seed(0),
    )
    batches = enumerate(chain.from_iterable(repeat(loader)))
    epoch = 0

    def batch_loss() -> Tensor:
        nonlocal epoch
        step, views = next(batches)
        epoch = step // len(loader)
        if step:
            method.follow()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=given.bf16):
            return method(views, epoch)

    optimizer = torch.optim.AdamW(decay_groups(method, 0.05), lr=given.lr)
    steps, seconds = train_for(
        given.minutes, optimizer, batch_loss, after_backward=lambda: method.after_backward(epoch)
    )
    save(method.kept, given.model, given.out)
    precision = "bfloat16" if given.bf16 else "float32"
    epochs = steps * batch / len(files)
    report(method=given.method, precision=precision, batch=batch, steps=steps, epochs=epochs, seconds=seconds)


if __name__ == "__main__":
    main()
