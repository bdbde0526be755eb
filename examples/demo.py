"""What `make demo` shows: a Vision Transformer on a photo, step by step. Its weights are fresh: it knows nothing."""

from __future__ import annotations

import time

import numpy as np
import torch
from PIL import Image
from skimage.data import astronaut

from vitrail import ViT
from vitrail.cli import main as vitrail
from vitrail.model.patches import images_from, patchify


def main() -> None:
    print("$ vitrail info S/16")
    vitrail(["info", "S/16"])

    torch.manual_seed(0)
    model = ViT("S/16").eval()
    config = model.config
    height, width = config.image_size
    photo = Image.fromarray(astronaut()).resize((width, height), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.asarray(photo) / 127.5 - 1)  # (H, W, C) in [-1, 1]

    print("\nOne photo through S/16, step by step")
    with torch.inference_mode():
        images = images_from(pixels)
        tell("the photo", "B, C, H, W", images)
        tell("cut into patches, each flattened", "B, N, P^2 C", patchify(images, config.patch_size))
        tell("each projected to a token", "B, N, D", model.stem(images))
        tokens, turns, grid = model.embed(images)
        tell("[CLS] in front, positions added", "B, 1 + N, D", tokens)
        for block in model.blocks:
            tokens = block(tokens, turns)
        tell(f"after {config.depth} blocks of attention and MLP", "B, 1 + N, D", tokens)
        tell("[CLS] alone, after the last norm", "B, D", model.pool(model.normed(tokens)))
        start = time.perf_counter()
        logits = model(images)
        seconds = time.perf_counter() - start
        tell("the head's answer", "B, classes", logits)

    down, across = grid
    print(
        f"\nDone: {down} x {across} patches and [CLS] became {logits.shape[1]} logits in {seconds * 1e3:.0f} ms. "
        f"The weights are untrained: the shapes are real, the answer is not."
    )


def tell(step: str, letters: str, tensor: torch.Tensor) -> None:
    print(f"  {step:<40} ({letters})".ljust(60) + " x ".join(map(str, tensor.shape)))


if __name__ == "__main__":
    main()
