"""The page of a run: made from what the tasks measure, complete in itself, and names are never more than text."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitrail.findings import Example, Finding
from vitrail.report.pages.run_page import RunRecord, page
from vitrail.report.sections.curves import kept_of, thinned
from vitrail.tasks.registry import task_for
from vitrail.tasks.shared.labels.confusion import confusion_table
from vitrail.tasks.shared.labels.reliability import wilson
from vitrail.tasks.shared.metric_words import UNKNOWN
from vitrail.visuals.charts import axis

EVIL = "<script>alert(1)</script>"
QUOTED = "\"'><img src=x onerror=alert(2)>"
VOID = {"meta", "img"}


class Reader(HTMLParser):
    """Walks through the page and insists that every element is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(" ".join(data.split()))

    @property
    def text(self) -> str:
        return " ".join(filter(None, self.texts))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def history(metric: str, epochs: int = 3) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in range(1, 10 * epochs + 1):
        rows.append(
            {
                "step": step,
                "epoch": step / 10,
                "seconds": 2.0 * step,
                "loss": 2 / step,
                "lr": 1e-3 / step,
                "images_per_second": 123.0,
            }
        )
        if step % 10 == 0:
            score = {"loss": 1.5 / step, metric: 0.5 + step / 100}
            rows.append(
                {"step": step, "epoch": step / 10, "seconds": 2.0 * step, "validation": score, "best": step < 30}
            )
    return rows


def pictures(folder: Path, count: int) -> list[Path]:
    """Few files for many images: what they show does not matter here."""
    noise = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "a.png")
    return [folder / "a.png"] * count


def record(folder: Path, task: str, labels: list[str], outputs: Tensor, targets: Tensor, **others: Any) -> RunRecord:
    kind = task_for(task, labels)
    values: dict[str, Any] = {
        "name": "run-1",
        "data": "40 images in 3 classes (folders)",
        "model": "width 64, depth 3, 0.2 M parameters",
        "reasons": ["Few images, so a small network.", "And a short training."],
        "part": "validation",
        "results": kind.evaluate(outputs, targets, bootstrap=50),
        "files": pictures(folder, len(targets)),
        "root": folder,
        "history": history(kind.main_metric),
        "findings": [Finding("small", "warning", "2 images are small", "use larger ones", 2, (Example(), Example()))],
        "facts": [("command", "vitrail train photos --seed 3"), ("torch", "2.9.0")],
        "task": kind,
    }
    return RunRecord(**values | others)


def classified(folder: Path, labels: list[str], images: int = 40, **others: Any) -> RunRecord:
    targets = torch.arange(images) % len(labels)
    outputs = random(images, len(labels)) + 2 * torch.nn.functional.one_hot(targets, len(labels))
    return record(folder, "classify", labels, outputs, targets, **others)


def labelled(folder: Path, labels: list[str], **others: Any) -> RunRecord:
    targets = (random(40, len(labels), seed=1) > 0.5).float()
    targets[:, -1] = 0
    return record(folder, "multilabel", labels, random(40, len(labels)) + targets, targets, **others)


def numbered(folder: Path, labels: list[str], images: int = 40, **others: Any) -> RunRecord:
    targets = 10 * random(images, len(labels), seed=1) + 50
    return record(folder, "regress", labels, targets + random(images, len(labels)), targets, **others)


MAKERS = [classified, labelled, numbered]


@pytest.mark.parametrize("make", MAKERS)
def test_names_are_text(tmp_path: Path, make: Any) -> None:
    labels = [EVIL, QUOTED, "ordinary"]
    evil = Finding("odd", "error", EVIL, EVIL, 1, (Example((tmp_path / "a.png",), QUOTED),))
    others = {"name": EVIL, "data": QUOTED, "model": EVIL, "reasons": [EVIL], "facts": [(QUOTED, EVIL)]}
    reader = Reader(page(make(tmp_path, labels, findings=[evil], **others)))
    tags = {tag for tag, _ in reader.tags}
    assert not tags & {"script", "link", "iframe", "object"}
    assert not [attrs for _, attrs in reader.tags if any(name.startswith("on") for name in attrs)]
    assert EVIL in reader.text and QUOTED in reader.text


@pytest.mark.parametrize("make", MAKERS)
def test_nothing_is_loaded_from_elsewhere(tmp_path: Path, make: Any) -> None:
    text = page(make(tmp_path, ["a", "b", "c"]))
    reader = Reader(text)
    sources = [attrs["src"] for tag, attrs in reader.tags if tag == "img"]
    assert sources and all(src and src.startswith("data:image/jpeg;base64,") for src in sources)
    assert all((attrs.get("href") or "#").startswith("#") for _, attrs in reader.tags)
    assert "http://" not in text and "https://" not in text and "url(" not in text and "@import" not in text
    assert "default-src 'none'" in text


