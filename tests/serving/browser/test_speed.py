"""The first map is there within twice the forward pass and a tenth of a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.serving.browser.driving import PageDriver, blots
from tests.serving.server import ThreadServer


@pytest.fixture(scope="module")
def small_16() -> Iterator[str]:
    server = ThreadServer("S/16")
    yield server.address
    assert server.stop() == 0


def test_the_first_map_of_s16(visit: Callable[..., PageDriver], small_16: str) -> None:
    seen = visit(small_16)
    page = seen.open()
    beyond = []
    for number in range(5):
        seen.drop(blots(number, (224, 224)), f"{number}.png")
        seen.until(
            "name => document.querySelector('.pane .filename').textContent === name"
            " && performance.getEntriesByName('map drawn').length",
            f"{number}.png",
        )
        waited = page.evaluate("performance.measure('wait', 'picture given', 'map drawn').duration")
        forward = float(page.locator(".timing").first.inner_text().split()[-2])
        beyond.append(waited - 2 * forward)
    assert min(beyond) <= 100, beyond
