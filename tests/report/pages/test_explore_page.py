"""The page of `vitrail explore`: complete in itself, names are text, and its map works under a hand in Chromium."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page

from tests.chromium import CHROMIUM
from tests.report.pages.test_check_page import EVIL, QUOTED, Reader
from tests.search.pile.blobs import blobs
from vitrail.report.pages.explore_page import choose_pictures, page
from vitrail.search.pile.exploration import Exploration, explore_vectors
from vitrail.search.pile.image_pile import Pile


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Exploration:
    """40 images in two classes; the last is a copy of the first, and one has a name that is HTML."""
    root = tmp_path_factory.mktemp("pile")
    vectors, classes = blobs(2, 20, noise=0)
    vectors += 0.6 * np.random.default_rng(0).normal(size=vectors.shape).astype(np.float32)
    vectors[39] = vectors[0]
    paths = []
    for number, label in enumerate(classes):
        folder = root / ("cat", EVIL)[label]
        folder.mkdir(exist_ok=True)
        paths.append(folder / (QUOTED if number == 5 else f"{number}.png"))
        colour = np.full((30, 20 + number, 3), 6 * number, np.uint8)
        Image.fromarray(colour).save(paths[-1])
    return explore_vectors(vectors, Pile(root, paths, classes, ("cat", EVIL)), clusters=2)


def test_names_are_text_and_only_the_script_runs(found: Exploration) -> None:
    text = page(found, model="model.safetensors", data="pile")
    reader = Reader(text)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    policy = next(attributes["content"] for tag, attributes in reader.tags if "http-equiv" in attributes)
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert not [name for _, attributes in reader.tags for name in attributes if name.startswith("on")]
    assert not [attributes for _, attributes in reader.tags if "href" in attributes]
    pictures = [attributes["src"] for tag, attributes in reader.tags if tag == "img"]
    assert pictures and all(src and src.startswith("data:image/jpeg;base64,") for src in pictures)


def test_controls_have_names(found: Exploration) -> None:
    reader = Reader(page(found, model="model.safetensors", data="pile"))
    canvas = next(attributes for tag, attributes in reader.tags if tag == "canvas")
    assert canvas["tabindex"] == "0" and "Arrow keys" in str(canvas["aria-label"])
    fields = [tag for tag, _ in reader.tags if tag in ("input", "select", "textarea")]
    assert len(fields) == len([tag for tag, _ in reader.tags if tag == "label"]) == 4


def test_pictures_are_for_some_of_a_large_pile_from_every_region(found: Exploration) -> None:
    chosen = choose_pictures(found, [7, 9], 12)
    assert len(chosen) == 12 and {7, 9} <= set(chosen) and chosen == sorted(chosen)
    assert len({int(found.clusters.number[place]) for place in chosen}) == 2
    text = page(found, model="model.safetensors", data="pile", thumbnails=12)
    assert "12 of 40 images have a small picture here" in text.lower() or "12 of 40" in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    numbers = np.frombuffer(base64.b64decode(data["picture"]), "<i4")
    assert (numbers >= 0).sum() == 12 and numbers.max() == 11


# ---- in a browser


@pytest.fixture
def opened(browser: Browser, found: Exploration, tmp_path: Path) -> Iterator[Page]:
    """The page from a disk, without a network."""
    if CHROMIUM is None:
        pytest.skip("the page's tests need Chromium: apt-get install chromium")
    file = tmp_path / "explored.html"
    file.write_text(page(found, model="model.safetensors", data="pile"), encoding="utf-8")
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    shown, errors = context.new_page(), []
    shown.on("pageerror", lambda error: errors.append(str(error)))
    shown.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    shown.set_default_timeout(10_000)
    shown.goto(file.as_uri())
    shown.wait_for_function("document.getElementById('map').dataset.view")
    yield shown
    context.close()
    assert not errors


def screen_places(shown: Page) -> np.ndarray:
    """(N, 2): where each image is drawn on the screen."""
    script = """() => {
      const map = document.getElementById("map"), box = map.getBoundingClientRect();
      const view = JSON.parse(map.dataset.view);
      return Array.from(X, (x, i) => [x * view.scale + view.left + box.left, Y[i] * view.scale + view.top + box.top]);
    }"""
    return np.array(shown.evaluate(script))


def lasso(shown: Page, places: np.ndarray) -> None:
    """Draw around these places on the screen."""
    (left, top), (right, bottom) = places.min(0) - 6, places.max(0) + 6
    shown.get_by_role("button", name="Lasso").click()
    shown.mouse.move(left, top)
    shown.mouse.down()
    for x, y in ((right, top), (right, bottom), (left, bottom), (left, top)):
        shown.mouse.move(x, y, steps=3)
    shown.mouse.up()


def test_the_lasso_lists_the_files_that_it_encloses(opened: Page, found: Exploration, tmp_path: Path) -> None:
    places = screen_places(opened)
    lasso(opened, places[found.pile.classes == 1])
    files = opened.get_by_label("Files", exact=True).input_value().splitlines()
    (left, top), (right, bottom) = (
        (places[found.pile.classes == 1].min(0) - 6),
        (places[found.pile.classes == 1].max(0) + 6),
    )
    inside = ((places > (left, top)) & (places < (right, bottom))).all(1)
    assert files == [found.name(place) for place in np.flatnonzero(inside)] and len(files) >= 20
    assert opened.get_by_role("status").inner_text() == f"{len(files)} images selected."
    with opened.expect_download() as download:
        opened.get_by_role("button", name="Save the list").click()
    download.value.save_as(tmp_path / "list.txt")
    assert (tmp_path / "list.txt").read_text(encoding="utf-8").splitlines() == files
    opened.get_by_role("button", name="Copy the list").click()
    opened.get_by_text(f"Copied {len(files)} images.").wait_for()


def test_what_is_hidden_is_not_selected(opened: Page, found: Exploration) -> None:
    opened.locator("#legend button").nth(1).click()
    lasso(opened, screen_places(opened))
    files = opened.get_by_label("Files", exact=True).input_value().splitlines()
    assert len(files) == 20 and all(file.startswith("cat/") for file in files)


def test_hovering_names_the_image(opened: Page, found: Exploration) -> None:
    x, y = screen_places(opened)[5]
    opened.mouse.move(x, y)
    assert f"cat/{QUOTED}" in opened.locator(".tip").inner_text() and "Cluster" in opened.locator(".tip").inner_text()
    assert opened.evaluate("document.title") == "Explored: pile"


def test_it_goes_by_keyboard(opened: Page) -> None:
    opened.locator("#map").focus()
    before = screen_places(opened)
    opened.keyboard.press("+")
    opened.keyboard.press("ArrowLeft")
    opened.wait_for_function(
        "before => JSON.parse(document.getElementById('map').dataset.view).scale !== before", arg=0
    )
    opened.wait_for_timeout(100)
    after = screen_places(opened)
    assert np.ptp(after, axis=0) == pytest.approx(1.4 * np.ptp(before, axis=0), rel=0.01)
    opened.keyboard.press("0")
    opened.keyboard.press("Enter")
    assert opened.get_by_role("status").inner_text() == "40 images selected."
    opened.keyboard.press("Escape")
    assert opened.get_by_role("status").inner_text() == "Nothing is selected."


def test_two_fingers_zoom(opened: Page) -> None:
    """Pointer events as a touch screen sends them: one finger rests, the other doubles its distance."""
    before = screen_places(opened)
    script = """([first, second, moved]) => {
      const map = document.getElementById("map");
      map.setPointerCapture = () => {};
      const send = (type, pointerId, [clientX, clientY]) =>
        map.dispatchEvent(new PointerEvent(type, { pointerId, clientX, clientY, pointerType: "touch" }));
      send("pointerdown", 11, first); send("pointerdown", 12, second); send("pointermove", 12, moved);
      send("pointerup", 11, first); send("pointerup", 12, moved);
      draw();
    }"""
    opened.evaluate(script, [[500, 500], [550, 500], [600, 500]])
    assert np.ptp(screen_places(opened), axis=0) == pytest.approx(2 * np.ptp(before, axis=0), rel=0.01)
    assert opened.get_by_role("status").inner_text().startswith("Nothing is selected")


def test_lists_select_and_point_at_the_map(opened: Page, found: Exploration) -> None:
    opened.get_by_role("button", name="Select Cluster 1").click()
    assert len(opened.get_by_label("Files", exact=True).input_value().splitlines()) == len(found.members(0))
    opened.get_by_role("button", name="Select group 1").click()
    assert opened.get_by_label("Files", exact=True).input_value().splitlines() == [found.name(0), found.name(39)]
    opened.locator(".cluster .find").first.click()
    assert found.name(found.typical[0][0]) in opened.locator(".tip").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dots_have_the_colours_of_their_classes(opened: Page, found: Exploration, scheme: str) -> None:
    opened.emulate_media(color_scheme=scheme)
    opened.get_by_label("pictures").uncheck()
    opened.wait_for_timeout(100)
    script = """([x, y]) => {
      const map = document.getElementById("map"), box = map.getBoundingClientRect(), sharp = map.width / box.width;
      const place = [(x - box.left) * sharp, (y - box.top) * sharp];
      return [...map.getContext("2d").getImageData(...place, 1, 1).data].slice(0, 3);
    }"""
    colours = {
        label: [
            opened.evaluate(script, place.tolist()) for place in screen_places(opened)[found.pile.classes == label][:5]
        ]
        for label in (0, 1)
    }
    expected = {0: (0x3D, 0x84, 0xEA), 1: (0xF0, 0x88, 0x3D)}
    for label, seen in colours.items():
        assert np.abs(np.array(seen) - expected[label]).max() <= 8
