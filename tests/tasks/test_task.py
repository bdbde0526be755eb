"""What holds for every task, whichever it is: training, prediction and the report rely on nothing else."""

import json

import pytest
import torch
from torch import nn

from vitrail.errors import VitrailError
from vitrail.tasks.registry import task_for
from vitrail.tasks.task import Mix, mixed

TARGETS = {
    "classify": [0, 1, 2, 1, 0, 2, 2, 1],
    "multilabel": [(0,), (0, 2), (), (1,), (2, 1, 0), (2,), (0,), (1,)],
    "regress": [(1.0, 20.0, -3.0), (2.0, 24.0, 5.0), (0.5, 30.0, 0.0), (4.0, 21.0, 1.0)] * 2,
}
every_task = pytest.mark.parametrize("name", TARGETS)


def fitted(name):
    task = task_for(name, ["a", "b", "c"])
    task.fit(TARGETS[name])
    return task, task.encode(TARGETS[name])


def outputs_like(targets, seed=0):
    return torch.randn(len(targets), 3, generator=torch.Generator().manual_seed(seed))


@every_task
def test_the_main_metric_is_measured_every_epoch_and_at_the_end(name):
    task, targets = fitted(name)
    outputs = outputs_like(targets)
    quick = task.quick_metrics(outputs, targets)
    assert quick["loss"] == pytest.approx(float(task.loss(outputs, targets)), rel=1e-5)
    result = task.evaluate(task.meant(outputs), targets, bootstrap=20)
    assert result["main_metric"] == task.main_metric
    assert result["metrics"][task.main_metric] == pytest.approx(quick[task.main_metric], abs=1e-9)
    assert task.main_metric in result["intervals"]


@every_task
def test_an_evaluation_has_the_common_parts_and_is_json(name):
    task, targets = fitted(name)
    result = task.evaluate(outputs_like(targets), targets, bootstrap=20)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["task"] == name
    assert result["images"] == 8
    assert [row["label"] for row in result["per_label"]] == ["a", "b", "c"]
    for low, high in result["intervals"].values():
        assert low <= high
    assert result["worst"]
    for mistake in result["worst"]:
        assert 0 <= mistake["index"] < 8
        assert mistake["truth"] != mistake["answer"]


@every_task
def test_no_bootstrap_gives_no_intervals(name):
    task, targets = fitted(name)
    assert task.evaluate(outputs_like(targets), targets, bootstrap=0)["intervals"] == {}


@every_task
def test_intervals_follow_the_seed(name):
    task, targets = fitted(name)
    outputs = outputs_like(targets)
    first, again, other = (task.evaluate(outputs, targets, bootstrap=200, seed=s)["intervals"] for s in (1, 1, 2))
    assert first == again
    assert first != other


@every_task
def test_images_of_a_group_are_drawn_together(name):
    task, targets = fitted(name)
    outputs, four = outputs_like(targets), [7, 7, 3, 3, 5, 5, 0, 0]
    alone = task.evaluate(outputs, targets, bootstrap=200)
    grouped = task.evaluate(outputs, targets, bootstrap=200, groups=four)
    assert (alone["groups"], grouped["groups"]) == (None, 4)
    assert grouped["metrics"] == alone["metrics"] and grouped["intervals"] != alone["intervals"]
    one = task.evaluate(outputs, targets, bootstrap=200, groups=[1] * 8)
    assert (one["groups"], one["intervals"]) == (1, {})


@every_task
def test_answers_are_json_one_an_image_with_rows_of_the_same_columns(name):
    task, targets = fitted(name)
    answers = task.answer(outputs_like(targets), top=2)
    assert len(answers) == 8
    assert json.loads(json.dumps(answers, allow_nan=False)) == answers
    rows = [task.row(answer) for answer in answers]
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    assert all(isinstance(value, str | float) for row in rows for value in row.values())


@every_task
def test_no_images_are_answered_with_nothing(name):
    assert fitted(name)[0].answer(torch.zeros(0, 3)) == []


@every_task
def test_what_was_learned_survives_json(name):
    task, targets = fitted(name)
    task.calibrate(outputs_like(targets), targets)
    other = task_for(name, ["a", "b", "c"])
    other.load_state_dict(json.loads(json.dumps(task.state_dict())))
    outputs = outputs_like(targets, seed=1)
    assert torch.equal(other.meant(outputs), task.meant(outputs))
    assert torch.equal(other.loss(outputs, targets), task.loss(outputs, targets))


@every_task
def test_state_of_another_number_of_labels_is_refused(name):
    state = fitted(name)[0].state_dict()
    with pytest.raises(VitrailError, match=r"3 .*this task has 2"):
        task_for(name, ["a", "b"]).load_state_dict(state)


