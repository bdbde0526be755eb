"""Masks and boxes over the picture. The answers are made here, in the form of docs/serve.md, so that they are known."""

from __future__ import annotations

import contextlib
import io
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Route

import vitrail
from tests.serving.browser.driving import PageDriver, blots
from tests.serving.server import ThreadServer
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.visuals.palette import palette
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

GRID = (4, 6)
TOKENS = 1 + GRID[0] * GRID[1]
BRIGHTEST = [252, 255, 164]
LABELS = ["sky", "<b>road</b>", "tree"]
MODEL = {
    "name": "made up", "labels": LABELS, "colours": ["#3366cc", "#dd8833", "#22aa55"], "image_size": [64, 96],
    "patch_size": [16, 16], "grid": list(GRID), "channels": 3, "width": 64, "depth": 2, "heads": 2, "prefix": ["[CLS]"],
    "pool": "none", "resize": "stretch", "parameters": 1_000_000,
    "methods": ["rollout"], "samples": [], "limits": {"bytes": 10**7, "pixels": 10**7, "images": 1}, "version": "0",
}  # fmt: skip


def packed(header: dict[str, Any], parts: dict[str, Any]) -> bytes:
    listed, blobs, offset = [], [], 0
    for name, part in parts.items():
        blob = part if isinstance(part, bytes) else part.tobytes()
        kind, shape = ("jpeg", [len(blob)]) if isinstance(part, bytes) else (part.dtype.name, list(part.shape))
        listed.append({"name": name, "dtype": kind, "shape": shape, "offset": offset, "bytes": len(blob)})
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps({**header, "parts": listed}).encode()
    text += b" " * (-len(text) % 4)
    return struct.pack("<I", len(text)) + text + b"".join(blobs)


def picture() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (96, 64), (90, 120, 90)).save(buffer, "JPEG")
    return buffer.getvalue()


def pointing(heads: int, rows: list[int]) -> np.ndarray:
    """uint8 (heads, rows, TOKENS): row i has its largest at the patch rows[i], and half of it at [CLS]."""
    levels = np.zeros((heads, len(rows), TOKENS), np.uint8)
    levels[:, :, 0] = 128
    levels[:, np.arange(len(rows)), 1 + np.array(rows)] = 255
    return levels


def pretend(
    seen: PageDriver, task: str, header: dict[str, Any], model: dict[str, Any] | None = None, **parts: Any
) -> None:
    """A server of another task answers."""
    maps = pointing(2, [(token + 1) % 24 for token in range(TOKENS)])
    scale = np.full((2, TOKENS), 2 / 3, np.float32)
    common = {"words": "", "grid": list(GRID), "prefix": ["[CLS]"], "block": 1, "size": [64, 96]}
    body = packed({**common, **header}, {"picture": picture(), "maps": maps, "scale": scale, **parts})

    def answer(route: Route) -> None:
        if "/v1/model" in route.request.url:
            route.fulfill(json={**MODEL, "task": task, **(model or {})})
        else:
            route.fulfill(body=body, content_type="application/octet-stream")

    seen.page.context.route("**/v1/**", answer)


def test_a_mask_lies_over_the_picture_with_its_classes_and_areas(seen: PageDriver) -> None:
    mask = np.zeros((64, 96), np.uint8)
    mask[32:] = 1  # half
    mask[:16, :24] = 2  # a sixteenth
    pretend(seen, "segment", {"answer": {"areas": {}}}, mask=mask)
    page = seen.open()
    seen.drop_and_wait(blots(1))
    assert page.get_by_role("radio", name="Mask").is_checked()
    lines = page.locator(".pane:visible .line")
    assert lines.locator(".name").all_inner_texts() == ["<b>road</b>", "sky", "tree"]
    assert lines.locator(".number").all_inner_texts() == ["50.0 %", "43.8 %", "6.3 %"]
    page.get_by_role("slider", name="Strength").fill("100")
    seen.settle()
    road, sky, tree = (seen.colour_of(*place, grid=GRID) for place in [(3, 3), (1, 4), (0, 0)])
    assert len({tuple(colour) for colour in (road, sky, tree)}) == 3
    swatch = "(i) => getComputedStyle(document.querySelectorAll('.line .swatch')[i]).backgroundColor"
    assert page.evaluate(swatch, 0) == "rgb(221, 136, 51)"
    picture_colour, strength = np.array([90, 120, 90]), 0.75
    for number, colour in enumerate((road, sky)):
        flat = np.array([int(part) for part in page.evaluate(swatch, number)[4:-1].split(",")])
        assert np.abs(flat * strength + picture_colour * (1 - strength) - colour).max() < 6
    lines.nth(2).click()  # the tree alone
    seen.settle()
    assert seen.colour_of(0, 0, grid=GRID) == tree
    assert np.abs(np.array(seen.colour_of(3, 3, grid=GRID)) - picture_colour).max() < 30
    page.get_by_role("radio", name="Attention", exact=True).check()
    page.mouse.move(*seen.patch_at(1, 1, grid=GRID))
    seen.settle()
    assert "Patch 1,1" in page.locator(".said").first.inner_text()


