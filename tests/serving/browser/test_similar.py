"""Similar pictures on the page: drop one, see its neighbours, click one to go on from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import vitrail
from tests.serving.browser.driving import PageDriver, blots
from tests.serving.server import ThreadServer
from vitrail.serving.middleware.access_policy import AccessPolicy

pytest.importorskip("pyarrow")
HOSTILE = "<img src=x onerror=document.title='broken'>.png"
TOKEN = "secret-token"


@pytest.fixture(scope="module")
def found_in(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """30 pictures behind a token; one has a hostile name, one is gone."""
    folder = tmp_path_factory.mktemp("found")
    (folder / "pictures").mkdir()
    for seed in range(30):
        (folder / "pictures" / (HOSTILE if seed == 3 else f"{seed}.png")).write_bytes(blots(seed))
    vitrail.index(model_file, folder / "pictures", out=folder / "idx")
    (folder / "pictures" / "29.png").unlink()
    server = ThreadServer(model_file, AccessPolicy(TOKEN), index=folder / "idx")
    yield server.address
    assert server.stop() == 0


def scores(seen: PageDriver) -> list[float]:
    return [float(text) for text in seen.page.locator("#similar .score").all_inner_texts()]


def names(seen: PageDriver) -> list[str]:
    return seen.page.locator("#similar .hit .filename").all_inner_texts()


def test_drop_see_and_go_on(visit: Callable[..., PageDriver], found_in: str) -> None:
    seen = visit(found_in)
    page = seen.open(f"#token={TOKEN}")
    page.get_by_role("radio", name="Similar pictures").check()
    assert "Choose a picture first: the most similar ones of 30 pictures" in page.locator("#similar").inner_text()
    seen.drop(blots(5), "mine.png")
    page.locator("#similar .hit").first.wait_for()
    assert names(seen)[0] == "5.png" and scores(seen)[0] > 0.999 and len(names(seen)) == 24
    assert scores(seen) == sorted(scores(seen), reverse=True)
    assert "Pictures like mine.png, of 30 pictures" in page.locator("#similar [role=status]").inner_text()
    seen.until("document.querySelectorAll('#similar .hit img').length > 22")
    seen.until("[...document.querySelectorAll('#similar .hit img')].filter(one => one.naturalWidth === 32).length > 20")
    second = names(seen)[1]
    page.locator("#similar .hit").nth(1).click()
    seen.until("name => document.querySelector('#similar .hit .filename').textContent === name", second)
    assert scores(seen)[0] > 0.999
    seen.until_link("similar=")
    page.get_by_role("button", name="Back to your picture").click()
    seen.until("document.querySelector('#similar .hit .filename').textContent === '5.png'")
    page.locator("#similar .hit").nth(2).click()
    page.get_by_role("button", name="Back to your picture").wait_for()
    seen.drop(blots(7), "other.png")  # a new picture is asked about at once
    seen.until("document.querySelector('#similar .hit .filename').textContent === '7.png'")


def test_names_are_text_and_a_link_shows_the_same(visit: Callable[..., PageDriver], found_in: str) -> None:
    seen = visit(found_in)
    page = seen.open(f"#token={TOKEN}&view=similar")
    seen.drop(blots(3), "mine.png")
    page.locator("#similar .hit").first.wait_for()
    assert names(seen)[0] == HOSTILE and page.title() != "broken"
    page.locator("#similar .hit").first.click()
    seen.until_link("similar=")
    link = page.evaluate("location.hash")
    again = visit(found_in)
    again.open(f"#token={TOKEN}&{link[1:]}".replace("sample=own&", ""))
    again.page.locator("#similar .hit").first.wait_for()
    assert names(again) == names(seen)


def test_a_phone_in_the_dark_and_a_picture_that_is_gone(visit: Callable[..., PageDriver], found_in: str) -> None:
    seen = visit(found_in, viewport={"width": 360, "height": 700}, color_scheme="dark")
    page = seen.open(f"#token={TOKEN}&view=similar")
    seen.drop(blots(29), "mine.png")
    page.locator("#similar .hit .none").first.wait_for()
    assert page.locator("#similar .hit").first.inner_text().startswith("not there any more")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_without_an_index_there_is_no_such_view(seen: PageDriver) -> None:
    page = seen.open("#view=similar")
    assert page.locator("#finds").is_hidden() and page.locator("#similar").is_hidden()
    assert page.locator("#look").is_visible()
