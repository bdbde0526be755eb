"""What can be wrong where each image has an annotation file of its own, as in Pascal VOC and YOLO."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitrail.findings import Example, Finding, about_files
from vitrail.text import counted


def check_annotation_files(noun: str, broken: Sequence[Example], without_image: Sequence[Path]) -> list[Finding]:
    """Files that cannot be read, and files whose image is not there. noun: what the format calls such a file."""
    cannot = f"{counted(len(broken), noun)} cannot be read"
    no_image = f"{counted(len(without_image), f'{noun} has', f'{noun}s have')} no image"
    restore = f"restore the images or remove the {noun}s"
    return [
        *about_files("broken-annotations", "error", cannot, "mend them; their images are left out", broken),
        *about_files("no-image", "error", no_image, restore, without_image),
    ]