DEPTHS = {"nearest": 2, "quartiles": [2, 5, 8], "farthest": 8, "unit": "m"}


def test_depth_lies_over_the_grey_picture_with_its_scale_and_the_number_under_the_pointer(seen: PageDriver) -> None:
    depth = np.full((64, 96), 8, np.float32)
    depth[32:] = 2
    depth[:16, :16] = 5  # the first patch
    pretend(seen, "depth", {"answer": DEPTHS}, depth=depth)
    page = seen.open()
    seen.drop_and_wait(blots(1))
    assert page.get_by_role("radio", name="Depth").is_checked()
    assert page.locator(".pane:visible .headline").inner_text().strip() == "Median depth 5 m"
    assert page.locator(".pane:visible .line .number").all_inner_texts() == ["2 m", "2 m", "5 m", "8 m", "8 m"]
    assert page.locator(".pane:visible .ramp span").all_inner_texts() == ["8 m", "2 m"]  # dark to light
    page.get_by_role("slider", name="Strength").fill("100")
    seen.settle()
    grey, strength = 0.7 * 100 + 40, 0.75  # of the picture, (90, 120, 90): colours are depths alone
    for place, colour in {(3, 3): BRIGHTEST, (1, 4): [0, 0, 4], (0, 0): [188, 55, 84]}.items():
        expected = np.array(colour) * strength + grey * (1 - strength)
        assert np.abs(np.array(seen.colour_of(*place, grid=GRID)) - expected).max() < 6
    for place, words in {(3, 3): "2 m", (1, 4): "8 m", (0, 0): "5 m"}.items():
        page.mouse.move(*seen.patch_at(*place, grid=GRID))
        seen.until_said(f"In the middle of patch {place[0]},{place[1]}: {words}.")
    page.mouse.move(2, 2)
    seen.until_said("near is light, far is dark")
    page.get_by_role("radio", name="Attention", exact=True).check()
    seen.settle()
    assert page.locator(".pane:visible .ramp").count() == 0


def test_depth_is_read_where_the_picture_lies_in_its_frame(seen: PageDriver) -> None:
    depth = np.repeat(np.array([[1], [3]], np.float32), 12, axis=1)  # near above far
    pretend(seen, "depth", {"answer": {**DEPTHS, "unit": ""}, "mask_box": [0, 0.25, 1, 0.75]}, depth=depth)
    page = seen.open()
    seen.drop_and_wait(blots(1))
    for row, words in {1: "In the middle of patch 1,2: 1.", 2: "In the middle of patch 2,2: 3."}.items():
        page.mouse.move(*seen.patch_at(row, 2, grid=GRID))
        seen.until_said(words)
    for row in (0, 3):  # padding
        page.mouse.move(*seen.patch_at(row, 2, grid=GRID))
        seen.until_said("near is light, far is dark")


