"""A class for every pixel: loss by hand and against torch, metrics against scikit-learn and scikit-image, odd sizes."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from PIL import Image
from skimage.morphology import dilation, footprint_rectangle
from torch.nn import functional as F

from vitrail.errors import VitrailError
from vitrail.tasks.letterbox import Letterbox
from vitrail.tasks.registry import task_for
from vitrail.tasks.segment.boundaries import boundary_counts, dilated, tolerance
from vitrail.tasks.segment.dice import dice_loss
from vitrail.tasks.segment.segment import Segment
from vitrail.tasks.shared import resampling
from vitrail.tasks.task import Mix
from vitrail.tasks.task_answers import NotFinite

IGNORE = 255


def segment(classes=4, class_weights="none"):
    return Segment([f"c{i}" for i in range(classes)], class_weights)


def masks(seed, count=6, classes=4, unknown=0.1, size=(23, 31)):
    """Truths of blocks, and answers that are right in most places."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        truth = rng.integers(0, classes, (5, 6)).repeat(8, 0).repeat(8, 1)[: size[0], : size[1]].astype(np.uint8)
        answer = np.where(rng.random(size) < 0.8, truth, rng.integers(0, classes, size)).astype(np.uint8)
        truth[rng.random(size) < unknown] = IGNORE
        found.append((torch.from_numpy(answer), torch.from_numpy(truth)))
    return found


def kept(task, pairs):
    return torch.stack([task.compare(answer, truth) for answer, truth in pairs])


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---- loss


