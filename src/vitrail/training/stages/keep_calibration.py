"""Some training pictures that travel with the run: int8 is calibrated on them, and faster engines are checked on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from vitrail.data.loading.rng import permutation
from vitrail.dataset import Item
from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.calibration.calibration_file import write_calibration
from vitrail.inference.image_processor import ImageProcessor, ModelInput
from vitrail.threads import in_threads
from vitrail.training.run_context import Run
from vitrail.training.stages.decode_images import TrainingImages


def keep_calibration(run: Run, images: TrainingImages) -> None:
    """Write `calibration.zip` into the run's folder, unless a resumed run has it already or the settings say none.

    Before the plan is made, so that the time it takes counts.
    """
    count, path = images.settings.data.calibration_images, run.folder.calibration
    if not count or not run.processes.is_main or (run.request.resume and path.exists()):
        return
    processor = ImageProcessor(images.preprocessing, images.task.dense, fast_decode=True)

    def read(path: Path) -> ModelInput | None:
        try:
            return processor.read(path)
        except UnreadableImage:  # not as the model is to see it, such as a strip: others will do
            return None

    chosen = spread_over_classes(images.data.train, count, images.settings.train.seed)
    pictures = in_threads(read, [item.path for item in chosen], max(1, images.settings.data.workers))
    readable = [picture for picture in pictures if picture is not None]
    if readable:
        identity = {"seed": images.settings.train.seed, "sample": images.data.sample}
        write_calibration(path, readable, identity)


def spread_over_classes(items: Sequence[Item], count: int, seed: int) -> list[Item]:
    """So many items, one of each class in turn; an item with several classes stands for its rarest."""
    frequency = Counter(label for item in items for label in item.classes())
    groups: dict[int | None, list[Item]] = {}
    for index in permutation(seed, 0, len(items)).tolist():
        classes = items[index].classes()
        rarest = min(classes, key=lambda label: (frequency[label], label), default=None)
        groups.setdefault(rarest, []).append(items[index])
    turns = [(turn, place, item) for place, group in enumerate(groups.values()) for turn, item in enumerate(group)]
    turns.sort(key=lambda entry: entry[:2])
    return [item for _, _, item in turns[:count]]
