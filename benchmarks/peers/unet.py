"""A plain small U-Net (Ronneberger et al. 2015) from scratch, with a sound recipe that ends exactly when the time does.

`--data` holds train/ and test/, each with images/ and masks/ of the same names; a mask's pixels are class numbers.
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from peers.process import keep_large_blocks, report
from peers.timed_training import decay_groups, shuffled_batches, speed, train_for

DECAY = 0.01
SCALES = (0.75, 1.5)  # of the pictures before a crop is cut out
JITTER = 0.3  # of brightness, contrast and colour
LEVELS = 5  # the finest with `--width` channels, each below with twice as many
IGNORE = 255


class Twice(nn.Sequential):
    """Conv 3 x 3, BatchNorm, ReLU, and once more."""

    def __init__(self, channels: int, out: int) -> None:
        layers: list[nn.Module] = []
        for taken in (channels, out):
            layers += [nn.Conv2d(taken, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
        super().__init__(*layers)


class UNet(nn.Module):
    """Down by max pooling, up by transposed convolutions, each level's map carried over to the way up."""

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        widths = [width << level for level in range(LEVELS)]
        self.down = nn.ModuleList(Twice(*pair) for pair in zip([3, *widths], widths, strict=False))
        self.enlarge = nn.ModuleList(
            nn.ConvTranspose2d(2 * out, out, kernel_size=2, stride=2) for out in reversed(widths[:-1])
        )
        self.up = nn.ModuleList(Twice(2 * out, out) for out in reversed(widths[:-1]))
        self.out = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, classes, H, W); any size, padded below and to the right inside."""
        height, width = x.shape[2:]
        step = 1 << (LEVELS - 1)
        x = F.pad(x, (0, -width % step, 0, -height % step), mode="replicate")
        carried = []
        for level, twice in enumerate(self.down):
            x = twice(F.max_pool2d(x, 2) if level else x)
            carried.append(x)
        for enlarge, twice, skip in zip(self.enlarge, self.up, reversed(carried[:-1]), strict=True):
            x = twice(torch.cat([skip, enlarge(x)], dim=1))
        return self.out(x)[..., :height, :width]


# ---- data


def load(part: Path, ignore: int | None) -> tuple[list[Tensor], list[Tensor]]:
    """All pictures (3, H, W) and masks (H, W), bytes, decoded once."""
    pictures, masks = [], []
    for path in sorted((part / "images").iterdir()):
        with Image.open(path) as file:
            pictures.append(torch.from_numpy(np.array(file.convert("RGB"))).permute(2, 0, 1).contiguous())
        with Image.open(part / "masks" / f"{path.stem}.png") as file:
            mask = torch.from_numpy(np.array(file))
        masks.append(mask if ignore is None else torch.where(mask == ignore, IGNORE, mask).to(torch.uint8))
    return pictures, masks


def normalised(pictures: Tensor) -> Tensor:
    return ((pictures.float() - 127.5) / 64).contiguous(memory_format=torch.channels_last)


def example(picture: Tensor, mask: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """A crop of `size` at a random scale, flipped and recoloured at random: floats in 0..255, and classes."""
    scale = math.exp(random.uniform(*map(math.log, SCALES)))
    height, width = (min(own, round(side / scale)) for own, side in zip(mask.shape, size, strict=True))
    top, left = random.randint(0, mask.shape[0] - height), random.randint(0, mask.shape[1] - width)
    seen = picture[:, top : top + height, left : left + width].float()
    truth = mask[top : top + height, left : left + width]
    seen = F.interpolate(seen[None], size, mode="bilinear", align_corners=False, antialias=scale < 1)[0]
    truth = F.interpolate(truth[None, None].float(), size, mode="nearest-exact")[0, 0].long()
    if random.random() < 0.5:
        seen, truth = seen.flip(2), truth.flip(1)
    bright, contrast, colour = (1 + random.uniform(-JITTER, JITTER) for _ in range(3))
    grey, mean = seen.mean(0, keepdim=True), seen.mean()
    seen = bright * (mean + contrast * (grey + colour * (seen - grey) - mean))
    return seen.clamp(0, 255), truth


# ---- training


def train(model: nn.Module, pictures: list[Tensor], masks: list[Tensor], given: argparse.Namespace) -> dict[str, float]:
    optimizer = torch.optim.AdamW(decay_groups(model, DECAY), lr=given.lr, fused=True)
    order, size = shuffled_batches(len(pictures), given.batch_size), (given.height, given.across)
    model.train()

    def batch_loss() -> Tensor:
        examples = [example(pictures[i], masks[i], size) for i in next(order)]
        logits = model(normalised(torch.stack([picture for picture, _ in examples])))
        return F.cross_entropy(logits, torch.stack([truth for _, truth in examples]), ignore_index=IGNORE)

    return speed(*train_for(given.minutes, optimizer, batch_loss), given.batch_size, len(pictures))


@torch.inference_mode()
def confusion(model: nn.Module, pictures: list[Tensor], masks: list[Tensor], classes: int) -> Tensor:
    """(K, K) pixels of the row's class that the model gave the column's class, pictures whole."""
    model.eval()
    total = torch.zeros(classes * classes, dtype=torch.int64)
    for picture, mask in zip(pictures, masks, strict=True):
        answer = model(normalised(picture[None]))[0].argmax(0)
        known = mask != IGNORE
        total += torch.bincount(mask[known].long() * classes + answer[known], minlength=classes * classes)
    return total.view(classes, classes)


def scores(matrix: Tensor) -> dict[str, object]:
    hits, truth = matrix.diag().double(), matrix.sum(1)
    iou = hits / (truth + matrix.sum(0) - hits).clamp(min=1)
    return {
        "mIoU": iou[truth > 0].mean().item(),
        "pixel_accuracy": (hits.sum() / matrix.sum()).item(),
        "IoU": [round(value, 4) for value in iou.tolist()],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--ignore", type=int, help="a class number that stands for unknown, besides 255")
    parser.add_argument("--lr", type=float, default=2e-3)
    for name, default in (("height", 240), ("across", 320), ("batch-size", 8), ("width", 16), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    keep_large_blocks()
    random.seed(given.seed)
    torch.manual_seed(given.seed)
    model = UNet(given.classes, given.width).to(memory_format=torch.channels_last)
    pictures, masks = load(given.data / "train", given.ignore)
    training = train(model, pictures, masks, given)
    test = load(given.data / "test", given.ignore)
    metrics = scores(confusion(model, *test, given.classes))
    parameters = sum(p.numel() for p in model.parameters())
    report(**training, **metrics, parameters=parameters, train_images=len(pictures), test_images=len(test[0]))


if __name__ == "__main__":
    main()
