"""Are our answers those of the published pipelines? One trained model, real photos, against timm and transformers.

    python -m benchmarks.published MODEL PHOTOS [--write]

MODEL: a folder in timm's format, such as DeiT-Ti/16. PHOTOS: a folder of JPEGs. Three comparisons, in float32:
the model's input against torchvision's transform, written here from Pillow's resize and torchvision's rounding;
answers against timm's `create_transform` and model; and, after `vitrail convert --to transformers`, against
transformers' processor and model, on Pillow. Then what `--fast-decode` changes, and what exact decoding costs.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import vitrail
from benchmarks.peers.process import let_torchvision_import

RESULTS = Path(__file__).parent / "results" / "published.md"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("photos", type=Path)
    arguments.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = arguments.parse_args()
    let_torchvision_import()
    paths = sorted(options.photos.glob("*.jpg"))
    text = report(options.model, paths)
    print(text)
    if options.write:
        RESULTS.write_text(text, encoding="utf-8")


def report(folder: Path, paths: Sequence[Path]) -> str:
    """The page: every comparison, and a sentence on where and how it was measured."""
    ours = vitrail.load(folder)
    rows = [compared("timm", ours, timm_answers(folder, paths), paths)]
    with tempfile.TemporaryDirectory() as converted:
        vitrail.convert(folder, Path(converted) / "theirs", to="transformers")
        theirs = Path(converted) / "theirs"
        for backend, name in (("pil", "on Pillow"), ("torchvision", "its default, on torchvision")):
            answers = transformers_answers(theirs, paths, backend)
            rows.append(compared(f"transformers, {name}", vitrail.load(theirs), answers, paths))
        rows.append(compared("the same model after `convert`", ours, answers_of(vitrail.load(theirs), paths), paths))
    same = sum(np.array_equal(ours_of(ours, path), torchvision_style(path)) for path in paths)
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return PAGE.format(
        model=folder.name,
        photos=len(paths),
        same=same,
        rows="\n".join(rows),
        speed=speed(ours, paths),
        where=f"{today}, {processor()}, 1 thread, torch {torch.__version__}, float32",
    )


PAGE = """\
# Published weights, the published pipeline's answers

{model} on {photos} photos. {where}. `python -m benchmarks.published MODEL PHOTOS --write`

Input pixels identical to torchvision's transform (Pillow's resize, torchvision's rounding): {same} of {photos}.

| Vitrail against | same top-1 | largest difference of a probability |
|---|---|---|
{rows}

timm and torchvision round the offset of a centre crop to the nearest whole number, transformers rounds it down.
So a converted file gives transformers' answers, and these are not quite the source's. transformers' default processor
resizes with torchvision on tensors, whose pixels are not quite those of Pillow.

## What exact decoding costs

The photos, enlarged and saved as JPEGs of quality 90. A JPEG is decoded at reduced scale only if half of
its shorter side still covers the size before the crop, here 248 px. Images/s: reading and resizing in one thread.

{speed}
"""


def compared(name: str, ours: vitrail.Checkpoint, theirs: Tensor, paths: Sequence[Path]) -> str:
    """A row of the table."""
    found = answers_of(ours, paths)
    same = int((found.argmax(-1) == theirs.argmax(-1)).sum())
    largest = float((found - theirs).abs().max())
    return f"| {name} | {same} of {len(paths)} | {largest:.1e} |"


def answers_of(model: vitrail.Checkpoint, paths: Sequence[Path], **options: bool) -> Tensor:
    """Probabilities (photos, classes) of ours, in float32 whatever the processor likes better."""
    from vitrail.inference.engine import Engine
    from vitrail.inference.predictor import Predictor

    engine = Engine.open(model, device="cpu", precision="fp32")
    rows = [row for _, row in Predictor(engine, workers=1, **options).outputs(paths)]
    return torch.stack([row for row in rows if isinstance(row, Tensor)]).softmax(-1)


def timm_answers(folder: Path, paths: Sequence[Path]) -> Tensor:
    """timm's own pipeline."""
    import timm
    from timm.data import create_transform, resolve_data_config

    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    transform = create_transform(**resolve_data_config({}, model=model))
    return run(model, paths, transform)


def transformers_answers(folder: Path, paths: Sequence[Path], backend: str) -> Tensor:
    """transformers' own pipeline."""
    import transformers

    model = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend=backend)
    return run(
        lambda images: model(images).logits,
        paths,
        lambda image: processor(image, return_tensors="pt")["pixel_values"][0],
    )


def run(model: Callable[[Tensor], Tensor], paths: Sequence[Path], transform: Callable[[Image.Image], Tensor]) -> Tensor:
    """Probabilities (photos, classes), 25 photos at a time."""
    rows = []
    with torch.no_grad():
        for start in range(0, len(paths), 25):
            images = [transform(Image.open(path).convert("RGB")) for path in paths[start : start + 25]]
            rows.append(model(torch.stack(images)).softmax(-1))
    return torch.cat(rows)


def ours_of(model: vitrail.Checkpoint, path: Path) -> np.ndarray:
    """The model's input, uint8 (h, w, 3)."""
    from vitrail.inference.read_source import read_source

    return read_source(path, model.preprocessing, path.name)


def torchvision_style(path: Path, size: int = 224, edge: int = 248) -> np.ndarray:
    """Resize(248, bicubic), CenterCrop(224): timm's for crop_pct 0.9."""
    image = Image.open(path).convert("RGB")
    short, long = sorted(image.size)
    longer = int(edge * long / short)
    image = image.resize((edge, longer) if image.width <= image.height else (longer, edge), Image.Resampling.BICUBIC)
    top, left = round((image.height - size) / 2.0), round((image.width - size) / 2.0)
    return np.asarray(image.crop((left, top, left + size, top + size)))


def speed(model: vitrail.Checkpoint, paths: Sequence[Path]) -> str:
    """The table of exact decoding against `--fast-decode`."""
    lines = [
        "| longer side | exact | `--fast-decode` | same top-1 | largest difference of a probability |",
        "|---|---|---|---|---|",
    ]
    for longer in (500, 1000, 2000):
        with tempfile.TemporaryDirectory() as folder:
            files = [scaled(path, Path(folder), longer) for path in paths]
            rates = [images_per_second(model, files[:100], fast) for fast in (False, True)]
            exact, fast = answers_of(model, files), answers_of(model, files, fast_decode=True)
        same = int((exact.argmax(-1) == fast.argmax(-1)).sum())
        shown = " | ".join(f"{rate:.0f} images/s" for rate in rates)
        lines.append(f"| {longer:,} px | {shown} | {same} of {len(files)} | {float((exact - fast).abs().max()):.2f} |")
    return "\n".join(lines)


def scaled(path: Path, folder: Path, longer: int) -> Path:
    """The photo with this length of its longer side, as a JPEG in the folder."""
    image = Image.open(path).convert("RGB")
    scale = longer / max(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    image.save(folder / path.name, quality=90)
    return folder / path.name


def images_per_second(model: vitrail.Checkpoint, files: Sequence[Path], fast: bool) -> float:
    """Reading and resizing alone, the best of three rounds."""
    from vitrail.inference.read_source import read_source

    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        for file in files:
            read_source(file, model.preprocessing, "", fast)
        seconds.append(time.perf_counter() - started)
    return len(files) / min(seconds)


def processor() -> str:
    """The name of the CPU."""
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