def test_loss_by_hand():
    """p = (3/4, 1/4) everywhere, half of the pixels of each class.

    Cross-entropy: (-log 3/4 - log 1/4) / 2. Dice: 1 - 2 * 3/4 * 2 / (3 + 2) and 1 - 2 * 1/4 * 2 / (1 + 2).
    """
    logits = torch.tensor([math.log(3.0), 0.0]).view(1, 2, 1, 1).expand(1, 2, 2, 2)
    loss = segment(2).loss(logits, torch.tensor([[[0, 0], [1, 1]]]))
    entropy = -(math.log(0.75) + math.log(0.25)) / 2
    dice = ((1 - 3 / 5) + (1 - 1 / 3)) / 2
    assert loss.item() == pytest.approx(entropy + dice, rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_torchs(smoothing):
    logits, targets = random(2, 4, 9, 7), torch.randint(0, 4, (2, 9, 7))
    targets[0, :3] = IGNORE
    task = segment()
    known = targets != IGNORE
    ours = task.loss(logits, targets, smoothing=smoothing)
    dice = dice_loss(logits.softmax(1), torch.where(known, targets, 0), known)
    theirs = F.cross_entropy(logits, targets, ignore_index=IGNORE, label_smoothing=smoothing)
    torch.testing.assert_close(ours - dice, theirs)


def test_outputs_are_enlarged_to_small_targets():
    logits, targets = random(2, 4, 5, 6), torch.randint(0, 4, (2, 19, 23))
    large = F.interpolate(logits, size=(19, 23), mode="bilinear", align_corners=False)
    torch.testing.assert_close(segment().loss(logits, targets), segment().loss(large, targets))


def test_at_half_the_resolution_the_loss_is_about_that_of_every_pixel():
    truth = torch.zeros(1, 320, 320, dtype=torch.int64)
    truth[:, 50:200, 100:250], truth[:, 225:, :150] = 1, 2
    logits = random(1, 4, 160, 160)
    every = F.interpolate(logits, size=(320, 320), mode="nearest")
    assert segment().loss(logits, truth).item() == pytest.approx(segment().loss(every, truth).item(), rel=0.02)


def test_unknown_pixels_do_not_count():
    """Neither what the model says there nor how many they are."""
    targets = torch.randint(0, 4, (2, 8, 8))
    targets[:, :, 5:] = IGNORE
    logits = random(2, 4, 8, 8).requires_grad_()
    loss = segment().loss(logits, targets)
    loss.backward()
    assert (logits.grad[..., 5:] == 0).all()
    assert (logits.grad[..., :5] != 0).any()
    torch.testing.assert_close(loss, segment().loss(logits[..., :5], targets[..., :5]))


@pytest.mark.parametrize("class_weights", ["none", "sqrt", "inverse"])
def test_masks_of_which_nothing_is_known(class_weights):
    task = segment(4, class_weights)
    task.fit([torch.full((4, 4), IGNORE, dtype=torch.uint8)])
    logits = random(2, 4, 4, 4).requires_grad_()
    loss = task.loss(logits, torch.full((2, 8, 8), IGNORE), smoothing=0.1)
    loss.backward()
    assert loss.item() == 0
    assert (logits.grad == 0).all()


def test_dice_is_over_the_classes_that_occur():
    perfect = F.one_hot(torch.tensor([[[0, 2], [2, 2]]]), 5).permute(0, 3, 1, 2).float()
    targets = torch.tensor([[[0, 2], [2, 2]]])
    assert dice_loss(perfect, targets, targets >= 0).item() == pytest.approx(0)
    assert dice_loss(perfect, torch.full_like(targets, 1), targets >= 0).item() == pytest.approx(1)


def test_bfloat16_outputs_have_a_float32_loss():
    loss = segment().loss(random(2, 4, 4, 4).bfloat16(), torch.randint(0, 4, (2, 8, 8)))
    assert loss.dtype == torch.float32


def test_rare_classes_weigh_more():
    truth = torch.zeros(10, 10, dtype=torch.uint8)
    truth[0, :4] = 1
    truth[5] = IGNORE
    for rule, power in (("sqrt", 0.5), ("inverse", 1.0)):
        task = segment(3, rule)
        task.fit([truth])
        assert task.pixels == [86, 4, 0]
        weights = task.weights.double()
        assert weights[1] / weights[0] == pytest.approx((86 / 4) ** power)
        assert (86 * weights[0] + 4 * weights[1]) / 90 == pytest.approx(1)  # a pixel weighs 1 on average
        again = segment(3, rule)
        again.load_state_dict(json.loads(json.dumps(task.state_dict())))
        assert torch.equal(again.weights, task.weights)


def test_weights_are_those_of_torch():
    task = segment(4, "inverse")
    task.fit([torch.tensor([[0, 0, 0, 1], [1, 2, 3, 0]], dtype=torch.uint8)])
    logits, targets = random(1, 4, 6, 6), torch.randint(0, 4, (1, 6, 6))
    plain = segment(4)
    dice = plain.loss(logits, targets) - F.cross_entropy(logits, targets)
    theirs = F.cross_entropy(logits, targets, weight=task.weights, reduction="sum") / targets.numel()
    torch.testing.assert_close(task.loss(logits, targets) - dice, theirs)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(VitrailError, match="mixup and cutmix do not go"):
        mix = Mix(torch.tensor([0]), torch.tensor([0.5]))
        segment().loss(random(1, 4, 4, 4), torch.zeros(1, 4, 4, dtype=torch.int64), mix=mix)
    with pytest.raises(RuntimeError, match="call fit"):
        segment(4, "sqrt").loss(random(1, 4, 4, 4), torch.zeros(1, 4, 4, dtype=torch.int64))
    with pytest.raises(VitrailError, match="class number 9, 4 labels have 0 to 3"):
        segment().fit([torch.tensor([[9]], dtype=torch.uint8)])
    with pytest.raises(VitrailError, match="at most 255 classes, not 256"):
        segment(256)
    with pytest.raises(VitrailError, match="choose one of"):
        segment(4, "cubic")
    with pytest.raises(VitrailError, match="counts 2 labels, this task has 4"):
        segment().load_state_dict({"pixels": [1, 2]})


# ---- decoding


@pytest.mark.parametrize("own", [(1, 1), (7, 5), (40, 48), (97, 131), (1, 300)], ids=str)
def test_masks_have_the_pictures_own_size(own):
    frame = Letterbox(own, (0, 0, 40, 48), (40, 48))
    mask = segment().decode(random(1, 4, 20, 24), [frame])[0]
    assert mask.shape == own
    assert mask.dtype == torch.uint8
    assert mask.max() < 4


@pytest.mark.parametrize("own", [(40, 48), (97, 131), (80, 96)], ids=str)
def test_decoding_is_bilinear(own):
    logits = random(1, 4, 20, 24)
    large = F.interpolate(logits, size=own, mode="bilinear", align_corners=False)
    mask = segment().decode(logits, [Letterbox(own, (0, 0, 40, 48), (40, 48))])[0]
    assert (mask == large.argmax(1)[0]).float().mean() > 0.999  # but for ties of rounding


def test_what_lies_around_the_picture_is_cut_off():
    """The picture stands in the middle of the input; class 1 is all that surrounds it."""
    logits = torch.zeros(1, 2, 32, 32)
    logits[:, 1] = 1
    logits[:, :, 8:24, 4:28] = torch.tensor([2.0, 0.0]).view(1, 2, 1, 1)
    mask = segment(2).decode(logits, [Letterbox((100, 150), (16, 8, 48, 56), (64, 64))])[0]
    assert (mask[5:-5, 5:-5] == 0).all()


def test_strips_are_the_whole(monkeypatch):
    logits, frame = random(5, 12, 14), Letterbox((301, 200), (0, 0, 48, 56), (48, 56))
    whole = resampling.classes_at(logits, frame)
    monkeypatch.setattr(resampling, "CELLS", 5 * 200 * 7)
    assert torch.equal(resampling.classes_at(logits, frame), whole)


def test_outputs_that_are_no_numbers_are_refused():
    logits = random(2, 4, 4, 4)
    logits[1, 0, 0, 0] = float("nan")
    with pytest.raises(NotFinite, match="not finite for 1 of 2"):
        segment().decode(logits, [Letterbox.whole((8, 8))] * 2)


# ---- metrics


def test_a_class_that_is_answered_but_nowhere_true_is_named():
    task = segment()
    truth, answer = torch.zeros(4, 4, dtype=torch.uint8), torch.zeros(4, 4, dtype=torch.uint8)
    answer[0, :3] = 2
    results = task.evaluate(kept(task, [(answer, truth)]), task.encode([truth]), bootstrap=0)
    label = task.labels[2]
    assert results["notes"] == [f"not in mIoU: class {label} was answered on 3 pixels but is nowhere true"]
    assert results["metrics"]["mIoU"] == 13 / 16  # of the one class that is true
    assert task.evaluate(kept(task, [(truth, truth)]), task.encode([truth]), bootstrap=0)["notes"] == []


@pytest.mark.parametrize("seed", range(3))
def test_metrics_are_those_of_scikit_learn(seed):
    pairs = masks(seed)
    task = segment()
    results = task.evaluate(kept(task, pairs), task.encode(pairs), bootstrap=0)
    answer = np.concatenate([a.numpy().ravel() for a, _ in pairs])
    truth = np.concatenate([t.numpy().ravel() for _, t in pairs])
    known = truth != IGNORE
    answer, truth = answer[known], truth[known]
    assert results["metrics"]["mIoU"] == pytest.approx(sk.jaccard_score(truth, answer, average="macro"))
    assert results["metrics"]["pixel_accuracy"] == pytest.approx(sk.accuracy_score(truth, answer))
    assert results["pixel_confusion"] == sk.confusion_matrix(truth, answer, labels=range(4)).tolist()
    each = sk.jaccard_score(truth, answer, average=None)
    for row, iou in zip(results["per_label"], each, strict=True):
        assert row["iou"] == pytest.approx(iou)
    precision, recall, _, support = sk.precision_recall_fscore_support(truth, answer)
    assert [row["precision"] for row in results["per_label"]] == pytest.approx(precision)
    assert [row["recall"] for row in results["per_label"]] == pytest.approx(recall)
    assert [row["pixels"] for row in results["per_label"]] == support.tolist()
    quick = task.quick_metrics(kept(task, pairs), task.encode(pairs))
    assert quick == {name: results["metrics"][name] for name in quick}
    assert task.main_metric in quick


def test_classes_that_do_not_occur_are_left_out_of_means():
    task = segment(5)
    truth = torch.tensor([[0, 0, 1, 1]], dtype=torch.uint8)
    results = task.evaluate(kept(task, [(truth, truth)]), torch.zeros(1, 0), bootstrap=10)
    assert results["metrics"]["mIoU"] == 1
    assert results["metrics"]["boundary_f1"] == 1
    assert [row["iou"] for row in results["per_label"]] == [1, 1, None, None, None]
    assert results["worst"] == []


def test_a_class_that_is_only_answered_costs_the_others():
    task = segment(3)
    truth = torch.tensor([[0, 0, 1, 1]], dtype=torch.uint8)
    answer = torch.tensor([[0, 2, 1, 1]], dtype=torch.uint8)
    results = task.evaluate(kept(task, [(answer, truth)]), torch.zeros(1, 0), bootstrap=0)
    assert results["metrics"]["mIoU"] == pytest.approx((0.5 + 1) / 2)


def test_evaluation_without_a_known_pixel():
    task = segment()
    nothing = torch.full((5, 5), IGNORE, dtype=torch.uint8)
    pairs = [(torch.zeros(5, 5, dtype=torch.uint8), nothing)]
    results = task.evaluate(kept(task, pairs), torch.zeros(1, 0), bootstrap=20)
    assert results["metrics"] == {"mIoU": 0, "pixel_accuracy": 0, "boundary_f1": 0}
    assert results["worst"] == []
    json.dumps(results, allow_nan=False)


def test_intervals_hold_the_value_and_are_of_images():
    pairs = masks(1, count=30)
    task = segment()
    results = task.evaluate(kept(task, pairs), task.encode(pairs), bootstrap=200)
    for name, value in results["metrics"].items():
        low, high = results["intervals"][name]
        assert low < value < high
    row = results["per_label"][0]
    assert row["iou_interval"][0] < row["iou"] < row["iou_interval"][1]
    json.dumps(results, allow_nan=False)


def test_worst_are_the_lowest_and_say_what_went_wrong():
    task = Segment(["road", "pavement", "sky"])
    truth = torch.zeros(10, 10, dtype=torch.uint8)
    truth[:3] = 2
    right, some, all_wrong = truth.clone(), truth.clone(), torch.ones_like(truth)
    some[3:6] = 1
    pairs = [(right, truth), (some, truth), (all_wrong, truth)]
    results = task.evaluate(kept(task, pairs), torch.zeros(3, 0), bootstrap=0)
    assert [one["index"] for one in results["worst"]] == [2, 1]
    second = results["worst"][1]
    assert second["truth"] == "road 70.0 %, sky 30.0 %"
    assert second["answer"] == "road 40.0 %, pavement 30.0 %, sky 30.0 %"
    assert second["remark"] == "IoU 0.79: road taken for pavement in 43 % of its pixels"
    assert results["confused_pairs"][0] == {"truth": "road", "answer": "pavement", "count": 100, "share": 100 / 210}


def test_masks_of_another_size_are_refused():
    with pytest.raises(VitrailError, match="the answer has 4 x 5 pixels, the mask 5 x 4"):
        segment().compare(torch.zeros(4, 5, dtype=torch.uint8), torch.zeros(5, 4, dtype=torch.uint8))
    with pytest.raises(VitrailError, match=r"need \(images, 32\)"):
        segment().quick_metrics(torch.zeros(2, 5), torch.zeros(2, 0))
    with pytest.raises(VitrailError, match="no image to measure"):
        segment().evaluate(torch.zeros(0, 32), torch.zeros(0, 0))


# ---- boundaries


@pytest.mark.parametrize("reach", [1, 2, 3, 4, 7, 30])
def test_dilation_is_scikit_images(reach):
    mask = np.random.default_rng(reach).random((20, 33)) > 0.98
    expected = dilation(mask, footprint_rectangle((2 * reach + 1, 2 * reach + 1)))
    np.testing.assert_array_equal(dilated(mask, reach), expected)


def test_tolerance_is_a_share_of_the_diagonal():
    assert tolerance(20, 30) == 1
    assert tolerance(360, 480) == 4  # 600 * 0.0075 = 4.5, to the even
    assert tolerance(3000, 4000) == 38


def square(top, left, size=(100, 100), side=40):
    mask = np.zeros(size, np.uint8)
    mask[top : top + side, left : left + side] = 1
    return mask


def test_boundaries_within_the_tolerance_are_met():
    truth = square(20, 20)
    for shift, met in ((0, 1.0), (1, 1.0), (3, 0.5)):  # a shift along rows leaves half of the outline where it was
        counts = boundary_counts(square(20, 20 + shift), truth, 2, IGNORE)
        answered, hits, real, found = counts[1]
        assert answered == real == 4 * 40 - 4
        assert hits == found
        assert hits / answered == pytest.approx(met, abs=0.06)


def test_unknown_pixels_are_no_boundary():
    truth = square(20, 20)
    truth[:, 60:] = IGNORE  # the square's right side lies at what is unknown
    counts = boundary_counts(square(20, 20), truth, 2, IGNORE)
    assert counts[1, 2] == 40 + 40 + 40 - 2
    assert counts[1, 0] == counts[1, 1] == counts[1, 2]


def test_one_class_all_over_has_no_boundary():
    assert (boundary_counts(np.zeros((9, 9), np.uint8), np.zeros((9, 9), np.uint8), 3, IGNORE) == 0).all()


def test_a_class_that_was_missed_has_no_boundary_f1():
    task = segment(2)
    truth, nothing = torch.from_numpy(square(20, 20)), torch.zeros(100, 100, dtype=torch.uint8)
    results = task.evaluate(kept(task, [(nothing, truth)]), torch.zeros(1, 0), bootstrap=0)
    assert [row["boundary_f1"] for row in results["per_label"]] == [0, 0]


# ---- answers


def test_answers_are_areas_and_a_mask():
    task = Segment(["road", "car", "sky"])
    mask = torch.tensor([[2, 2, 2, 0], [2, 2, 0, 0]], dtype=torch.uint8)
    answer = task.answer([mask])[0]
    assert answer["areas"] == [
        {"label": "sky", "share": 0.625, "pixels": 5},
        {"label": "road", "share": 0.375, "pixels": 3},
    ]
    np.testing.assert_array_equal(answer["mask"], mask.numpy())
    assert task.words(answer) == "sky 62.5 %, road 37.5 %"
    assert task.row(answer) == {"road": 0.375, "car": 0.0, "sky": 0.625}
    assert list(task.row(answer)) == task.columns()


def test_many_areas_are_cut_short_in_words():
    task = segment(7)
    answer = task.answer([torch.arange(7, dtype=torch.uint8)[None]])[0]
    assert task.words(answer).endswith("c3 14.3 % and 3 more")


def test_pictures_and_files_that_predict_writes():
    task = Segment(["background", "disc"])
    mask = torch.zeros(12, 9, dtype=torch.uint8)
    mask[3:6, 2:5] = 1
    answer = task.answer([mask])[0]
    pictures = task.pictures(answer, np.full((12, 9, 3), 90, np.uint8))
    assert set(pictures) == {".png", ".overlay.jpg"}
    assert {picture.size for picture in pictures.values()} == {(9, 12)}
    buffer = io.BytesIO()
    pictures[".png"].save(buffer, "PNG")
    np.testing.assert_array_equal(np.asarray(Image.open(buffer)), mask.numpy())
    files = task.files([task.record(answer, "a.jpg", (12, 9))])
    told = json.loads(files["areas.json"])
    assert told["images"][0]["file"] == "a.jpg"
    assert told["images"][0]["areas"][1] == {"label": "disc", "share": 9 / 108, "pixels": 9}
    assert [one["label"] for one in told["classes"]] == ["background", "disc"]


def test_the_task_is_found_by_name():
    task = task_for("segment", ["a", "b"], "sqrt")
    assert isinstance(task, Segment)
    assert task.dense
    assert task.show("mIoU", 0.61234) == "0.6123"


def test_the_score_that_probabilities_lead_to_expect_by_hand() -> None:
    """Three pixels: sure of the first class, undecided, sure of the second. The undecided one moves to the second."""
    probabilities = torch.tensor([[0.9, 0.51, 0.1], [0.1, 0.49, 0.9]]).reshape(1, 2, 1, 3)
    reference, moved = probabilities.log(), torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]).reshape(1, 2, 1, 3)
    task = Segment(["sky", "road"])
    own = (1.41 / (1.51 + 2 - 1.41) + 0.9 / (1.49 + 1 - 0.9)) / 2
    assert task.expected_score([reference], [reference]) == pytest.approx(own)
    other = (0.9 / (1.51 + 1 - 0.9) + 1.39 / (1.49 + 2 - 1.39)) / 2
    assert task.expected_score([reference], [moved]) == pytest.approx(other)
    assert own - other < 0.01  # while of a mask that is taken for the truth half would be lost
