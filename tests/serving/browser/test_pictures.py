"""Pictures come in by every door, and their answers are the model's."""

from __future__ import annotations

import base64
import json
import urllib.request
from pathlib import Path

import pytest

from tests.serving.browser.driving import LABELS, PageDriver, blots
from tests.serving.conftest import faint_red
from vitrail.inference.predictor import Predictor
from vitrail.weights.checkpoint import Checkpoint

HOSTILE = "it's \"quoted\" <img src=x onerror=document.title='broken'>.png"


def answer_of(checkpoint: Checkpoint, data: bytes) -> dict[str, str]:
    [prediction] = Predictor(checkpoint).predict([data])
    assert prediction.answer is not None
    return {guess["label"]: f"{100 * guess['probability']:.1f} %" for guess in prediction.answer["top"]}


def test_a_dropped_picture_is_answered(seen: PageDriver, checkpoint: Checkpoint) -> None:
    page = seen.open()
    assert page.title().startswith("model")
    seen.drop_and_wait(blots(1), HOSTILE)
    expected = answer_of(checkpoint, blots(1))
    lines = page.locator(".pane:visible .line")
    names, numbers = lines.locator(".name").all_inner_texts(), lines.locator(".number").all_inner_texts()
    assert dict(zip(names, numbers, strict=True)) == expected
    assert page.locator(".pane .headline b").first.inner_text() == next(iter(expected))
    assert page.locator(".pane .filename").first.inner_text() == HOSTILE
    seen.until_link("own")
    assert "sample=own" in page.evaluate("location.hash")


def test_a_stranger_is_called_one(seen: PageDriver) -> None:
    page = seen.open()
    seen.drop_and_wait(blots(1))
    assert "Not like anything it learnt" in page.locator(".pane:visible .stranger").inner_text()
    seen.drop_and_wait(faint_red(70))
    page.locator(".pane:visible .familiarity").wait_for()
    assert page.locator(".pane:visible .familiarity").inner_text().startswith("Familiarity 0.")
    assert page.locator(".pane:visible .stranger").count() == 0


def test_names_of_classes_and_files_are_text_everywhere(seen: PageDriver) -> None:
    page = seen.open()
    seen.drop_and_wait(blots(1), HOSTILE)
    for label in LABELS[:2]:
        page.locator(".line", has_text=label[:12]).first.click()
        seen.until_said(label)
    page.get_by_label("Walk, step by step").check()
    page.locator(".step h2").wait_for()
    page.get_by_label("Step", exact=True).select_option(index=page.locator(".stepper option").count() - 1)
    page.locator(".numbers .bars .name").first.wait_for()
    assert set(page.locator(".numbers .bars .name").all_inner_texts()) == set(LABELS)
    assert page.title() != "broken"
    assert page.locator("main img[src='x'], main b b, .samples i").count() == 0


def test_a_picture_is_pasted(seen: PageDriver) -> None:
    page = seen.open()
    script = """(data) => {
      const transfer = new DataTransfer();
      const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
      transfer.items.add(new File([bytes], "image.png", { type: "image/png" }));
      document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer }));
    }"""
    page.evaluate(script, base64.b64encode(blots(2)).decode())
    page.locator(".pane .headline").first.wait_for()


def test_a_picture_is_chosen_from_disk(seen: PageDriver, tmp_path: Path) -> None:
    page = seen.open()
    (tmp_path / "mine.png").write_bytes(blots(3))
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose a picture").click()
    chooser.value.set_files(tmp_path / "mine.png")
    page.locator(".pane .headline").first.wait_for()
    assert page.locator(".pane .filename").first.inner_text() == "mine.png"


def test_a_sample_is_chosen(seen: PageDriver, url: str) -> None:
    page = seen.open()
    with urllib.request.urlopen(url + "v1/model") as answer:
        names = [sample["name"] for sample in json.load(answer)["samples"]]
    assert page.locator(".samples button").all_inner_texts() == names
    assert len(names) == 3
    page.locator(".samples button").nth(1).click()
    page.locator(".pane .headline").first.wait_for()
    assert page.locator(".pane .filename").first.inner_text() == names[1]
    seen.until("location.hash === '#sample=1'")


def test_a_file_that_is_no_picture_is_told(seen: PageDriver) -> None:
    page = seen.open()
    seen.drop(b"no picture at all", "notes.png")
    alert = page.locator(".pane [role=alert]").first
    alert.wait_for()
    assert len(alert.inner_text()) > 10
    seen.drop_and_wait(blots(1))  # and the page goes on
    assert not alert.is_visible()


def test_something_else_than_a_file_is_told(seen: PageDriver) -> None:
    page = seen.open()
    transfer = page.evaluate_handle(
        "() => { const t = new DataTransfer(); t.setData('text/uri-list', 'http://a.b'); return t; }"
    )
    page.dispatch_event("body", "drop", {"dataTransfer": transfer})
    seen.until("document.querySelector('#trouble').textContent.includes('no file')")


@pytest.mark.parametrize("count", [2])
def test_two_files_at_once_go_side_by_side(seen: PageDriver, tmp_path: Path, count: int) -> None:
    page = seen.open()
    paths = [tmp_path / f"{number}.png" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(blots(number))
    page.locator("#file").set_input_files(paths)
    page.locator(".pane .headline").nth(1).wait_for()
    assert page.locator(".pane .filename").all_inner_texts() == ["0.png", "1.png"]