def test_lines_of_depths_are_no_buttons(seen: PageDriver) -> None:
    """There is nothing to choose; a click once marked them all, and put the class "undefined" into the link."""
    pretend(seen, "depth", {"answer": DEPTHS}, depth=np.full((4, 6), 2, np.float32))
    page = seen.open()
    seen.drop_and_wait(blots(1))
    page.get_by_role("radio", name="Attention", exact=True).check()
    seen.until_link("method=attention")
    lines = page.locator(".pane:visible .line")
    assert lines.count() == 5 and page.locator(".pane:visible button.line").count() == 0
    lines.nth(1).click()
    page.get_by_role("radio", name="Rollout").check()
    seen.until_link("method=rollout")
    assert "label" not in page.url
    assert page.locator(".pane:visible .line[aria-pressed], .pane:visible .line[title]").count() == 0


OBJECTS = [
    {"label": "tree", "score": 0.91, "box": [0, 0, 48, 32]},
    {"label": "<b>road</b>", "score": 0.55, "box": [30, 40, 96, 64]},
    {"label": "tree", "score": 0.5, "box": [60, 2, 70, 20]},
]
BOXES = [[0, 0, 0.5, 0.5], [0.3125, 0.625, 1, 1], [0.625, 0.03, 0.73, 0.31]]


def test_boxes_lie_over_the_picture_and_tell_what_their_query_attends_to(seen: PageDriver) -> None:
    queries, scale = pointing(2, [5, 20, 9]), np.full((2, 3), 2 / 3, np.float32)
    pretend(seen, "detect", {"answer": {"objects": OBJECTS}, "boxes": BOXES}, queries=queries, queries_scale=scale)
    page = seen.open()
    seen.drop_and_wait(blots(1))
    assert page.get_by_role("radio", name="Picture").is_checked()
    page.get_by_role("radio", name="Attention", exact=True).check()
    seen.hard_edges()
    assert page.locator(".pane:visible .headline").inner_text().strip() == "3 objects"
    assert page.locator(".box button").all_inner_texts() == ["1 tree 91.0 %", "2 <b>road</b> 55.0 %", "3 tree 50.0 %"]
    stage, box = page.locator(".stage").first.bounding_box(), page.locator(".box").nth(1).bounding_box()
    assert stage is not None and box is not None
    assert abs((box["x"] - stage["x"]) / stage["width"] - 0.3125) < 0.01
    assert abs((box["y"] + box["height"] - stage["y"]) / stage["height"] - 1) < 0.01
    page.locator(".box button").nth(1).click()
    page.mouse.move(2, 2)
    seen.settle()
    assert "What finds object 2, <b>road</b>" in page.locator(".said").first.inner_text()
    assert seen.colour_of(3, 2, grid=GRID) == BRIGHTEST  # patch 20
    assert page.locator(".line").nth(1).get_attribute("aria-pressed") == "true"
    assert page.locator("#heads h2").inner_text() == "All heads of the decoder, what finds object 2, <b>road</b>"
    assert page.locator(".shares .number").all_inner_texts()[:2] == ["33 %", "67 %"]
    seen.until_link("object=0-1")
    page.mouse.move(*seen.patch_at(3, 0, grid=GRID))  # the pointer rests on a patch while the keyboard chooses
    seen.until_said("Patch 3,0")
    page.locator(".line").nth(0).focus()
    page.keyboard.press("Enter")
    seen.until_link("object=0-0")
    page.mouse.move(2, 2)
    seen.settle()
    assert seen.colour_of(0, 5, grid=GRID) == BRIGHTEST  # patch 5
    page.mouse.click(*seen.patch_at(2, 1, grid=GRID))  # a patch is asked instead
    page.mouse.move(2, 2)
    seen.settle()
    assert page.locator(".said").first.inner_text().startswith("Patch 2,1")
    assert page.locator(".box.chosen").count() == 0


def test_a_link_names_an_object(seen: PageDriver) -> None:
    pretend(seen, "detect", {"answer": {"objects": OBJECTS}, "boxes": BOXES})
    page = seen.open("#sample=own&method=attention&object=0-2")
    seen.drop_and_wait(blots(1))
    assert page.locator(".box.chosen button").inner_text() == "3 tree 50.0 %"
    assert "Which query found object 3 is not told. [CLS]" in page.locator(".said").first.inner_text()
    seen.until_link("object=0-2")


