"""Objects and their boxes: losses, answers in the picture's own pixels, and measures that agree with COCO's."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from vitrail.errors import VitrailError
from vitrail.model.heads.box_heads import DecoderOutputs
from vitrail.tasks.detect.average_precision import Ranked, hits, measure_precision
from vitrail.tasks.detect.box_metrics import BoxMetrics
from vitrail.tasks.detect.detect import MOST, Detect
from vitrail.tasks.letterbox import Letterbox
from vitrail.tasks.registry import task_for
from vitrail.tasks.task import Mix
from vitrail.tasks.task_answers import NotFinite

LABELS = ["cell", "platelet", "other"]


@pytest.fixture
def task():
    return Detect(LABELS)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def targets_of(*images, most=None):
    """(B, M, 5) from lists of rows, padded with class -1."""
    most = most or max(1, *(len(rows) for rows in images))
    targets = torch.zeros(len(images), most, 5)
    targets[..., 0] = -1
    for target, rows in zip(targets, images, strict=True):
        if rows:
            target[: len(rows)] = torch.tensor(rows)
    return targets


def outputs_of(targets, queries=8, sure=8.0, no_object=False):
    """What a perfect model would say: query i finds object i, the others nothing."""
    batch, objects = targets.shape[:2]
    classes = len(LABELS) + no_object
    outputs = torch.full((batch, queries, classes + 4), -sure)
    outputs[..., classes:] = 0.5
    if no_object:
        outputs[..., classes - 1] = sure
    for i in range(batch):
        for j in range(objects):
            if targets[i, j, 0] >= 0:
                outputs[i, j, int(targets[i, j, 0])] = sure
                if no_object:
                    outputs[i, j, classes - 1] = -sure
                outputs[i, j, classes:] = targets[i, j, 1:]
    return outputs


TWO = targets_of([[0, 0.3, 0.4, 0.2, 0.2], [1, 0.7, 0.7, 0.1, 0.3]], [])
KEYS = torch.arange(2, dtype=torch.int32)


# ---- loss


@pytest.mark.parametrize("no_object", [False, True], ids=["sigmoid", "softmax"])
def test_a_perfect_answer_costs_almost_nothing(task, no_object):
    right = outputs_of(TWO, no_object=no_object)
    wrong = right.clone()
    wrong[..., -4:] = 0.5
    assert task.loss(right, TWO) < 0.02
    assert task.loss(wrong, TWO) > 1


@pytest.mark.parametrize("no_object", [False, True], ids=["sigmoid", "softmax"])
@pytest.mark.parametrize("count", [0, 1, 300])
def test_no_object_one_and_300(task, no_object, count):
    rows = torch.rand(1, count, 5, generator=generator())
    rows[..., 0] = torch.randint(3, (1, count), generator=generator()).float()
    classes = 3 + no_object
    outputs = torch.randn(1, 310, classes + 4, generator=generator())
    outputs[..., classes:] = outputs[..., classes:].sigmoid()
    outputs.requires_grad_()
    loss = task.loss(outputs, rows)
    loss.backward()
    assert loss.dtype == torch.float32 and torch.isfinite(loss) and torch.isfinite(outputs.grad).all()


@pytest.mark.parametrize("no_object", [False, True], ids=["sigmoid", "softmax"])
def test_padding_does_not_change_the_loss(task, no_object):
    outputs = outputs_of(TWO, no_object=no_object) + 0.1 * torch.rand(1, generator=generator())
    longer = torch.cat([TWO, torch.full((2, 5, 5), -1.0)], dim=1)
    assert task.loss(outputs, TWO).item() == pytest.approx(task.loss(outputs, longer).item(), rel=1e-6)


def test_the_loss_is_divided_by_the_objects_of_the_batch(task):
    outputs = outputs_of(TWO)
    outputs[..., -4:] = 0.5
    twice = task.loss(torch.cat([outputs, outputs]), torch.cat([TWO, TWO]))
    assert task.loss(outputs, TWO).item() == pytest.approx(twice.item(), rel=1e-5)


def guesses_for(targets, denoising_queries, cells=6, queries=8, blocks=2, seed=0):
    made = generator(seed)
    steps = (torch.arange(cells) + 0.5) / cells
    places = torch.stack([steps.repeat(cells), steps.repeat_interleave(cells)], dim=1)
    batch, (groups, each) = len(targets), (0, 0) if denoising_queries is None else denoising_queries.shape[1:3]

    def logits(*shape):
        return torch.randn(*shape, 3, generator=made).requires_grad_()

    def boxes(*shape):
        return torch.rand(*shape, 4, generator=made).requires_grad_()

    return DecoderOutputs(
        places,
        logits(batch, cells**2),
        boxes(batch, cells**2),
        logits(blocks, batch, queries),
        boxes(blocks, batch, queries),
        logits(blocks, batch, groups, each),
        boxes(blocks, batch, groups, each),
    )


@pytest.mark.parametrize("with_hints", [True, False])
@pytest.mark.parametrize("targets", [TWO, targets_of([], [])], ids=["objects", "no object"])
def test_all_that_a_decoder_says_learns(task, targets, with_hints):
    denoising_queries = task.denoising_queries(TWO, KEYS) if with_hints else None
    guesses = guesses_for(targets, denoising_queries)
    loss = task.loss(guesses, TWO if with_hints else targets)
    loss.backward()
    assert torch.isfinite(loss)
    logits = [guesses.proposed_logits, guesses.logits] + ([guesses.denoised_logits] if with_hints else [])
    assert all(torch.isfinite(part.grad).all() and part.grad.abs().sum() > 0 for part in logits)


def test_hints_that_lead_back_cost_nothing_and_padding_neither(task):
    from vitrail.tasks.detect.box_loss import hinted_loss

    objects = TWO.shape[1]
    logits = torch.full((2, 3, 2 * objects, 3), -12.0)
    boxes = torch.rand(2, 3, 2 * objects, 4, generator=generator())
    for j in range(objects):
        logits[0, :, j, int(TWO[0, j, 0])] = 12.0
        boxes[0, :, j] = TWO[0, j, 1:]
    logits[1] = 12.0  # padding, of which nothing is wanted
    assert hinted_loss(logits, boxes, TWO) < 1e-3
    logits[0, :, objects:] = 12.0  # the ones farther off are to be rejected
    assert hinted_loss(logits, boxes, TWO) > 1


def test_mixed_images_are_refused(task):
    mix = Mix(torch.tensor([1, 0]), torch.tensor([0.5, 0.5]))
    with pytest.raises(VitrailError, match="mixup and cutmix do not go with the task detect"):
        task.loss(outputs_of(TWO), TWO, mix=mix)


# ---- hints


def test_hints_of_an_image_are_a_function_of_its_targets_and_key(task):
    twice, keys = torch.cat([TWO[:1], TWO]), torch.tensor([9, 7, 8], dtype=torch.int32)
    one, other = task.denoising_queries(TWO, keys[1:]), task.denoising_queries(twice, keys)
    assert torch.equal(one, other[1:])
    assert not torch.equal(other[0], other[1])
    assert task.denoising_queries(targets_of([], []), KEYS) is None
    assert task.denoising_queries(torch.zeros(2, 0, 5), KEYS) is None


def test_hints_lie_beside_their_objects_and_inside_of_the_picture(task):
    from vitrail.tasks.detect.box_geometry import iou, to_corners

    denoising_queries = task.denoising_queries(TWO, KEYS)
    groups, each = denoising_queries.shape[1:3]
    assert each == 2 * TWO.shape[1] and 2 * groups * TWO.shape[1] <= 110
    corners = to_corners(denoising_queries[..., 1:])
    assert ((corners >= -0.01) & (corners <= 1.01)).all()
    assert (denoising_queries[1, ..., 0] == -1).all()
    overlap = iou(corners[0], to_corners(TWO[0, :, 1:]).repeat(2, 1))
    near, far = overlap[:, :2].mean(), overlap[:, 2:].mean()
    assert near > 0.5 > far


# ---- answers


def test_own_pixels_of_a_padded_picture(task):
    """A picture of 200 x 100 px stands in the middle of an input of 64 x 64, 64 wide and 32 high."""
    frame = Letterbox(own=(100, 200), inside=(16, 0, 48, 64), input=(64, 64))
    outputs = outputs_of(targets_of([[1, 0.5, 0.5, 0.25, 0.25]]))
    (found,) = task.decode(outputs, [frame])
    label, score, *box, query = found[0].tolist()
    assert label == 1 and score > 0.99 and query == 0
    assert box == pytest.approx([75, 25, 125, 75])


def test_boxes_are_cut_at_the_edges_and_those_outside_left_out(task):
    frame = Letterbox(own=(100, 200), inside=(16, 0, 48, 64), input=(64, 64))
    outputs = outputs_of(targets_of([[0, 0.0, 0.5, 0.5, 2.0], [1, 0.5, 0.05, 0.2, 0.1]]), queries=2)
    (found,) = task.decode(outputs, [frame])
    assert (found[:, 0] == 0).sum() == 1 and found[0, 2:6].tolist() == pytest.approx([0, 0, 50, 100])
    assert not ((found[:, 0] == 1) & (found[:, 1] > 0.5)).any()


def test_an_object_said_twice_is_told_once(task):
    twice = targets_of([[1, 0.5, 0.5, 0.4, 0.4], [1, 0.51, 0.5, 0.4, 0.4], [0, 0.5, 0.5, 0.4, 0.4]])
    (found,) = task.decode(outputs_of(twice), [Letterbox.whole((50, 60))])
    assert found[found[:, 1] > 0.5, 0].tolist() == [1.0, 0.0]
    (found,) = task.decode(outputs_of(twice, no_object=True), [Letterbox.whole((50, 60))])  # YOLOS does so itself
    assert (found[:, 1] > 0.5).sum() == 3


@pytest.mark.parametrize("no_object", [False, True], ids=["sigmoid", "softmax"])
def test_best_first_and_at_most_300(task, no_object):
    outputs = torch.randn(2, 400, 3 + no_object + 4, generator=generator())
    outputs[..., -4:-2] = outputs[..., -4:-2].sigmoid()
    outputs[..., -2:] = 0.02
    for found in task.decode(outputs, [Letterbox.whole((50, 60))] * 2):
        assert 250 < len(found) <= MOST
        assert (found[:-1, 1] >= found[1:, 1]).all() and (found[:, 0] < 3).all()


def test_an_answer_in_words_and_rows(task):
    found = [[0, 0.9, 1, 2, 30, 40, 3], [1, 0.6, 5, 5, 9, 9.5, 8], [0, 0.1, 0, 0, 5, 5, 1], [0, 0.01, 0, 0, 5, 5, 2]]
    (answer,) = task.answer([torch.tensor(found)])
    assert [one["label"] for one in answer["objects"]] == ["cell", "platelet", "cell"]
    assert answer["objects"][1] == {"label": "platelet", "score": 0.6, "box": [5.0, 5.0, 9.0, 9.5], "query": 8}
    assert task.words(answer) == "1 cell, 1 platelet (best 0.90)"
    row = task.row(answer)
    assert row == {"objects": 2, "labels": "cell|platelet", "scores": "0.9|0.6", "boxes": "1 2 30 40|5 5 9 9.5"}
    assert list(row) == task.columns()
    json.dumps(answer)
    assert task.words(task.answer([torch.zeros(0, 7)])[0]) == "nothing found"


def test_pictures_have_boxes_in_them(task):
    image = np.full((200, 300, 3), 255, np.uint8)
    (answer,) = task.answer([torch.tensor([[0, 0.9, 50, 60, 150, 160, 0], [1, 0.8, 0, 0, 300, 200.0, 1]])])
    picture = task.pictures(answer, image)[".jpg"]
    drawn = np.asarray(picture)
    assert drawn.shape == image.shape and (image == 255).all()  # what was given stays as it is
    assert (drawn[100, 50] != 255).any() and (drawn[110, 100] == 255).all()
    assert (drawn[0, 200] != 255).any()


def test_coco_json_is_what_other_tools_read(task, tmp_path):
    from faster_coco_eval import COCO

    answers = task.answer([torch.tensor([[1, 0.75, 5, 6, 15, 26.0, 4]]), torch.zeros(0, 7)])
    records = [task.record(answer, f"{i}.jpg", (40, 60)) for i, answer in enumerate(answers)]
    ((name, text),) = task.files(records).items()
    (tmp_path / name).write_text(text)
    read = COCO(str(tmp_path / name))
    (found,) = read.loadAnns(read.getAnnIds(imgIds=[1]))
    assert found["bbox"] == [5, 6, 10, 20] and found["score"] == 0.75
    assert read.loadCats([found["category_id"]])[0]["name"] == "platelet"
    assert read.loadImgs([2])[0]["file_name"] == "1.jpg" and not read.getAnnIds(imgIds=[2])


def test_outputs_that_are_no_numbers_or_of_another_shape(task):
    with pytest.raises(NotFinite, match="not finite"):
        task.decode(torch.full((1, 4, 7), math.nan), [Letterbox.whole((8, 8))])
    with pytest.raises(VitrailError, match="3 labels need"):
        task.decode(torch.zeros(1, 4, 12), [Letterbox.whole((8, 8))])


# ---- measuring


def scene(images=12, seed=0, crowd=False):
    """Truths, and detections that mostly hit, sometimes miss, are doubled, or have another class."""
    rng = np.random.default_rng(seed)
    truths, found = [], []
    for _ in range(images):
        count = rng.integers(0, 8)
        corner, side = rng.uniform(0, 150, (count, 2)), rng.uniform(5, 60, (count, 2))
        label = rng.integers(0, 3, count)
        rows = np.column_stack([label, corner, corner + side, np.zeros(count)])
        if crowd and count:
            rows[0, 5] = 1
        truths.append(torch.tensor(rows, dtype=torch.float32).reshape(-1, 6))
        near = rows[rng.random(count) < 0.8]
        again = near[rng.random(len(near)) < 0.3]
        made = np.concatenate([near, again, np.column_stack([rng.integers(0, 3, 3), rng.uniform(0, 200, (3, 5))])])
        made[:, 3:5] = np.maximum(made[:, 3:5], made[:, 1:3] + 1)
        moved = made[:, 1:5] + rng.normal(0, 3, (len(made), 4))
        moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
        score = rng.uniform(0, 1, len(made)).round(2)  # some are equal
        order = np.argsort(-score, kind="stable")
        rows = np.column_stack([made[:, 0], score, moved])[order]
        found.append(torch.tensor(rows, dtype=torch.float32))
    return found, truths


def kept_of(task, found, truths):
    return torch.stack([task.compare(a, b) for a, b in zip(found, truths, strict=True)]), task.encode(truths)


@pytest.mark.parametrize("crowd", [False, True], ids=["no crowds", "crowds"])
@pytest.mark.parametrize("seed", range(4))
def test_our_matches_give_coco_s_ap50(task, seed, crowd):
    found, truths = scene(seed=seed, crowd=crowd)
    detections, encoded = (part.numpy() for part in kept_of(task, found, truths))
    detections = detections.reshape(len(found), -1, 6)
    told = BoxMetrics(detections, encoded, 3)
    ours = told.ap50(np.ones((len(found), 1)))["AP50"][0]
    theirs = measure_precision(detections, encoded, 3).ap50
    assert ours == pytest.approx(np.nanmean(theirs), abs=1e-6)


def test_a_perfect_and_a_blind_model(task):
    _, truths = scene()
    perfect = [torch.cat([truth[:, :1], torch.full((len(truth), 1), 0.9), truth[:, 1:5]], dim=1) for truth in truths]
    results = task.evaluate(*kept_of(task, perfect, truths), bootstrap=20)
    assert results["metrics"] == pytest.approx(
        {"AP50": 1.0, "AP": 1.0, "AP75": 1.0, "precision": 1.0, "recall": 1.0, "f1": 1.0}
    )
    assert results["worst"] == [] and results["intervals"]["AP50"] == pytest.approx([1, 1])
    blind = task.evaluate(*kept_of(task, [torch.zeros(0, 6)] * len(truths), truths), bootstrap=20)
    assert set(blind["metrics"].values()) == {0.0}
    assert blind["worst"][0]["missed"] == max(len(truth) for truth in truths)


def test_evaluate_gives_all_that_a_report_needs(task):
    kept, encoded = kept_of(task, *scene(images=30))
    task.calibrate(kept, encoded)
    results = task.evaluate(kept, encoded, bootstrap=50)
    assert results["task"] == "detect" and results["images"] == 30 and results["main_metric"] == "AP50"
    low, high = results["intervals"]["AP50"]
    assert low < results["metrics"]["AP50"] < high
    assert [row["label"] for row in results["per_label"]] == LABELS
    assert sum(row["support"] for row in results["per_label"]) == results["counts"]["objects"]
    assert all(len(curve["precision"]) == 101 for curve in results["curves"])
    faults = [row["fault"] for row in results["worst"]]
    assert faults == sorted(faults, reverse=True) and faults[0] > 0
    json.dumps(results, allow_nan=False)
    quick = task.quick_metrics(kept, encoded)
    assert quick == {name: pytest.approx(results["metrics"][name]) for name in ("AP50", "AP")}


def test_the_threshold_is_where_f1_is_best_and_is_remembered(task):
    kept, encoded = kept_of(task, *scene(images=30))
    task.calibrate(kept, encoded)
    best = task.evaluate(kept, encoded, bootstrap=0)["metrics"]["f1"]
    for threshold in np.linspace(0.05, 0.95, 19):
        other = Detect(LABELS)
        other.load_state_dict({"threshold": threshold})
        assert other.evaluate(kept, encoded, bootstrap=0)["metrics"]["f1"] <= best + 1e-9
    again = Detect(LABELS)
    again.load_state_dict(task.state_dict())
    assert again.threshold == task.threshold


def test_a_class_without_objects_is_not_measured(task):
    truths = [torch.tensor([[0, 10, 10, 20, 20, 0.0]])]
    found = [torch.tensor([[0, 0.9, 10, 10, 20, 20.0], [2, 0.8, 0, 0, 5, 5]])]
    results = task.evaluate(*kept_of(task, found, truths), bootstrap=5)
    assert results["metrics"]["AP50"] == pytest.approx(1.0)
    assert results["per_label"][1]["AP50"] is None and results["curves"][1]["precision"] is None
    assert results["per_label"][2]["false_alarms"] == 1


def test_images_without_objects_only(task):
    nothing = [torch.zeros(0, 6)] * 2
    results = task.evaluate(*kept_of(task, nothing, nothing), bootstrap=5)
    assert results["metrics"]["AP50"] == 0.0
    found = [torch.tensor([[0, 0.9, 10, 10, 20, 20.0]]), torch.zeros(0, 6)]
    assert task.evaluate(*kept_of(task, found, nothing), bootstrap=5)["counts"]["false_alarms"] == 1


def test_300_objects_are_counted(task):
    """COCO's usual limit of 100 detections of a class would call two thirds of them missed."""
    steps = np.arange(300)
    left, top = 20.0 * (steps % 20), 20.0 * (steps // 20)
    truth = torch.tensor(np.column_stack([0 * steps, left, top, left + 10, top + 10, 0 * steps]), dtype=torch.float32)
    found = torch.cat([truth[:, :1], torch.linspace(0.9, 0.5, 300)[:, None], truth[:, 1:5]], dim=1)
    assert task.quick_metrics(*kept_of(task, [found], [truth]))["AP50"] == pytest.approx(1.0)


def test_a_hit_takes_the_best_free_object():
    truth = np.array([[0, 0, 0, 10, 10, 0], [0, 2, 0, 12, 10, 0]], float)
    found = np.array([[0, 0.9, 2, 0, 12, 10], [0, 0.8, 1, 0, 11, 10], [0, 0.7, 0, 0, 10, 10], [1, 0.6, 0, 0, 10, 10]])
    hit = hits(found, truth)
    assert hit.object_of.tolist() == [1, 0, -1, -1] and hit.detection_of.tolist() == [1, 0]


def test_nobody_is_blamed_for_finding_one_of_a_crowd():
    truth = np.array([[0, 0, 0, 100, 100, 1]], float)
    assert hits(np.array([[0, 0.9, 10, 10, 20, 20]]), truth).object_of.tolist() == [-2]


def test_images_that_count_twice_are_as_if_there_were_two():
    scores, right = np.array([0.9, 0.8, 0.7]), np.array([True, False, True])
    images, objects = np.array([0, 1, 1]), np.array([1, 2])
    twice = Ranked(np.tile(scores, 2), np.tile(right, 2), np.append(images, images + 2), np.tile(objects, 2))
    weighted = Ranked(scores, right, images, objects).average_precision(np.full((2, 1), 2.0))
    assert weighted == pytest.approx(twice.average_precision(np.ones((4, 1))))


def test_what_is_refused(task):
    with pytest.raises(VitrailError, match="no image to measure"):
        task.evaluate(torch.zeros(0, MOST * 6), torch.zeros(0, 0, 6))
    with pytest.raises(VitrailError, match="2 outputs for 1 targets"):
        task.evaluate(torch.zeros(2, MOST * 6), torch.zeros(1, 0, 6))
    with pytest.raises(VitrailError, match="detection has none"):
        Detect(LABELS, class_weights="sqrt")
    assert isinstance(task_for("detect", LABELS), Detect)
