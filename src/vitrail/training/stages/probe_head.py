"""Fine-tuning begins with a linear probe: a new head is fitted to the frozen features before anything else learns.

A head that starts from noise sends noise down into good weights, and needs many steps to become a head at all. Features
are computed once, and a linear layer on them is fitted in seconds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitrail.data.loading.rng import permutation
from vitrail.inference.image_processor import ImageProcessor
from vitrail.model.heads.linear_head import LinearHead
from vitrail.search.linear_probe import LinearProbe, fit_probe
from vitrail.training.checkpointing import read_state, write_state
from vitrail.training.run_context import Run
from vitrail.training.stages.decode_images import TrainingImages
from vitrail.training.validate import HeldOutImages, pooled_features
from vitrail.weights.checkpoint import Checkpoint

MOST_IMAGES = 2000
PROBE = "head.safetensors"  # beside the states
SHARE = 0.1  # of the minutes, for the features; what was not reached by then is left out


def probe_head(run: Run, images: TrainingImages, start: Checkpoint) -> Checkpoint:
    """The same model with its new head fitted to the training images. Other heads are left as they are: those that
    were loaded with the model, that read more than one vector, or have a hidden layer."""
    head = start.model.head
    if not images.settings.train.probe or images.settings.model.start is None:
        return start
    if not isinstance(head, LinearHead) or head.hidden is not None or len(start.model.output_layers()) > 1:
        return start
    if head.out.bias is None or head.out.bias.any():  # only a new head's biases are all zero
        return start
    probe = run.processes.from_main(lambda: kept_probe(run, images, start))
    if probe is not None:
        with torch.no_grad():
            head.out.weight.copy_(probe["weight"])
            head.out.bias.copy_(probe["bias"])
    return start


def kept_probe(run: Run, images: TrainingImages, start: Checkpoint) -> dict[str, Tensor] | None:
    """The head's weight (K, D) and bias (K,), kept with the run before its first step: how many images it was fitted to
    may depend on the clock, and a run that is resumed before its first saved state is the same run. None: a resumed run
    of an earlier version, which kept none."""
    path = run.folder.checkpoints / PROBE
    if run.request.resume:
        return read_state(path).tensors if path.exists() else None
    probe = fit_to_training_images(images, start)
    fitted = {"weight": probe.weight, "bias": probe.bias}
    write_state(path, fitted, {})
    return fitted


def fit_to_training_images(images: TrainingImages, start: Checkpoint) -> LinearProbe:
    """The probe of a sample of the training images, as the model will be shown them."""
    train = images.settings.train
    order = permutation(train.seed, 0, len(images.data.train))[:MOST_IMAGES]
    sources = [images.data.train[index].source for index in order.tolist()]
    pictures = HeldOutImages(sources, ImageProcessor(images.preprocessing), images.settings.data.workers)
    seconds = SHARE * 60 * (train.minutes or math.inf)
    # In the precision that is trained in: they are where the head starts, not what is measured.
    features = pooled_features(start.model, pictures, range(len(sources)), seconds, train.precision or "auto")
    return fit_probe(features, images.targets["train"].take(order[: len(features)]), images.task)