@pytest.mark.parametrize("make", MAKERS)
def test_the_numbers_are_those_given(tmp_path: Path, make: Any) -> None:
    one = make(tmp_path, ["a", "b", "c"])
    text = Reader(page(one)).text
    results = one.results
    for metric, value in results["metrics"].items():
        assert one.show(metric, value) in text
    low, high = results["intervals"][results["main_metric"]]
    interval = f"{one.show(results['main_metric'], low)} to {one.show(results['main_metric'], high)}"
    assert f"95 % interval {interval}, measured on 40 validation images." in text
    for told in (one.data, one.model, *one.reasons, "vitrail train photos --seed 3", "2 images are small"):
        assert told in text
    assert f"Best: {one.show(results['main_metric'], 0.7)} at epoch 2 (step 20)." in text
    assert "60 s of training" in text and "123 images a second" in text


def test_classes_and_their_confusion(tmp_path: Path) -> None:
    one = classified(tmp_path, ["cat", "dog", "eel"])
    reader = Reader(page(one))
    counts = [str(count) for row in one.results["confusion"] for count in row if count]
    cells = re.findall(r'<td class="(?:right|wrong)"[^>]*>([\d,]+)</td>', page(one))
    assert cells == counts
    for row in one.results["per_label"]:
        assert all(f"{row[name]:.3f}" in reader.texts for name in ("precision", "recall", "f1"))
    pair = one.results["confused_pairs"][0]
    assert f"{pair['truth']} taken for {pair['answer']} {pair['count']} {100 * pair['share']:.1f} %" in reader.text
    for wrong in one.results["worst"]:
        assert f"{100 * wrong['probability']:.1f} %" in reader.texts
        assert f"{100 * wrong['probability_of_truth']:.1f} %" in reader.texts
    for some in one.results["calibration"]["bins"]:
        if some["count"]:
            assert f"{100 * some['confidence']:.1f} % {100 * some['frequency']:.1f} %" in reader.text


def test_many_classes_are_chosen_from_and_unfold(tmp_path: Path) -> None:
    labels = [f"species {n}" for n in range(200)]
    one = classified(tmp_path, labels, images=600)
    text = page(one)
    reader = Reader(text)
    table = confusion_table(one.results)
    assert table is not None and 2 <= len(table["rows"]) <= 20
    assert f"{len(table['rows'])} of 200 classes" in reader.text and "170 more" in reader.texts
    for row in table["rows"]:  # with the column of the others, nothing is missing
        assert sum(cell["count"] for cell in row["cells"]) == int(row["total"]) == 3
    strongest = one.results["confused_pairs"][0]
    assert {strongest["truth"], strongest["answer"]} <= {row["name"] for row in table["rows"]}
    assert len(text) < 1_000_000


def test_many_classes_without_a_mistake_have_no_matrix(tmp_path: Path) -> None:
    targets = torch.arange(40)
    outputs = 9.0 * torch.eye(40)
    reader = Reader(page(record(tmp_path, "classify", [str(n) for n in range(40)], outputs, targets)))
    assert "What is taken for what" not in reader.texts and "There is none: every answer is right." in reader.texts


def test_more_classes_than_a_matrix_can_show(tmp_path: Path) -> None:
    one = classified(tmp_path, [str(n) for n in range(1001)], images=30)
    assert one.results["confusion"] is None
    assert "Most confused pairs" in Reader(page(one)).texts


@pytest.mark.parametrize("make", MAKERS)
def test_three_images_and_nothing_else(tmp_path: Path, make: Any) -> None:
    few = make(tmp_path, ["a", "b", "c"], history=[], findings=[], facts=[], reasons=[])
    Reader(page(few))
    if make is not labelled:
        tiny = make(tmp_path, ["a", "b", "c", "d"], images=3, history=history("accuracy", 1), findings=[])
        assert "3 validation images" in Reader(page(tiny)).text


def test_empty_sections_are_left_out(tmp_path: Path) -> None:
    one = classified(tmp_path, ["a", "b"], history=[], findings=[], facts=[], reasons=[])
    texts = Reader(
        page(replace(one, results={**one.results, "intervals": {}, "worst": [], "confused_pairs": []}))
    ).texts
    for title in (
        "How training went",
        "What the data check found",
        "How to make it again",
        "Why",
        "Most confused pairs",
    ):
        assert title not in texts
    assert "Measured on 40 validation images." in texts


