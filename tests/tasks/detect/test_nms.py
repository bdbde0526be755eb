"""Which boxes are one object: the overlap is measured, kept in the model file, and told."""

from __future__ import annotations

import json

import pytest
import torch

import vitrail
from tests.training.running import TINY
from vitrail.commands.make_data import make_data
from vitrail.tasks.detect.box_report import box_section
from vitrail.tasks.detect.detect import Detect
from vitrail.tasks.detect.nms import NEVER, USUAL, best_nms_iou, suppress
from vitrail.tasks.letterbox import Letterbox
from vitrail.training.settings import Settings
from vitrail.weights.load import load

FRAME = Letterbox.whole((100, 100))


def outputs_of(rows: list[tuple[float, list[float]]]) -> torch.Tensor:
    """(1, queries, 5) of one class from scores in logits and boxes in centre form."""
    return torch.tensor([[[score, *box] for score, box in rows]])


def said_twice(images: int = 6) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Each object is said by two boxes that overlap by 0.6, the worse one with a score above all others' first."""
    outputs, truths = [], []
    for number in range(images):
        first, second = [0.3, 0.3, 0.2, 0.2], [0.35, 0.3, 0.2, 0.2]  # IoU 0.15 / 0.25 = 0.6
        sure = 3.0 - 0.1 * number
        outputs.append(outputs_of([(sure, first), (sure - 0.05, second), (-1.0, [0.7, 0.7, 0.2, 0.2])]))
        truths.append(torch.tensor([[0, 20.0, 20, 40, 40, 0], [0, 60, 60, 80, 80, 0]]))
    return outputs, truths


def side_by_side(images: int = 6) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Two objects that overlap by 0.75, each said once."""
    first, second = [0.3, 0.3, 0.35, 0.2], [0.35, 0.3, 0.35, 0.2]
    truth = torch.tensor([[0, 12.5, 20, 47.5, 40, 0], [0, 17.5, 20, 52.5, 40, 0]])
    return [outputs_of([(2.0, first), (1.0, second)])] * images, [truth] * images


def rows_of(task: Detect, outputs: list[torch.Tensor], truths: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    decoded = [task.decode(one, [FRAME])[0] for one in outputs]
    return torch.stack([task.compare(*pair) for pair in zip(decoded, truths, strict=True)]), task.encode(truths)


def test_the_overlap_of_the_best_ap50_is_chosen():
    task = Detect(["cell"])
    rows, truths = rows_of(task.without_decoding_choices(), *said_twice())
    usual = Detect(["cell"])
    before = usual.quick_metrics(*rows_of(usual, *said_twice()))["AP50"]
    chosen = task.choose_decoding(rows, truths)
    assert 0.3 <= task.nms_iou < 0.6
    assert task.quick_metrics(chosen, truths)["AP50"] == pytest.approx(1.0) and before < 0.9
    again, _ = rows_of(task, *said_twice())  # what the model answers from now on
    assert torch.equal(again, chosen)


def test_objects_that_do_overlap_are_all_kept():
    task = Detect(["cell"])
    rows, truths = rows_of(task.without_decoding_choices(), *side_by_side())
    chosen = task.choose_decoding(rows, truths)
    assert task.nms_iou == 0.8  # the nearest to the usual 0.7 of those that are equally good
    assert task.quick_metrics(chosen, truths)["AP50"] == pytest.approx(1.0)


def test_where_nothing_differs_or_can_be_measured_it_stays_usual():
    task = Detect(["cell"])
    alone = torch.tensor([[0, 0.9, 10, 10, 30, 30.0]])
    truth = torch.tensor([[0, 10, 10, 30, 30, 0.0]])
    for found, known in ((alone, truth), (alone, torch.zeros(0, 6)), (torch.zeros(0, 6), truth)):
        rows = task.compare(found, known).reshape(1, -1, 6)
        assert best_nms_iou(rows, task.encode([known]), 1) == USUAL
    assert len(suppress(torch.cat([alone, alone]), NEVER)) == 2 and len(suppress(torch.cat([alone, alone]), 0.8)) == 1


def test_the_choice_is_remembered_and_older_files_keep_theirs():
    task = Detect(["cell"])
    task.choose_decoding(*rows_of(task.without_decoding_choices(), *said_twice()))
    again = Detect(["cell"])
    again.load_state_dict(json.loads(json.dumps(task.state_dict())))
    older = Detect(["cell"])
    older.load_state_dict({"threshold": 0.3})
    outputs = said_twice()[0][0]
    assert [len(one.decode(outputs, [FRAME])[0]) for one in (task, again, older)] == [2, 2, 3]


def test_the_report_tells_it():
    task = Detect(["cell"])
    rows, truths = rows_of(task.without_decoding_choices(), *said_twice())
    assert box_section(task.evaluate(rows, truths, bootstrap=0), [])["suppression"] == ""
    chosen = task.choose_decoding(rows, truths)
    results = task.evaluate(chosen, truths, bootstrap=0)
    assert results["nms_iou"] == task.nms_iou
    assert f"overlap by more than {task.nms_iou:g} (IoU)" in box_section(results, [])["suppression"]


def test_a_run_chooses_it_and_its_file_answers_with_it(tmp_path):
    make_data("shapes", tmp_path / "data", images=60, size=32, task="detect")
    (tmp_path / "tiny.toml").write_text(TINY.format(workers=0, noise=0.0).replace("mixup = 0.2\ncutmix = 1.0\n", ""))
    settings = Settings.read(tmp_path / "tiny.toml").with_values({"model.image_size": 32, "train.epochs": 2.0})
    finished = vitrail.train(tmp_path / "data", tmp_path / "run", task="detect", settings=settings)
    chosen = finished.results["nms_iou"]
    assert chosen is not None and finished.task.nms_iou == chosen
    state = load(tmp_path / "run" / "model.safetensors").provenance["training"]["task"]
    assert state["nms_iou"] == chosen
    result = vitrail.evaluate(tmp_path / "run" / "model.safetensors", tmp_path / "data", bootstrap=0)
    assert result["nms_iou"] == chosen
    assert "chosen on the validation images" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