@every_task
def test_folding_the_layer_equals_scaling_its_outputs(name):
    task, targets = fitted(name)
    task.calibrate(outputs_like(targets), targets)
    torch.manual_seed(0)
    layer, features = nn.Linear(5, 3), torch.randn(4, 5)
    before = layer(features)
    task.fold(layer)
    torch.testing.assert_close(layer(features).double(), task.meant(before), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(layer(features), before)
    task.unfold(layer)
    torch.testing.assert_close(layer(features), before, rtol=1e-4, atol=1e-4)


def test_folding_a_layer_without_bias():
    layer = nn.Linear(5, 3, bias=False)
    before = layer.weight.detach().clone()
    task = fitted("classify")[0]
    task.temperature = 2.0
    task.fold(layer)
    assert torch.equal(layer.weight, before / 2)
    with pytest.raises(VitrailError, match="head_bias"):
        fitted("regress")[0].fold(layer)


@every_task
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_outputs_that_are_not_finite_are_one_sentence(name, bad):
    task, targets = fitted(name)
    outputs = outputs_like(targets)
    outputs[4, 1] = bad
    calls = [
        lambda: task.evaluate(outputs, targets),
        lambda: task.quick_metrics(outputs, targets),
        lambda: task.answer(outputs),
    ]
    for call in calls:
        with pytest.raises(VitrailError, match="not finite for 1 of 8 images .the first is number 5"):
            call()


@every_task
def test_what_cannot_be_measured_is_refused(name):
    task, targets = fitted(name)
    with pytest.raises(VitrailError, match="no image to measure"):
        task.evaluate(torch.zeros(0, 3), targets[:0])
    with pytest.raises(VitrailError, match="7 outputs for 8 targets"):
        task.evaluate(torch.zeros(7, 3), targets)
    with pytest.raises(VitrailError, match=r"shape \(8, 2\), 3 labels"):
        task.evaluate(torch.zeros(8, 2), targets)


@every_task
def test_the_loss_is_in_float32_under_autocast(name):
    task, targets = fitted(name)
    outputs = outputs_like(targets).bfloat16().requires_grad_()
    plain = task.loss(outputs.detach().float(), targets, smoothing=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = task.loss(outputs, targets, smoothing=0.1)
    assert loss.dtype == torch.float32
    assert loss.shape == ()
    assert torch.equal(loss, plain)
    loss.backward()
    assert outputs.grad.abs().sum() > 0


@every_task
def test_mixing_with_oneself_or_not_at_all_changes_nothing(name):
    task, targets = fitted(name)
    outputs = outputs_like(targets)
    plain = task.loss(outputs, targets)
    oneself = Mix(torch.arange(8), torch.full((8,), 0.3))
    whole = Mix(torch.arange(8).flip(0), torch.ones(8))
    swapped = Mix(torch.arange(8).flip(0), torch.zeros(8))
    torch.testing.assert_close(task.loss(outputs, targets, mix=oneself), plain)
    torch.testing.assert_close(task.loss(outputs, targets, mix=whole), plain)
    torch.testing.assert_close(task.loss(outputs, targets, mix=swapped), task.loss(outputs, targets.flip(0)))


def test_mixed_targets_are_shares_of_both():
    targets = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    mix = Mix(torch.tensor([1, 1]), torch.tensor([0.75, 0.2]))
    assert torch.equal(mixed(targets, mix), torch.tensor([[0.75, 0.25], [0.0, 1.0]]))


@every_task
def test_encoding_nothing_keeps_the_shape(name):
    task = task_for(name, ["a", "b", "c"])
    assert task.encode([]).shape == ((0,) if name == "classify" else (0, 3))


def test_metrics_are_shown_as_people_read_them():
    assert task_for("classify", ["a"]).show("accuracy", 0.93149) == "93.1 %"
    assert task_for("classify", ["a"]).show("log_loss", 0.93149) == "0.9315"
    assert task_for("multilabel", ["a"]).show("mAP", 0.5) == "0.5"


def test_unknown_names_and_settings_are_refused():
    with pytest.raises(
        VitrailError, match="'guess'; choose one of classify, depth, detect, multilabel, regress, segment"
    ):
        task_for("guess", ["a"])
    with pytest.raises(VitrailError, match="'heavy'; choose one of none, inverse, sqrt"):
        task_for("classify", ["a"], "heavy")
    with pytest.raises(VitrailError, match="no classes"):
        task_for("regress", ["a"], "inverse")
    with pytest.raises(VitrailError, match="at least one label"):
        task_for("classify", [])
    with pytest.raises(VitrailError, match="same name"):
        task_for("regress", ["age", "age"])


def test_two_classes_of_one_name_are_allowed():
    """ImageNet has two cranes and two maillots."""
    answer = task_for("classify", ["crane", "crane"]).answer(torch.tensor([[0.0, 2.0]]))[0]
    assert [guess["label"] for guess in answer["top"]] == ["crane", "crane"]


def test_a_score_of_images_that_tell_nothing_is_said_to_say_nothing():
    """A validation part without an object, a known pixel or two different numbers was answered with a score of 0."""
    detect, segment, depth, regress = (
        task_for(name, labels)
        for name, labels in (("detect", ["a"]), ("segment", ["a", "b"]), ("depth", ["depth (m)"]), ("regress", ["age"]))
    )
    empty = detect.compare(torch.zeros(0, 7), torch.zeros(0, 6))[None]
    nowhere = detect.evaluate(empty, detect.encode([torch.zeros(0, 6)]), bootstrap=0)
    assert nowhere["notes"] == ["there is no object in these images: the scores of 0 say nothing"]
    for task, answer, unknown in (
        (segment, torch.zeros(4, 4, dtype=torch.uint8), torch.full((4, 4), 255, dtype=torch.uint8)),
        (depth, torch.ones(4, 4), torch.zeros(4, 4)),
    ):
        rows = task.compare(answer, unknown)[None]
        (note,) = task.evaluate(rows, torch.zeros(1, 0), bootstrap=0)["notes"]
        assert "is known: the scores of 0 say nothing" in note
    constant = regress.evaluate(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [3.0]]), bootstrap=0)
    assert constant["notes"] == ["age is 3 for each of these images: its R2 says nothing"]
    assert not regress.evaluate(torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]]), bootstrap=0)["notes"]
