"""A model that is to answer: trained, and with answers to give. What is neither is refused in a sentence."""

from __future__ import annotations

from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.model.presets import is_preset
from vitrail.tasks.task import Task, task_for
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.load import load


def open_model(source: str | Path) -> Checkpoint:
    """The model of a file, folder or hub id. A preset is refused: its weights are fresh, and its answers noise."""
    text = str(source)
    if is_preset(text) and not Path(source).exists():
        raise VitrailError(f"{text} is a preset with untrained weights: give the model file of a training run")
    return load(source)


def task_of(checkpoint: Checkpoint) -> Task:
    """What the model's outputs mean. Outputs without names are 'class 0', 'class 1' and so on."""
    if checkpoint.task == "embed" or not checkpoint.config.classes:
        raise VitrailError("this model has no head and gives embeddings, not answers: train one on it first")
    labels = checkpoint.labels
    if labels is None:
        word = "number" if checkpoint.task == "regress" else "class"
        labels = [f"{word} {place}" for place in range(checkpoint.config.classes)]
    task = task_for(checkpoint.task, labels)
    learned = checkpoint.provenance.get("training")
    if task.dense and isinstance(learned, dict) and isinstance(learned.get("task"), dict):
        task.load_state_dict(learned["task"])  # other tasks have it in their head's last layer
    return task
