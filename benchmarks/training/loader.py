"""`loader`: images a second that vitrail's feeding alone sustains at 224 px, against what training an S/16 consumes."""

from __future__ import annotations

import argparse
import time

import torch

from training.places import dataset
from training.results import write_section
from vitrail.data.layouts.recognise import read_dataset
from vitrail.data.loading.augment import Augmentation
from vitrail.data.loading.cache import Shape, open_cache
from vitrail.data.loading.loader import Loader
from vitrail.data.loading.sampler import Sampler
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.tasks.targets import WholeImageTargets
from vitrail.training.optim.memory import keep_freed_memory
from vitrail.weights.preprocessing import Preprocessing

SIZE, STORED, BATCH = 224, 256, 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each is timed")


def run(arguments: argparse.Namespace) -> None:
    keep_freed_memory()
    items = read_dataset(dataset(arguments.work, "flowers")).part("train")
    paths = [item.path for item in items]
    rows = []
    for mode in ("off", "memory"):
        begun = time.perf_counter()
        cache = open_cache(paths, Shape(STORED, STORED, 3), mode, gigabytes=8, workers=2)
        filled = time.perf_counter() - begun
        speed = fed(cache, Sampler(len(paths), BATCH, 0), arguments.seconds)
        rows.append((f"feeding, cache {mode}", speed, f"{filled:.1f} s"))
    consumed = trained(arguments.seconds)
    rows.append(("training S/16, float32, no feeding", consumed, ""))
    lines = [
        f"{SIZE} px, batch {BATCH}, crops, flips, TrivialAugment, 2 decoding threads; stored at {STORED} px.",
        "",
        "| what | images/s | times S/16 | filling the cache |",
        "|---|---|---|---|",
        *(f"| {name} | {speed:,.1f} | {speed / consumed:,.1f} | {filled} |" for name, speed, filled in rows),
    ]
    write_section(arguments.results, "Feeding at 224 px against what S/16 consumes", lines)


def fed(cache: object, sampler: Sampler, seconds: float) -> float:
    """Images a second: batches as fast as they come, ready for the model."""
    loader = Loader(
        cache=cache,  # type: ignore[arg-type]
        targets=WholeImageTargets(torch.zeros(sampler.count)),
        sampler=sampler,
        preprocessing=Preprocessing(size=(SIZE, SIZE)),
        augmentation=Augmentation(),
    )
    begun, done = 0.0, -5
    for _ in loader.batches(0, 10**6):
        done += 1
        if done == 0:
            begun = time.perf_counter()
        elif done > 0 and time.perf_counter() - begun > seconds:
            return done * BATCH / (time.perf_counter() - begun)
    raise AssertionError


def trained(seconds: float) -> float:
    model = ViT(preset("S/16", classes=5)).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    images, targets = torch.randn(BATCH, 3, SIZE, SIZE), torch.randint(0, 5, (BATCH,))
    begun, done = 0.0, -1
    while done < 1 or time.perf_counter() - begun < seconds:
        torch.nn.functional.cross_entropy(model(images), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        if done == 0:
            begun = time.perf_counter()
    return done * BATCH / (time.perf_counter() - begun)
