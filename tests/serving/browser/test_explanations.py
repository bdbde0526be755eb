"""Rollout and relevance for the class that is clicked."""

from __future__ import annotations

import numpy as np
import torch

from tests.serving.browser.driving import LABELS, PageDriver, blots
from vitrail.data.loading.transforms import normalise
from vitrail.explanation.methods.relevance import relevance
from vitrail.explanation.methods.rollout import rollout
from vitrail.explanation.target_score import target_score
from vitrail.inference.read_source import read_source
from vitrail.weights.checkpoint import Checkpoint


def images_of(checkpoint: Checkpoint, data: bytes) -> torch.Tensor:
    pixels = read_source(data, checkpoint.preprocessing, "")
    return normalise(torch.from_numpy(pixels[None]), checkpoint.preprocessing)


def test_a_click_on_a_class_shows_what_speaks_for_it(seen: PageDriver, checkpoint: Checkpoint) -> None:
    page = seen.open()
    seen.drop_and_wait(blots(1))
    seen.hard_edges()
    images = images_of(checkpoint, blots(1))
    for label in ("owl", "cat"):
        page.locator(".line", has_text=label).first.click()
        seen.until_said(f"for {label}")
        seen.until_drawn()
        seen.settle()
        assert page.locator(".line", has_text=label).first.get_attribute("aria-pressed") == "true"
        values = relevance(
            checkpoint.model, images, target_score(checkpoint.model, images, target=LABELS.index(label))
        )[0]
        row, column = divmod(int(values.abs().argmax()), 8)
        strongest = [178, 24, 43] if values[row, column] > 0 else [33, 102, 172]
        assert np.abs(np.array(seen.colour_of(row, column)) - strongest).max() <= 2
    seen.until("location.hash.includes('label=cat') && location.hash.includes('method=relevance')")
    explain_requests = [request for request in seen.requests if request.startswith("v1/explain")]
    page.locator(".line", has_text="owl").first.click()  # known already
    seen.settle()
    assert [request for request in seen.requests if request.startswith("v1/explain")] == explain_requests


def test_rollout(seen: PageDriver, checkpoint: Checkpoint) -> None:
    page = seen.open()
    seen.drop_and_wait(blots(1))
    seen.hard_edges()
    page.get_by_role("radio", name="Rollout").check()
    seen.until_said("Rollout")
    seen.until_drawn()
    seen.settle()
    values = rollout(checkpoint.model, images_of(checkpoint, blots(1))).patches[0]
    assert seen.colour_of(*divmod(int(values.argmax()), 8)) == [252, 255, 164]
    assert not page.locator("#heads").is_visible()


def test_any_class_can_be_asked_for(seen: PageDriver) -> None:
    page = seen.open("#method=relevance&sample=0")
    page.locator(".pane .headline").first.wait_for()
    page.get_by_label("Explain the class").fill("owl")
    page.keyboard.press("Enter")
    seen.until_said("Relevance for owl")
