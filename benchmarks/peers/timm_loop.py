"""A plain training loop around timm's VisionTransformer, as its users write it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from peers.pictures import Pictures
from peers.process import let_torchvision_import
from peers.stopwatch import Stopwatch, arguments

let_torchvision_import()

import timm  # noqa: E402


def main() -> None:
    given = arguments()
    pictures = Pictures(given.data / "train", given.image)
    loader = DataLoader(pictures, given.batch, shuffle=True, drop_last=True, num_workers=given.workers)
    model = timm.models.VisionTransformer(
        img_size=given.image,
        patch_size=given.patch,
        embed_dim=given.width,
        depth=given.depth,
        num_heads=given.heads,
        num_classes=len(pictures.classes),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.lr, fused=True)
    watch = Stopwatch(given.batch, given.warm, given.steps)
    done = False
    while not done:
        for batch in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=given.precision == "bfloat16"):
                loss = F.cross_entropy(model(batch["pixel_values"]), batch["labels"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if done := watch.step_ended():
                break
    watch.report()


if __name__ == "__main__":
    main()
