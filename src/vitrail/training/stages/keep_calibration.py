"""Some training pictures that travel with the run, for int8 and to check faster engines on."""

from __future__ import annotations

from vitrail.inference.calibration.calibration_file import write_calibration
from vitrail.inference.calibration.calibration_images import read_pictures, spread_over_classes
from vitrail.inference.image_processor import ImageProcessor
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
    items, seed = images.data.train, images.settings.train.seed
    sources = [items[index].source for index in spread_over_classes(items, count, seed)]
    pictures = read_pictures(processor, sources, max(1, images.settings.data.workers))
    readable = [picture for picture in pictures if picture is not None]  # not a strip, which the model cannot be shown
    if readable:
        write_calibration(path, readable, {"seed": seed, "sample": images.data.sample})