def test_what_is_not_known_is_a_dash(tmp_path: Path) -> None:
    one = record(tmp_path, "classify", ["a", "b", "never"], random(6, 3), torch.tensor([0, 1, 0, 1, 0, 1]))
    assert one.results["per_label"][2]["recall"] is None
    assert Reader(page(one)).texts.count(UNKNOWN) == 2
    assert UNKNOWN in Reader(page(labelled(tmp_path, ["a", "b", "never"]))).texts


def test_an_interval_without_width_is_not_shown(tmp_path: Path) -> None:
    text = Reader(page(record(tmp_path, "classify", ["a", "b"], 5 * torch.eye(2), torch.tensor([0, 1])))).text
    assert "100.0 %" in text and "100.0 % to 100.0 %" not in text and "95 % interval 1" not in text


def test_labels_without_an_answer(tmp_path: Path) -> None:
    one = record(
        tmp_path, "multilabel", ["a", "b"], torch.tensor([[-3.0, -3], [3, 3]]), torch.tensor([[1.0, 0], [0, 0]])
    )
    reader = Reader(page(one))
    assert {row["answer"] for row in one.results["worst"]} == {"", "a, b"}
    assert reader.texts.count("none") == 2 and "2 with a mistake" in reader.text and "a, b" in reader.texts


def test_numbers_have_charts_and_misses_each(tmp_path: Path) -> None:
    one = numbered(tmp_path, ["age", "height"], images=1200)
    text = page(one)
    reader = Reader(text)
    assert reader.texts.count("Predicted against true") == 2 and reader.texts.count("Errors") == 2
    assert text.count("h0M") >= 2 * 999 and "The charts show 1,000 of 1,200 images, drawn at random." in reader.texts
    for row in one.results["per_label"]:
        assert all(one.show(name, row[name]) in reader.texts for name in ("R2", "MAE", "RMSE"))
        assert f"{row['residual_quantiles']['0.95']:+.4g}" in reader.texts
    for miss in one.results["worst"]:
        assert f"{miss['predicted']:.4g}" in reader.texts and f"off by {miss['error']:+.4g}" in reader.texts


def test_numbers_that_are_all_alike(tmp_path: Path) -> None:
    same = torch.full((5, 1), 7.0)
    Reader(page(record(tmp_path, "regress", ["n"], same, same)))
    Reader(page(record(tmp_path, "regress", ["n"], 1e30 * same, 0 * same)))


def test_many_numbers_unfold(tmp_path: Path) -> None:
    assert "3 more" in Reader(page(numbered(tmp_path, [f"n{n}" for n in range(9)]))).texts


def test_a_run_that_diverged_is_still_told(tmp_path: Path) -> None:
    rows = history("R2")
    for row in rows[5:9]:
        row["loss"] = math.nan
    rows[-1]["validation"] = {"loss": math.inf, "R2": -1e12}
    text = page(numbered(tmp_path, ["n"], history=rows))
    assert not re.search(r' d="[^"]*(nan|inf)', text)
    assert all(row["best"] is False for row in rows[-1:])


def test_a_picture_that_is_gone(tmp_path: Path) -> None:
    one = classified(tmp_path, ["a", "b"])
    assert "no picture" in Reader(page(replace(one, files=[tmp_path / "gone.png"] * 40))).texts


def test_findings_show_few_pictures(tmp_path: Path) -> None:
    image = pictures(tmp_path, 1)[0]
    many = tuple(Example((image,)) for _ in range(50))
    findings = [Finding(f"odd-{n}", "note", f"finding {n}", "look", 50, many) for n in range(9)]
    one = classified(tmp_path, ["a", "b"], findings=findings)
    without = replace(one, findings=[])
    assert page(one).count("<img") - page(without).count("<img") == 6 * 3
    assert "9 notes" in Reader(page(one)).texts and "and 47 more" in Reader(page(one)).texts


def test_a_name_that_is_no_text_can_be_written(tmp_path: Path) -> None:
    one = classified(tmp_path, ["a\udcff", "b\u202e"])
    assert "a\N{REPLACEMENT CHARACTER}" in page(one).encode("utf-8").decode("utf-8")