def test_doubtful_objects_are_folded_away(seen: PageDriver) -> None:
    pretend(seen, "detect", {"answer": {"objects": OBJECTS, "threshold": 0.52}, "boxes": BOXES})
    page = seen.open()
    seen.drop_and_wait(blots(1))
    assert page.locator(".pane:visible .headline").inner_text().strip() == "2 objects"
    assert [page.locator(".box").nth(number).is_visible() for number in range(3)] == [True, True, False]
    page.get_by_text("1 more below the threshold, 52.0 %").click()
    page.locator(".line.doubtful").click()
    seen.settle()
    assert page.locator(".box").nth(2).is_visible()


def test_a_query_that_is_a_token_tells_what_it_attends_to(seen: PageDriver) -> None:
    """YOLOS: queries stand before the patches; there may be a hundred, so they share a bar and a list."""
    prefix, patches = ["[CLS]", "query 0", "query 1", "query 2"], GRID[0] * GRID[1]
    maps, scale = np.zeros((2, 4 + patches, 4 + patches), np.uint8), np.full((2, 4 + patches), 0.5, np.float32)
    maps[:, np.arange(4), 4 + np.array([0, 6, 7, 8])] = 255  # half to one patch,
    maps[:, :, 1:3] = 128  # a quarter to each of two queries
    objects = [{**OBJECTS[0], "query": 2}, {**OBJECTS[1], "query": 0}]
    header = {"answer": {"objects": objects}, "boxes": BOXES[:2], "prefix": prefix}
    pretend(seen, "detect", header, {"prefix": prefix}, maps=maps, scale=scale)
    page = seen.open()
    seen.drop_and_wait(blots(1))
    page.locator(".line").nth(0).click()
    seen.hard_edges()
    assert seen.colour_of(1, 2, grid=GRID) == BRIGHTEST  # patch 8, of query 2
    assert page.locator(".shares .name").all_inner_texts()[:3] == ["[CLS]", "all 3 queries", "all patches"]
    assert page.locator(".shares .number").all_inner_texts()[:3] == ["0.0 %", "50 %", "50 %"]
    page.get_by_label("A query").select_option("query 1")
    seen.settle()
    assert page.locator(".said").first.inner_text().startswith("Query 1, block 1")
    assert seen.colour_of(1, 1, grid=GRID) == BRIGHTEST  # patch 7


@contextlib.contextmanager
def served(visit: Callable[..., PageDriver], file: Path) -> Iterator[PageDriver]:
    """The page of a server with this model, and a picture in it."""
    server = ThreadServer(file)
    seen = visit(server.address)
    try:
        seen.open()
        seen.drop_and_wait(blots(1))
        yield seen
    finally:
        seen.page.close()  # with it its connections, for which the server would wait
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("task", "head"), [("segment", "mask_linear"), ("detect", "box_tokens"), ("detect", "box_decoder")]
)
def test_a_real_model_of_places(
    visit: Callable[..., PageDriver], lively: Callable[..., ViT], tmp_path: Path, task: str, head: str
) -> None:
    """The form above is the one that the server speaks."""
    config = preset("mu/4", classes=3, image_size=32, head=head, depth=2)
    file = Checkpoint(lively(config), Preprocessing(size=(32, 32), resize="pad"), task, LABELS).save(
        tmp_path / "m.safetensors"
    )
    answer = vitrail.load(file).predict(blots(1))
    with served(visit, file) as seen:
        page = seen.page
        lines = page.locator(".pane:visible .line")
        if task == "segment":
            names = lines.locator(".name").all_inner_texts()
            assert names == [area["label"] for area in answer["areas"]]
            swatches = lines.locator(".swatch").evaluate_all("all => all.map(one => one.style.background)")
            colours = dict(zip(LABELS, palette(LABELS).tolist(), strict=True))  # those of the report
            assert swatches == [f"rgb({', '.join(map(str, colours[name]))})" for name in names]
            lines.first.click()  # one class alone
            page.get_by_role("radio", name="Rollout").check()
            seen.until_said("Rollout")
            seen.until_drawn()
            assert seen.colour_of(3, 3) != seen.colour_of(0, 0)
        else:
            assert lines.count() == page.locator(".box").count() == len(answer["objects"]) > 0
        page.get_by_role("radio", name="Attention", exact=True).check()
        if task == "detect":
            lines.first.evaluate("line => line.click()")  # it may be folded away
            seen.until_said("What finds object 1")
            seen.until_said("the decoder" if head == "box_decoder" else "block 1")
            lines.first.evaluate("line => line.click()")
        page.mouse.move(*seen.patch_at(3, 3))
        seen.until_said("Patch 3,3")


