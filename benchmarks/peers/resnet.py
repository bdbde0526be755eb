"""timm's ResNet-18 from scratch, with a sound recipe that ends exactly when the time does."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from peers.pictures import labelled_files, random_flip, random_resized_crop
from peers.process import keep_large_blocks, let_torchvision_import, report
from peers.timed_training import decay_groups, speed, train_for
from peers.trivial import trivial

let_torchvision_import()

import timm  # noqa: E402

SMOOTHING, DECAY, MOMENTUM = 0.1, 5e-4, 0.9
STORED = 160  # pixels a side at which pictures are kept in memory, if they are not smaller
TESTED = (128, 160)


def load(part: Path) -> tuple[list[Image.Image], Tensor]:
    """All pictures, decoded once: the middle square, at most STORED pixels a side."""
    files, _ = labelled_files(part)
    pictures = []
    for path, _ in files:
        with Image.open(path) as file:
            image = file.convert("RGB")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        size = min(side, STORED)
        box = (left, top, left + side, top + side)
        pictures.append(image.resize((size, size), Image.Resampling.BICUBIC, box=box))
    return pictures, torch.tensor([label for _, label in files])


def stack(pictures: list[Image.Image], mean: Tensor, std: Tensor) -> Tensor:
    """(B, 3, H, W), normalised, channels last."""
    values = torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures]))
    return ((values.float() / 255 - mean) / std).permute(0, 3, 1, 2)  # NHWC in memory: channels last


def statistics(pictures: list[Image.Image]) -> tuple[Tensor, Tensor]:
    values = np.concatenate([np.asarray(picture).reshape(-1, 3)[::16] for picture in pictures]) / 255
    return torch.tensor(values.mean(0)).float(), torch.tensor(values.std(0)).float()


def batches(count: int, size: int) -> Iterator[list[int]]:
    """Epoch after epoch, each in a new order; the few that fill no batch wait for the next epoch."""
    while True:
        order = torch.randperm(count).tolist()
        for start in range(0, count - size + 1, size):
            yield order[start : start + size]


def train(
    model: nn.Module, pictures: list[Image.Image], labels: Tensor, mean: Tensor, std: Tensor, given: argparse.Namespace
) -> dict[str, float]:
    groups = decay_groups(model, DECAY)
    optimizer = torch.optim.SGD(groups, lr=given.lr, momentum=MOMENTUM, nesterov=True)
    order = batches(len(pictures), min(given.batch_size, len(pictures)))

    def batch_loss() -> Tensor:
        chosen = next(order)
        images = [random_flip(random_resized_crop(pictures[i], given.size, given.crop)) for i in chosen]
        if given.changes:
            images = [trivial(image) for image in images]
        return F.cross_entropy(model(stack(images, mean, std)), labels[chosen], label_smoothing=SMOOTHING)

    return speed(*train_for(given.minutes, optimizer, batch_loss), given.batch_size, len(pictures))


@torch.inference_mode()
def accuracy(
    model: nn.Module, pictures: list[Image.Image], labels: Tensor, size: int, mean: Tensor, std: Tensor
) -> float:
    sized = [picture.resize((size, size), Image.Resampling.BICUBIC) for picture in pictures]
    right = 0
    for start in range(0, len(sized), 100):
        answers = model(stack(sized[start : start + 100], mean, std)).argmax(1)
        right += int((answers == labels[start : start + 100]).sum())
    return right / len(sized)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--crop", type=float, required=True)
    parser.add_argument("--changes", action="store_true")
    for name, default in (("size", 128), ("batch-size", 64), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    keep_large_blocks()
    random.seed(given.seed)
    torch.manual_seed(given.seed)
    _, classes = labelled_files(given.data / "train")
    model = timm.create_model("resnet18", pretrained=False, num_classes=len(classes))
    model = model.to(memory_format=torch.channels_last).train()
    pictures, labels = load(given.data / "train")
    mean, std = statistics(pictures)
    training = train(model, pictures, labels, mean, std, given)
    test, truth = load(given.data / "test")
    model.eval()
    accuracies = {size: accuracy(model, test, truth, size, mean, std) for size in TESTED}
    report(**training, accuracy=accuracies, train_images=len(pictures), test_images=len(test))


if __name__ == "__main__":
    main()
