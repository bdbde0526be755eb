"""After the last step: what the model makes of pictures of the run, to tell others that are unlike them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.data.image_groups import group_images
from vitrail.data.loading.rng import permutation
from vitrail.dataset import Item
from vitrail.inference.evaluation import MEASURED_IN
from vitrail.inference.image_processor import ImageProcessor
from vitrail.model.encoder import Encoder
from vitrail.training.run_context import Run
from vitrail.training.stages.decode_images import TrainingImages
from vitrail.training.validate import HeldOutImages, pooled_features
from vitrail.weights.familiarity.kept_vectors import LEAST_HELD_OUT, KeptVectors
from vitrail.weights.familiarity.reference_vectors import LEAST_TRAINING, fit_familiarity, most_vectors

SHARE = 0.03  # of the minutes, for the vectors of training pictures; what was not reached by then is left out
MOST_HELD_OUT = 2000  # pictures that the threshold is taken from


@dataclass(frozen=True)
class Learnt:
    """What a finished model makes of pictures of its run."""

    familiarity: KeptVectors | None  # None: there are too few of them to tell strangers by
    training: Sequence[Item]
    training_vectors: Tensor  # (M, D), what the head reads of these
    held_out: Sequence[Item]
    held_out_vectors: Tensor  # (H, D), of these
    units: list[int]  # (M + H,): images that look the same, and groups of the data, have the same number


def learn_familiarity(
    run: Run, images: TrainingImages, model: Encoder, indices: Sequence[int], pooled: Tensor
) -> Learnt | None:
    """indices, pooled: validation images, and what the head reads of them, (H, D); without vectors they are run now.

    The main process does it for all. None where the settings say that nothing is to be kept."""
    most = images.settings.data.familiarity_images
    if not most:
        return None
    seed = images.settings.train.seed
    some = permutation(seed, 1, len(indices))[:MOST_HELD_OUT]  # where time cuts them off, those of all classes
    held_out = [indices[place] for place in some]
    order = permutation(seed, 1, len(images.data.train))
    chosen = order[: min(most, most_vectors(model.config.pooled_width))].tolist()

    def learn() -> Learnt:
        network = model.to(run.processes.device)
        if len(pooled):
            vectors = pooled[torch.from_numpy(some)]
        else:
            seconds, validation = time_for(images), images.held_out["val"]
            vectors = pooled_features(network, validation, held_out, seconds, MEASURED_IN, LEAST_HELD_OUT)
        learnt = _learn(images, network, chosen, held_out[: len(vectors)], vectors)
        model.cpu()
        return learnt

    return run.processes.from_main(learn)


def time_for(images: TrainingImages) -> float:
    """Seconds that the training pictures may take; 0: nothing is kept of them."""
    minutes = images.settings.train.minutes or math.inf
    return SHARE * 60 * minutes if images.settings.data.familiarity_images else 0.0


def _learn(images: TrainingImages, network: Encoder, chosen: list[int], held_out: list[int], vectors: Tensor) -> Learnt:
    sources = [images.data.train[index].source for index in chosen]
    processor = ImageProcessor(images.preprocessing, images.task.dense)
    pictures = HeldOutImages(sources, processor, images.settings.data.workers)
    seconds = time_for(images)
    features = pooled_features(network, pictures, range(len(sources)), seconds, MEASURED_IN, LEAST_TRAINING)
    training = [images.data.train[index] for index in chosen[: len(features)]]
    validation = [images.data.dataset.part("val")[index] for index in held_out]
    signatures = [*pictures.signatures(range(len(features))), *images.held_out["val"].signatures(held_out)]
    items = [*training, *validation]
    return Learnt(
        familiarity=fit_familiarity(features, vectors),
        training=training,
        training_vectors=features,
        held_out=validation,
        held_out_vectors=vectors,
        units=group_images(items, signatures) or list(range(len(items))),
    )