def test_a_real_model_of_depth(visit: Callable[..., PageDriver], lively: Callable[..., ViT], tmp_path: Path) -> None:
    config = preset("mu/4", classes=1, image_size=32, head="mask_linear", depth=2)
    checkpoint = Checkpoint(lively(config), Preprocessing(size=(32, 32), resize="pad"), "depth", ["depth (m)"])
    file = checkpoint.save(tmp_path / "m.safetensors")
    answer = vitrail.load(file).predict(blots(1))
    with served(visit, file) as seen:
        farthest, nearest = seen.page.locator(".pane:visible .ramp span").all_inner_texts()
        assert [float(words.removesuffix(" m")) for words in (nearest, farthest)] == pytest.approx(
            [answer["nearest"], answer["farthest"]], rel=0.01
        )
        seen.page.mouse.move(*seen.patch_at(3, 3))
        seen.until_said("In the middle of patch 3,3: ")
        words = seen.page.locator(".said").first.inner_text()
        left, top, right, bottom = 0, 4, 32, 28  # where 80 x 60 pixels lie in 32 x 32
        height, width = answer["depth"].shape
        pixel = answer["depth"][int((14 - top) / (bottom - top) * height), int((14 - left) / (right - left) * width)]
        assert float(words.split(": ")[1].removesuffix(" m.")) == pytest.approx(pixel, rel=0.01)


def test_nothing_found_is_said(seen: PageDriver) -> None:
    pretend(seen, "detect", {"answer": {"objects": []}, "boxes": []})
    page = seen.open()
    seen.drop_and_wait(blots(1))
    assert page.locator(".pane:visible .headline").inner_text().strip() == "No objects"


def test_numbers_and_embeddings_have_their_words_too(seen: PageDriver) -> None:
    pretend(seen, "regress", {"answer": {"values": {"age": 31.25, "weight": -4.5}}})
    page = seen.open()
    seen.drop_and_wait(blots(1))
    assert page.locator(".pane:visible .headline").inner_text().strip() == "age 31.25"
    assert page.locator(".pane:visible .line .number").all_inner_texts() == ["31.25", "\N{MINUS SIGN}4.5"]
    pretend(seen, "embed", {"answer": None})
    page.reload()
    page.locator("#pictures").wait_for()
    seen.drop_and_wait(blots(1))
    assert page.locator(".pane:visible .headline").inner_text().strip() == "An embedding"


def test_a_model_without_prefix_tokens_begins_with_a_patch(seen: PageDriver) -> None:
    maps, scale = pointing(2, list(range(24)))[:, :, 1:], np.full((2, 24), 1, np.float32)
    changed = {"prefix": [], "answer": {"top": [{"label": "sky", "probability": 0.5}]}}
    pretend(seen, "classify", changed, {"prefix": []}, maps=np.ascontiguousarray(maps), scale=scale)
    page = seen.open()
    seen.drop_and_wait(blots(1))
    seen.hard_edges()
    assert page.locator(".said").first.inner_text().startswith("Patch 2,3, block 1")
    assert seen.colour_of(2, 3, grid=GRID) == BRIGHTEST
    assert page.locator(".shares .number").all_inner_texts()[:1] == ["100 %"]


def test_a_file_too_large_for_the_server_is_told_before_it_is_sent(seen: PageDriver) -> None:
    pretend(seen, "classify", {"answer": None}, {"limits": {"bytes": 1000, "pixels": 1, "images": 1}})
    page = seen.open()
    seen.drop(b"x" * 2000, "large.png")
    alert = page.locator(".pane [role=alert]").first
    alert.wait_for()
    assert alert.inner_text() == "This file has 2,000 bytes, and the server takes at most 1,000 bytes."
    assert not [request for request in seen.requests if request.startswith("v1/look")]
