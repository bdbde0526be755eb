"""What a user does with a folder of images: check it, train on it, measure the model, ask it, read the report.

The images are scikit-learn's handwritten digits, 1,797 of 8 x 8 pixels, which come with that package.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

FOLDER = Path("demo")
VITRAIL = Path(sys.executable).with_name("vitrail")


def write_digits(folder: Path) -> None:
    """demo/digits/7/0042.png and so on: one folder a class."""
    digits = load_digits()
    for number, (pixels, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
        (folder / str(digit)).mkdir(parents=True, exist_ok=True)
        grey = np.round(pixels / 16 * 255).astype(np.uint8)
        Image.fromarray(grey).save(folder / str(digit) / f"{number:04d}.png")


def vitrail(*arguments: object) -> None:
    words = [str(argument) for argument in arguments]
    print(f"\n$ vitrail {' '.join(words)}", flush=True)
    code = subprocess.run([str(VITRAIL), *words]).returncode
    if code:
        sys.exit(code)


def main(*length: str) -> None:
    digits, run = FOLDER / "digits", FOLDER / "run"
    write_digits(digits)
    shutil.rmtree(run, ignore_errors=True)  # of the demo before
    vitrail("check", digits)
    vitrail("train", digits, "--out", run, *(length or ("--minutes", "1.5")))
    vitrail("evaluate", run / "model.safetensors", digits)
    vitrail("predict", run / "model.safetensors", digits / "7" / "0007.png", digits / "3" / "0003.png", "--top", "3")
    print(f"\nDone. The report of this run: {(run / 'report.html').resolve()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
