"""Labels of a run that are probably wrong, by what the finished model makes of its pictures."""

from __future__ import annotations

import torch

from vitrail.findings import Finding
from vitrail.search.labels.label_errors import FEWEST, finding_of, is_no_witness, label_errors
from vitrail.search.labels.out_of_fold import knn_probabilities
from vitrail.search.probe_dataset import LabelledVectors
from vitrail.tasks.task import Task
from vitrail.training.stages.learn_familiarity import Learnt

LIMITS = (
    "; of the training pictures this is a sample, and what was learnt by heart stays hidden: `vitrail check DATA "
    "--model MODEL`, with a model that was not trained on them, looks at all"
)


def label_findings(learnt: Learnt | None, task: Task) -> list[Finding]:
    """By k-NN among the pictures whose vectors are known, each left out with those that look like it. A model that does
    not tell the classes apart is no witness: none."""
    if learnt is None or not task.classifies_images:
        return []
    items = [*learnt.training, *learnt.held_out]
    if len(items) < FEWEST:
        return []
    vectors = torch.cat([learnt.training_vectors, learnt.held_out_vectors]).numpy()
    data = LabelledVectors(vectors, items, task, learnt.units)
    errors = label_errors(task.name, items, task.labels, knn_probabilities(data))
    return [] if is_no_witness(errors, len(items)) else finding_of(errors, len(items), "the trained model", LIMITS)
