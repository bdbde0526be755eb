"""Attention under the pointer: the right numbers, at once, and without a request."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from tests.serving.browser.driving import PageDriver, blots
from vitrail.data.loading.transforms import normalise
from vitrail.explanation.methods.attention_maps import attention_maps
from vitrail.explanation.token_names import Query
from vitrail.inference.read_source import read_source
from vitrail.weights.checkpoint import Checkpoint

BRIGHTEST = [252, 255, 164]  # the last of HEAT


def attention(checkpoint: Checkpoint, data: bytes, query: Query, block: int) -> tuple[NDArray, NDArray]:
    """Shares of the patches (heads, 8, 8) and of the prefix (heads, 3)."""
    pixels = read_source(data, checkpoint.preprocessing, "")
    images = normalise(torch.from_numpy(pixels[None]), checkpoint.preprocessing)
    [maps] = attention_maps(checkpoint.model, images, query, blocks=[block])
    return maps.patches[0].detach().numpy(), maps.prefix[0].detach().numpy()


def brightest(values: NDArray) -> tuple[int, int]:
    row, column = np.unravel_index(int(values.argmax()), values.shape)
    return int(row), int(column)


def test_hovering_shows_what_a_patch_attends_to_without_a_request(seen: PageDriver, checkpoint: Checkpoint) -> None:
    page = seen.open()
    seen.drop_and_wait(blots(1))
    seen.hard_edges()
    before = len(seen.requests)
    for patch in [(0, 0), (3, 5), (7, 7), (6, 1)]:
        page.mouse.move(*seen.patch_at(*patch))
        seen.settle()
        patches, prefix = attention(checkpoint, blots(1), patch, block=2)
        mean = patches.mean(0)
        assert seen.colour_of(*brightest(mean)) == BRIGHTEST
        assert f"Patch {patch[0]},{patch[1]}, block 2, mean" in page.locator(".said").first.inner_text()
        shown = [float(text.rstrip(" %")) for text in page.locator(".shares .number").all_inner_texts()[:4]]
        assert shown == pytest.approx([*(100 * prefix.mean(0)), 100 * mean.sum()], abs=1.1)
    page.mouse.move(2, 2)  # away: what was chosen is shown again
    seen.settle()
    assert "[CLS]" in page.locator(".said").first.inner_text()
    assert len(seen.requests) == before


def test_block_and_head_change_the_map(seen: PageDriver, checkpoint: Checkpoint) -> None:
    page = seen.open()
    seen.drop_and_wait(blots(1))
    seen.hard_edges()
    before = len(seen.requests)
    page.get_by_role("slider", name="Block", exact=True).fill("0")
    seen.until_said("block 0")
    seen.until_drawn()
    page.get_by_role("slider", name="Head").fill("2")
    seen.settle()
    patches, _ = attention(checkpoint, blots(1), "cls", block=0)
    assert seen.colour_of(*brightest(patches[2])) == BRIGHTEST
    requests = [request for request in seen.requests[before:] if request.startswith("v1/")]
    assert requests == ["v1/attention?block=0"]
    before = len(seen.requests)
    page.get_by_role("slider", name="Block", exact=True).fill("2")  # known already
    seen.settle()
    assert len(seen.requests) == before


def test_all_heads_are_shown_and_a_click_chooses_one(seen: PageDriver) -> None:
    page = seen.open()
    seen.drop_and_wait(blots(1))
    tiles = page.locator(".heads .tile")
    assert tiles.all_inner_texts() == ["mean", "head 0", "head 1", "head 2", "head 3"]
    pictures = page.evaluate("[...document.querySelectorAll('.heads canvas')].map((c) => c.toDataURL())")
    assert len(set(pictures)) == 5
    tiles.nth(3).click()
    seen.until_said("head 2")
    assert tiles.nth(3).get_attribute("aria-pressed") == "true"
    tiles.nth(0).click()
    seen.until_said("mean of the heads")


def test_prefix_tokens_are_asked_by_buttons(seen: PageDriver, checkpoint: Checkpoint) -> None:
    page = seen.open()
    seen.drop_and_wait(blots(1))
    seen.hard_edges()
    for name in ("register 1", "[CLS]"):
        page.get_by_role("button", name=name, exact=True).click()
        seen.settle()
        patches, _ = attention(checkpoint, blots(1), name, block=2)
        assert seen.colour_of(*brightest(patches.mean(0))) == BRIGHTEST
        assert page.get_by_role("button", name=name, exact=True).get_attribute("aria-pressed") == "true"


def test_a_tap_keeps_a_patch_and_arrow_keys_move_it(seen: PageDriver) -> None:
    page = seen.open()
    seen.drop_and_wait(blots(1))
    page.mouse.click(*seen.patch_at(2, 3))
    page.mouse.move(2, 2)
    page.locator(".stage").first.focus()
    for key in ["ArrowRight", "ArrowDown", "ArrowDown"]:
        page.keyboard.press(key)
    seen.until("document.querySelector('#live').textContent.startsWith('Patch 4,4')")
    seen.until_link("query=4,4")
    for _ in range(9):
        page.keyboard.press("ArrowLeft")  # not over the edge
    seen.until_link("query=4,0")
    page.keyboard.press("Escape")
    seen.until("document.querySelector('#live').textContent.startsWith('[CLS]')")


def test_touch_keeps_a_patch(visit: Callable[..., PageDriver]) -> None:
    seen = visit(has_touch=True, viewport={"width": 390, "height": 800})
    page = seen.open()
    seen.drop_and_wait(blots(1))
    page.locator(".stage").first.scroll_into_view_if_needed()
    page.touchscreen.tap(*seen.patch_at(5, 6))
    seen.until_link("query=5,6")


def test_moving_draws_every_frame_and_only_then(seen: PageDriver) -> None:
    """Sixty frames a second leave 16.7 ms for each: what a move costs is far below, with all heads redrawn."""
    page = seen.open()
    seen.drop_and_wait(blots(1))
    script = """async () => {
      const stage = document.querySelector(".stage"), box = stage.getBoundingClientRect(), spent = [];
      let drawn = 0;
      const paper = CanvasRenderingContext2D.prototype, put = paper.putImageData;
      paper.putImageData = function (...given) { drawn += 1; return put.apply(this, given); };
      const real = window.requestAnimationFrame;
      window.requestAnimationFrame = (draw) => real((time) => {
        const start = performance.now();
        draw(time);
        spent.push(performance.now() - start);
      });
      for (let i = 0; i < 60; i++) {
        for (let twice = 0; twice < 2; twice++) {  // two moves a frame are drawn once
          const clientX = box.left + box.width * ((i + twice / 2) % 60) / 60;
          const clientY = box.top + box.height * (i % 7) / 7;
          stage.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY }));
        }
        await new Promise((done) => real(done));
      }
      const during = drawn;
      for (let i = 0; i < 20; i++) await new Promise((done) => real(done));
      return { spent, during, still: drawn - during };
    }"""
    frames = page.evaluate(script)
    assert 20 <= len(frames["spent"]) <= 60
    assert frames["during"] <= 6 * len(frames["spent"])  # the stage, four heads, and their mean
    assert frames["still"] <= 6  # nothing is drawn when nothing moves
    assert float(np.median(frames["spent"])) < 16


def test_what_is_drawn_is_what_the_model_sees(seen: PageDriver) -> None:
    """The middle of a wide picture: the model sees the crop, and so do we."""
    page = seen.open()
    wide = Image.new("RGB", (96, 32), (200, 30, 30))
    wide.paste((20, 160, 40), (32, 0, 64, 32))
    buffer = io.BytesIO()
    wide.save(buffer, "PNG")
    seen.drop_and_wait(buffer.getvalue())
    page.get_by_role("radio", name="Picture").check()
    seen.settle()
    assert seen.colour_of(4, 4) == pytest.approx([20, 160, 40], abs=8)
    box = page.locator(".stage").first.bounding_box()
    assert box is not None
    assert box["width"] == pytest.approx(box["height"], abs=1)
