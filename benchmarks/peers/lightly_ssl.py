"""Pretraining without labels as users of lightly do it, ended exactly when the time does: its SimCLR or its DINO.

lightly's own transforms, heads, losses and momentum, as its examples put them together, around the very encoder that
Vitrail trains: fresh weights of the config in `--model`. bfloat16 autocast where it is asked for.
    pip install --no-deps lightly lightning-utilities
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from peers.pictures import labelled_files
from peers.process import keep_large_blocks, let_torchvision_import, report
from peers.timed_training import decay_groups, train_for

let_torchvision_import()

LOCAL_VIEWS = 6
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


def save(encoder: nn.Module, path: Path) -> None:
    """As a model file that `vitrail knn` and `vitrail train --from` take."""
    from vitrail.weights.checkpoint import Checkpoint
    from vitrail.weights.preprocessing import Preprocessing

    preprocessing = Preprocessing(size=encoder.config.image_size, mean=tuple(MEAN), std=tuple(STD))
    Checkpoint(encoder.eval(), preprocessing, "embed").save(path)


class SimCLR(nn.Module):
    """As lightly's example: backbone, SimCLRProjectionHead, NTXentLoss."""

    def __init__(self, encoder: nn.Module, width: int, size: int) -> None:
        super().__init__()
        from lightly.loss import NTXentLoss
        from lightly.models.modules import SimCLRProjectionHead
        from lightly.transforms import SimCLRTransform

        self.encoder, self.head = encoder, SimCLRProjectionHead(width, width, 128)
        self.loss = NTXentLoss(temperature=0.5)
        normalize = {"mean": MEAN, "std": STD}
        self.transform = SimCLRTransform(input_size=size, gaussian_blur=0.0, cj_strength=0.5, normalize=normalize)

    def forward(self, views: list[Tensor], progress: float) -> Tensor:
        """The loss of a batch; progress: part of the time that is over."""
        one, other = self.head(self.encoder(torch.cat(views[:2]))).float().chunk(2)
        return self.loss(one, other)

    @property
    def kept(self) -> nn.Module:
        return self.encoder

    def follow(self, progress: float) -> None:
        """Nothing follows the weights."""


class DINO(nn.Module):
    """As lightly's example: student and teacher with DINOProjectionHead, DINOLoss, update_momentum."""

    def __init__(self, encoder: nn.Module, width: int, size: int) -> None:
        super().__init__()
        from lightly.loss import DINOLoss
        from lightly.models.modules import DINOProjectionHead
        from lightly.models.utils import deactivate_requires_grad
        from lightly.transforms import DINOTransform

        self.encoder, self.head = encoder, DINOProjectionHead(width, 512, 64, 2048, freeze_last_layer=1)
        self.teacher, self.teacher_head = copy.deepcopy(encoder), DINOProjectionHead(width, 512, 64, 2048)
        deactivate_requires_grad(self.teacher)
        deactivate_requires_grad(self.teacher_head)
        self.loss = DINOLoss(output_dim=2048, warmup_teacher_temp_epochs=5)
        self.transform = DINOTransform(
            global_crop_size=size,
            global_crop_scale=(0.4, 1.0),
            local_crop_size=size // 2,
            local_crop_scale=(0.05, 0.4),
            n_local_views=LOCAL_VIEWS,
            gaussian_blur=(0.0, 0.0, 0.0),
            normalize={"mean": MEAN, "std": STD},
        )

    def forward(self, views: list[Tensor], progress: float) -> Tensor:
        """The loss of a batch; progress: part of the time that is over."""
        pictures, local = torch.cat(views[:2]), torch.cat(views[2:])
        with torch.no_grad():
            teacher = self.teacher_head(self.teacher(pictures)).float().chunk(2)
        student = self.head(torch.cat([self.encoder(pictures), self.encoder(local)])).float()
        parts = student.chunk(len(views))
        return self.loss(list(teacher), list(parts), epoch=round(100 * progress))

    @property
    def kept(self) -> nn.Module:
        return self.teacher

    def follow(self, progress: float) -> None:
        """The teacher follows, with the momentum of lightly's schedule."""
        from lightly.models.utils import update_momentum
        from lightly.utils.scheduler import cosine_schedule

        momentum = cosine_schedule(round(1000 * min(progress, 1.0)), 1001, 0.996, 1)
        update_momentum(self.encoder, self.teacher, m=momentum)
        update_momentum(self.head, self.teacher_head, m=momentum)


def main() -> None:
    """Train for the time, save the encoder's weights, report speed as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=("simclr", "dino"), required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="a model file whose config is used")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    given = parser.parse_args()
    keep_large_blocks()
    encoder = fresh_encoder(given.model)
    kind = {"simclr": SimCLR, "dino": DINO}[given.method]
    method = kind(encoder, encoder.config.pooled_width, encoder.config.image_size[0]).train()
    files = [path for path, _ in labelled_files(given.data / "train")[0]]
    loader = DataLoader(
        Views(files, method.transform),
        given.batch,
        shuffle=True,
        drop_last=True,
        num_workers=given.workers,
        persistent_workers=given.workers > 0,
        generator=torch.Generator().manual_seed(0),
    )
    state = {"views": iter(loader), "steps": 0, "progress": 0.0}
    budget = 60 * given.minutes

    def batch_loss() -> Tensor:
        from peers.process import since_start

        if state["steps"]:
            method.follow(state["progress"])
        views = next(state["views"], None)
        if views is None:
            state["views"] = iter(loader)
            views = next(state["views"])
        state["steps"] += 1
        state["progress"] = since_start() / budget
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=given.bf16):
            return method(views, state["progress"])

    optimizer = torch.optim.AdamW(decay_groups(method, 0.05), lr=given.lr)
    steps, seconds = train_for(given.minutes, optimizer, batch_loss)
    save(method.kept, given.out)
    report(method=given.method, steps=steps, seconds=seconds, images_per_second=steps * given.batch / seconds)


if __name__ == "__main__":
    main()