def test_groups_are_told_beside_the_interval(tmp_path: Path) -> None:
    one = classified(tmp_path, ["a", "b"])
    assert "group" not in Reader(page(one)).text
    groups = task_for("classify", ["a", "b"]).evaluate(
        random(40, 2), torch.arange(40) % 2, bootstrap=50, groups=[place // 4 for place in range(40)]
    )
    text = Reader(page(replace(one, results=groups))).text
    assert " over 10 groups, measured on 40 validation images." in text
    single = dict(groups, groups=1, intervals={})
    assert "these are all one group" in Reader(page(replace(one, results=single))).text


def test_what_a_metric_leaves_out_is_told(tmp_path: Path) -> None:
    one = classified(tmp_path, ["a", "b"])
    noted = dict(one.results, notes=["not in mIoU: class a was answered on 3 pixels but is nowhere true"])
    text = Reader(page(replace(one, results=noted))).text
    assert "Not in mIoU: class a was answered on 3 pixels but is nowhere true." in text


def test_a_threshold_that_these_images_chose_is_told(tmp_path: Path) -> None:
    one = numbered(tmp_path, ["a", "b"])
    chosen = replace(one, results=dict(one.results, threshold=0.3))
    assert "chose the best epoch and the threshold of precision, recall and F1, so" in Reader(page(chosen)).text
    assert "threshold" not in Reader(page(replace(chosen, part="test"))).text
    overlap = replace(one, results=dict(chosen.results, nms_iou=0.5))
    said = "threshold of precision, recall and F1 and from which overlap on two boxes are one object, so new"
    assert said in Reader(page(overlap)).text


def test_validation_and_test_are_told_apart(tmp_path: Path) -> None:
    assert "also chose the best epoch and the calibration" in Reader(page(classified(tmp_path, ["a", "b"]))).text
    assert "also chose the best epoch, so" in Reader(page(numbered(tmp_path, ["a", "b"]))).text
    tested = Reader(page(classified(tmp_path, ["a", "b"], part="test"))).text
    assert "40 test images" in tested and "also chose" not in tested


@pytest.mark.parametrize(("count", "said"), [(1, "1 of them has a copy"), (2, "2 of them have copies")])
def test_copies_of_measured_images_in_other_parts_are_told(tmp_path: Path, count: int, said: str) -> None:
    """The page said that none was used for training, where the check had found copies of them among those that were."""
    one = classified(tmp_path, ["a", "b"], part="test", files=[tmp_path / f"{place}.png" for place in range(40)])
    assert "another part" not in Reader(page(one)).text
    copies = tuple(
        Example((one.files[place], tmp_path / f"train{place}.png"), "test / train") for place in range(count)
    )
    harmless = Finding("copies", "warning", "1 group", "keep one", 1, (Example((one.files[5], one.files[6])),))
    across = Finding("copies-across-parts", "error", "groups", "keep each in one part", count, copies)
    text = Reader(page(replace(one, findings=[harmless, across]))).text
    assert f"{said} in another part: the score is flattered." in text


# ---- the parts


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0, 1.74], ["0.0", "0.5", "1.0", "1.5", "2.0"]),
        ([0, 20], ["0", "5", "10", "15", "20"]),
        ([0, 1], ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ([0, 0.001], ["0.0000", "0.0002", "0.0004", "0.0006", "0.0008", "0.0010"]),
        ([0, 2e-5], ["0", "5e-06", "1e-05", "1.5e-05", "2e-05"]),
        ([-900, 700], ["-1,000", "-500", "0", "500", "1,000"]),
        ([3, 3], ["2.6", "2.8", "3.0", "3.2", "3.4"]),
        ([0, 0.9], ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
    ],
)
def test_ticks_are_round(values: list[float], ticks: list[str]) -> None:
    got = axis("", values)
    assert [text for _, text in got.ticks] == ticks
    assert got.low <= min(values) + 1e-9 and max(values) <= got.high + 1e-9


def test_ticks_of_per_cent_and_of_counts() -> None:
    assert [text for _, text in axis("", [0.28, 0.93], percent=True).ticks] == ["20 %", "40 %", "60 %", "80 %", "100 %"]
    assert [text for _, text in axis("", [0, 2], whole=True).ticks] == ["0", "1", "2"]
    assert axis("", []).ticks and axis("", [math.nan, 1e300, -1e300]).low <= -1e300


def test_a_long_curve_is_thinned_to_means() -> None:
    points = [(float(n), float(n % 2)) for n in range(1000)]
    got = thinned(points, 100)
    assert len(got) == 100 and got[0] == (4.5, 0.5) and thinned(points[:7], 100) == points[:7]


def test_the_kept_validation_is_the_last_best() -> None:
    rows = history("accuracy", 4)
    kept = kept_of(rows)
    assert kept is not None and kept["step"] == 20 and kept_of([]) is None
    few = [{**row, "kept": True} for row in rows]  # few images: the last weights, whatever they scored
    assert (last := kept_of(few)) is not None and last["step"] == rows[-1]["step"]


def test_wilson() -> None:
    low, high = wilson(0.5, 100)
    assert (low, high) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(1.0, 3)[1] == pytest.approx(1.0) and 0 < wilson(1.0, 3)[0] < 0.5
