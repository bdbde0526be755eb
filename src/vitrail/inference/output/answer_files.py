"""`vitrail predict --out DIR`: masks, overlays and boxes as files, one set an image, and what holds for all in one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.files import replacing, write_text
from vitrail.inference.output.writers import Write
from vitrail.inference.predictor import Prediction, name_of
from vitrail.inference.read_source import read_own_size
from vitrail.tasks.dense_task import DenseTask
from vitrail.tasks.task import Task
from vitrail.visuals.colours import shown_picture
from vitrail.weights.preprocessing import Preprocessing


@contextlib.contextmanager
def pictures_in(folder: str | Path, task: Task, preprocessing: Preprocessing) -> Iterator[Write]:
    """The task's pictures, named after the image; at the end what the task writes about all of them together.

    preprocessing: of the model, which says how many channels its images have."""
    if not isinstance(task, DenseTask):
        raise VitrailError(f"--out is for masks and boxes, and the model's task is {task.name}: use --json or --csv")
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise VitrailError(f"cannot make the folder {folder}: {error.strerror or error}") from None
    names: set[str] = set()
    records: list[dict] = []

    def write(prediction: Prediction) -> None:
        if prediction.answer is None:
            return
        name = _unused_name(Path(name_of(prediction.source)).stem or "image", names)
        picture = shown_picture(read_own_size(prediction.source, preprocessing, name))
        for ending, image in task.pictures(prediction.answer, picture).items():
            with replacing(target / f"{name}{ending}") as temporary:
                image.save(temporary, format="PNG" if ending.endswith(".png") else "JPEG")
        records.append(task.record(prediction.answer, name_of(prediction.source), picture.shape[:2]))

    yield write
    for name, text in task.files(records).items():
        write_text(target / name, text)


def _unused_name(stem: str, names: set[str]) -> str:
    """The image's own name, or with a number where two images of different folders share one."""
    name, number = stem, 1
    while name.casefold() in names:
        number += 1
        name = f"{stem}-{number}"
    names.add(name.casefold())
    return name
