"""The part of a run's report that a task makes itself: a template of its folder `page/`, and what it shows.

A template is included into `run.html` with `part`, the values below. It may import the macros of `shared/page` and of
`visuals/charts.html`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.images.stored_image import StoredImage

if TYPE_CHECKING:  # the page of `vitrail check` does not wait for torch
    from torch import Tensor


@dataclass(frozen=True)
class MeasuredImages:
    """The images that a result was measured on, to which `results["worst"][i]["index"]` points."""

    files: Sequence[Path]
    root: Path  # file names are shown relative to it
    # Of a dense task: for each of results["worst"] the decoded answer and the truth, in the image's own pixels.
    worst: Sequence[tuple[Tensor, Tensor]] = ()
    stored: Sequence[StoredImage | None] = ()  # of each image where it lies, if it is no file; empty: all are files

    def source(self, index: int) -> Path | StoredImage:
        """What the picture is read from."""
        return (self.stored[index] if self.stored else None) or self.files[index]


@dataclass(frozen=True)
class ReportPart:
    template: str  # a file of the task's folder `page/`, or of `shared/page/`
    values: Mapping[str, Any] = field(default_factory=dict)  # `part` in the template
    style: str = ""  # a CSS file beside it
    metrics_note: str = ""  # a sentence above the table of all metrics


def page_folders() -> list[str]:
    """The folders with the templates of all tasks."""
    return [str(folder) for folder in sorted(Path(__file__).parent.glob("*/page"))]
