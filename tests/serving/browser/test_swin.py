"""Swin on the page: windows are drawn, and a patch is picked on the grid of its stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.serving.browser.driving import PageDriver, blots
from tests.serving.server import ThreadServer
from vitrail.model.presets import build_network, preset
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

GRID = (14, 16)  # patches: 7 x 8 tokens after merging


@pytest.fixture(scope="module")
def swin_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    torch.manual_seed(0)
    model = build_network(preset("swin-mu", classes=2, image_size=(56, 64))).eval()
    file = tmp_path_factory.mktemp("swin") / "model.safetensors"
    checkpoint = Checkpoint(model, Preprocessing(size=(56, 64), resize="squash"), "classify", ["owl", "cat"])
    server = ThreadServer(Path(checkpoint.save(file)))
    yield server.address
    assert server.stop() == 0


def test_a_patch_sees_its_window_in_every_stage(visit: Callable[..., PageDriver], swin_url: str) -> None:
    seen = visit(swin_url)
    page = seen.open()
    seen.drop_and_wait(blots(1))
    page.get_by_role("radio", name="Attention", exact=True).check()
    seen.hard_edges()
    page.mouse.click(*seen.patch_at(5, 9, grid=GRID))
    page.mouse.move(2, 2)
    seen.until_said("Patch 5,9 in token 2,4, block 3")
    page.get_by_role("slider", name="Block", exact=True).fill("0")
    seen.until_said("Patch 5,9, block 0")
    seen.until_drawn()
    assert "among the 16 of its window" in page.locator(".said").first.inner_text()
    inside = [seen.colour_of(row, column, grid=GRID) for row, column in ((4, 8), (7, 11), (6, 9))]
    outside = [seen.colour_of(row, column, grid=GRID) for row, column in ((3, 8), (8, 11), (6, 12), (0, 0))]
    assert all(max(colour) > 120 for colour in inside)  # fresh weights: even, so bright
    assert all(max(colour) < 120 for colour in outside)
    script = """() => {
      const canvas = document.querySelector(".stage canvas"), right = Math.round((canvas.width * 12) / 16);
      return [...canvas.getContext("2d").getImageData(right, Math.round((canvas.height * 2.5) / 14), 1, 1).data];
    }"""
    assert page.evaluate(script)[:3] == [255, 255, 255]  # a line between two windows
    page.locator(".stage").first.focus()
    page.get_by_role("slider", name="Block", exact=True).fill("2")
    seen.until_said("block 2")
    seen.until_drawn()
    page.locator(".stage").first.focus()
    page.keyboard.press("ArrowRight")  # to the next token, two patches on
    seen.until_link("query=5,11")
