"""Fine-tuning of a ViT as users of timm and of transformers do it, ended exactly when the time does.

timm: its default training transform (crops from 8 %, flips, colour jitter), AdamW with layer decay, smoothing, cosine.
transformers: as its image classification example: crops, flips, AdamW without decay, a rate that falls linearly to 0.
Weights and published preprocessing are the same on both sides, and bfloat16 autocast where it is asked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from peers.pictures import labelled_files
from peers.process import keep_large_blocks, let_torchvision_import, report
from peers.timed_training import shuffled_batches, speed, train_for

let_torchvision_import()

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Transform = Callable[[Image.Image], Tensor]


def timm_parts(given: argparse.Namespace, classes: int) -> tuple[nn.Module, Transform, Transform, list[dict]]:
    """Model, training transform, test transform and the optimizer's groups, all timm's own."""
    import timm
    from timm.optim import param_groups_layer_decay

    weights = {"file": str(given.weights / "model.safetensors")}
    model = timm.create_model(
        "deit_tiny_patch16_224",
        pretrained=True,
        pretrained_cfg_overlay=weights,
        num_classes=classes,
        drop_path_rate=0.1,
    )
    common = {"input_size": (3, 224, 224), "mean": MEAN, "std": STD, "interpolation": "bicubic"}
    train = timm.data.create_transform(is_training=True, **common)  # its RandAugment fails with this Pillow: posterize
    test = timm.data.create_transform(is_training=False, crop_pct=0.9, **common)
    groups = param_groups_layer_decay(model, weight_decay=0.05, layer_decay=0.75)
    for group in groups:
        group["lr"] = given.lr * group.get("lr_scale", 1.0)
    return model, train, test, groups


def transformers_parts(given: argparse.Namespace, classes: int) -> tuple[nn.Module, Transform, Transform, list[dict]]:
    """As examples/pytorch/image-classification of transformers; `--weights` is what `vitrail convert` wrote."""
    import timm
    from torchvision import transforms
    from transformers import AutoModelForImageClassification

    model = AutoModelForImageClassification.from_pretrained(
        given.weights, num_labels=classes, ignore_mismatched_sizes=True
    )

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: Tensor) -> Tensor:
            return self.model(pixel_values=images).logits

    normalise = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    train = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *normalise])
    common = {"input_size": (3, 224, 224), "mean": MEAN, "std": STD, "interpolation": "bicubic"}
    test = timm.data.create_transform(is_training=False, crop_pct=0.9, **common)
    return Logits(), train, test, [{"params": list(model.parameters()), "lr": given.lr, "weight_decay": 0.0}]


def read(files: list[tuple[Path, int]]) -> list[Image.Image]:
    """All pictures, decoded once."""
    pictures = []
    for path, _ in files:
        with Image.open(path) as file:
            pictures.append(file.convert("RGB"))
    return pictures


def train(model: nn.Module, transform: Transform, groups: list[dict], given: argparse.Namespace) -> dict[str, float]:
    files, _ = labelled_files(given.data / "train")
    pictures, labels = read(files), torch.tensor([label for _, label in files])
    size = min(given.batch_size, len(files))
    order = shuffled_batches(len(files), size)
    optimizer = torch.optim.AdamW(groups, lr=given.lr, fused=True)
    smoothing = 0.1 if given.library == "timm" else 0.0

    def batch_loss() -> Tensor:
        chosen = next(order)
        images = torch.stack([transform(pictures[index]) for index in chosen])
        with torch.autocast("cpu", torch.bfloat16, enabled=given.precision == "bfloat16"):
            logits = model(images)
        return F.cross_entropy(logits.float(), labels[chosen], label_smoothing=smoothing)

    shape = "cosine" if given.library == "timm" else "linear"
    trained = train_for(given.minutes, optimizer, batch_loss, clip=1.0, shape=shape)
    return speed(*trained, size, len(files)) | {"train_images": len(files)}


@torch.inference_mode()
def accuracy(model: nn.Module, transform: Transform, part: Path) -> tuple[float, int]:
    files, _ = labelled_files(part)
    right = 0
    for start in range(0, len(files), 64):
        batch = files[start : start + 64]
        answers = model(torch.stack([transform(picture) for picture in read(batch)])).argmax(1)
        right += sum(int(answer) == label for answer, (_, label) in zip(answers, batch, strict=True))
    return right / len(files), len(files)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", choices=("timm", "transformers"), required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), required=True)
    given = parser.parse_args()
    keep_large_blocks()
    torch.manual_seed(0)
    _, classes = labelled_files(given.data / "train")
    parts = timm_parts if given.library == "timm" else transformers_parts
    model, train_transform, test_transform, groups = parts(given, len(classes))
    results = train(model.train(), train_transform, groups, given)
    score, images = accuracy(model.eval(), test_transform, given.data / "test")
    report(**results, accuracy=score, test_images=images)


if __name__ == "__main__":
    main()
