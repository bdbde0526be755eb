"""A server that asks for a token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.serving.browser.driving import PageDriver
from tests.serving.server import ThreadServer
from vitrail.serving.middleware.access_policy import AccessPolicy

TOKEN = "open-sesame-0123456789"


@pytest.fixture(scope="module")
def guarded(model_file: Path) -> Iterator[str]:
    server = ThreadServer(model_file, AccessPolicy(TOKEN), model_file.parent / "samples")
    yield server.address
    assert server.stop() == 0


def test_the_token_is_asked_for_until_it_is_right(visit: Callable[..., PageDriver], guarded: str) -> None:
    seen = visit(guarded)
    page = seen.page
    page.goto(guarded)
    page.get_by_label("This server asks for a token").fill("wrong")
    page.get_by_role("button", name="Enter").click()
    page.get_by_label("This server asks for a token").fill(TOKEN)
    page.get_by_role("button", name="Enter").click()
    page.locator(".samples button").first.click()
    page.locator(".pane .headline").first.wait_for()
    seen.until("document.querySelector('.samples img').naturalWidth > 0")
    assert not page.locator("#token-form").is_visible()
    seen.until_link("sample=0")  # written a moment after the choice
    page.reload()
    page.locator(".pane .headline").first.wait_for()  # this tab remembers it


def test_the_token_in_the_address_is_used_and_taken_out_of_it(visit: Callable[..., PageDriver], guarded: str) -> None:
    seen = visit(guarded)
    page = seen.open(f"#sample=1&token={TOKEN}")
    page.locator(".pane .headline").first.wait_for()
    assert page.evaluate("location.hash") == "#sample=1"
    assert all(TOKEN not in request for request in seen.requests)


def test_the_address_with_the_token_may_come_later(visit: Callable[..., PageDriver], guarded: str) -> None:
    seen = visit(guarded)
    page = seen.page
    page.goto(guarded)
    page.locator("#token-form").wait_for()
    page.evaluate(f"location.hash = '#token={TOKEN}'")
    page.locator("#pictures").wait_for()
    assert page.evaluate("location.hash") == ""
