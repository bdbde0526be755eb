"""Few held-out images: what is chosen on one half of them is measured on the other."""

import json

import numpy as np
import pytest
import torch

import vitrail
from tests.training.running import write_pictures
from vitrail.tasks.registry import task_for
from vitrail.training.settings import Settings
from vitrail.training.stages.nested_split import halves, nested_metrics, nested_note


def test_halves_keep_groups_together():
    groups = [0, 0, 0, 1, 1, 2, 3, 4, 4, 4]
    first, second = halves(10, groups, seed=3)
    assert sorted(first + second) == list(range(10)) and abs(len(first) - len(second)) <= 1
    assert not {groups[index] for index in first} & {groups[index] for index in second}
    assert halves(30, None, 0) == halves(30, None, 0) != halves(30, None, 1)
    assert halves(3, [5, 5, 5], 0)[1] == []


def test_each_half_is_measured_with_the_temperature_of_the_other():
    """By hand: the error of the probabilities with each half's own temperature, fitted on the other one."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(3, (40,), generator=generator)
    outputs = 9 * torch.randn(40, 3, generator=generator)  # far too sure, and nothing in them
    task = task_for("classify", ["a", "b", "c"])
    task.fit([0, 1, 2])
    nested = nested_metrics(task, outputs, targets, seed=1)
    expected = 0.0
    for own, other in (halves(40, None, 1), halves(40, None, 1)[::-1]):
        fitted = task_for("classify", ["a", "b", "c"])
        fitted.fit([0, 1, 2])
        fitted.calibrate(outputs[other], targets[other])
        logits = outputs[own].double() / fitted.temperature
        expected += float(torch.nn.functional.cross_entropy(logits, targets[own], reduction="sum")) / 40
    assert nested["log_loss"] == pytest.approx(expected, rel=1e-6)
    assert nested["accuracy"] == pytest.approx(float((outputs.argmax(1) == targets).float().mean()))
    assert task.temperature == 1.0  # the task itself has not been calibrated


@pytest.mark.parametrize("task_name", ["classify", "multilabel"])
def test_what_no_temperature_changes_is_not_said_to_change(task_name):
    """Half of few images has another mAP, and a larger calibration error, than all of them, whatever was chosen."""
    generator = torch.Generator().manual_seed(0)
    task = task_for(task_name, ["a", "b", "c", "d"])
    classes = torch.randint(4, (14,), generator=generator)
    of_each = torch.nn.functional.one_hot(classes, 4).float()
    targets = classes if task_name == "classify" else of_each
    outputs = 5 * (2 * of_each - 1 + torch.randn(14, 4, generator=generator))
    nested = nested_metrics(task, outputs, targets)
    chosen = task_for(task_name, ["a", "b", "c", "d"])
    chosen.calibrate(outputs, targets)
    together = chosen.evaluate(chosen.meant(outputs), targets, bootstrap=0)["metrics"]
    same = set(together) - {"log_loss", "ece"}
    assert {name: nested[name] for name in same} == pytest.approx({name: together[name] for name in same})
    assert nested["log_loss"] > 1.005 * together["log_loss"]


def test_each_half_counts_objects_from_its_own_threshold():
    """In one half objects have a score of 0.9 and false alarms 0.6, in the other 0.3 and 0.1."""
    task, images = task_for("detect", ["dot"]), 8
    candidates, truth = torch.zeros(images, 2, 6), torch.full((images, 1, 6), -1.0)
    candidates[:, :, 2:] = torch.tensor([[0.1, 0.1, 0.4, 0.4], [0.6, 0.6, 0.9, 0.9]])
    truth[:, 0] = torch.tensor([0, 0.1, 0.1, 0.4, 0.4, 0])
    first, second = halves(images, None, 0)
    candidates[first, :, 1], candidates[second, :, 1] = torch.tensor([0.9, 0.6]), torch.tensor([0.3, 0.1])
    nested = nested_metrics(task, task.without_decoding_choices().with_decoding(candidates.flatten(1)), truth)
    # the first half's threshold, 0.75, finds nothing in the second; the second's, 0.2, takes the first's false alarms
    assert (nested["precision"], nested["recall"]) == (pytest.approx(4 / 8), pytest.approx(4 / 8))
    assert nested["AP50"] < 1


def test_the_overlap_of_boxes_is_the_other_halfs():
    """Two boxes at the same place: in one half both are objects, in the other one is a copy."""
    task = task_for("detect", ["dot"])
    candidates, truth = torch.zeros(8, 2, 6), torch.full((8, 2, 6), -1.0)
    candidates[:, :, 1] = torch.tensor([0.9, 0.8])
    candidates[:, :, 2:] = torch.tensor([[0.1, 0.1, 0.5, 0.5], [0.2, 0.1, 0.6, 0.5]])
    truth[:, 0] = torch.tensor([0, 0.1, 0.1, 0.5, 0.5, 0])  # class, box, crowd
    both = halves(8, None, 0)[0]
    truth[both, 1] = torch.tensor([0, 0.2, 0.1, 0.6, 0.5, 0])
    outputs = task.without_decoding_choices().with_decoding(candidates.flatten(1))
    nested = nested_metrics(task, outputs, truth)
    chosen = task.choose_decoding(outputs, truth)
    together = task.evaluate(task.meant(chosen), truth, bootstrap=0)["metrics"]
    assert nested["AP50"] != pytest.approx(together["AP50"], abs=1e-3)


def test_a_note_is_written_where_the_choices_made_a_difference():
    task = task_for("classify", ["a", "b"])
    plain = {"accuracy": 0.9, "ece": 0.03}
    assert (
        nested_note(task, plain, {"accuracy": 0.9, "ece": 0.03}, 42) is None
        and nested_note(task, plain, {}, 42) is None
    )
    note = nested_note(task, plain, {"accuracy": 0.9, "ece": 0.08}, 42)
    assert note and "42 images" in note and "one half" in note and "0.08" in note.replace("8.0 %", "0.08")


def test_a_run_on_few_images_says_both(tmp_path):
    values = {"model.model": "mu/4", "model.image_size": 16, "data.workers": 0, "train.epochs": 1.0}
    run = vitrail.train(write_pictures(tmp_path / "data"), tmp_path / "run", settings=Settings().with_values(values))
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["chose_weights"] is False
    assert set(results["nested"]) <= set(results["metrics"]) and np.isfinite(list(results["nested"].values())).all()
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "measured on the other" in page and "chose the best epoch" not in page
    assert run.results["notes"]
