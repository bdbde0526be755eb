"""The page of `vitrail serve` in a real Chromium: one server and one browser for all tests, a new context for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Request, Route

from tests.chromium import CHROMIUM
from tests.serving.browser.driving import LABELS, PageDriver, blots
from tests.serving.conftest import with_familiarity
from tests.serving.server import ThreadServer
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = "the page's tests need Chromium: apt-get install chromium"
    for item in items:
        if CHROMIUM is None and HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def checkpoint(lively: Callable[..., ViT]) -> Checkpoint:
    """8 x 8 patches, three prefix tokens, 3 blocks of 4 heads, and class names that are no HTML."""
    config = preset("mu/4", image_size=32, classes=len(LABELS), depth=3, heads=4, registers=2)
    return with_familiarity(Checkpoint(lively(config), Preprocessing(size=(32, 32)), "classify", LABELS))


@pytest.fixture(scope="session")
def model_file(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    (folder / "samples").mkdir()
    for number, name in enumerate(["one", 'two "quoted" <i>', "three"]):
        (folder / "samples" / f"{number} {name}.png").write_bytes(blots(100 + number))
    return checkpoint.save(folder / "model.safetensors")


@pytest.fixture(scope="session")
def url(model_file: Path) -> Iterator[str]:
    server = ThreadServer(model_file, samples=model_file.parent / "samples")
    yield server.address
    assert server.stop() == 0


@pytest.fixture
def visit(browser: Browser, url: str) -> Iterator[Callable[..., PageDriver]]:
    """Opens a context; at the end nothing may have left this host, and nothing gone wrong in the page."""
    opened: list[PageDriver] = []

    def new(at: str = url, **options: Any) -> PageDriver:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
        seen = PageDriver(context.new_page(), at)

        def watch(route: Route) -> None:
            address = route.request.url
            if not address.startswith(at):
                seen.outside.append(address)
                route.abort()
                return
            route.continue_()

        def note(request: Request) -> None:
            if request.url.startswith("http"):
                seen.requests.append(request.url.removeprefix(at))

        def hear(message: ConsoleMessage) -> None:
            refused = "Failed to load resource: the server responded" in message.text  # the page says it in words
            if message.type == "error" and not refused:
                seen.errors.append(message.text)

        context.route("**/*", watch)
        seen.page.set_default_timeout(10_000)
        seen.page.on("request", note)
        seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
        seen.page.on("console", hear)
        opened.append(seen)
        return seen

    yield new
    for seen in opened:
        seen.page.context.close()
        assert not seen.outside, "the page asked for something elsewhere"
        assert not seen.errors, "something went wrong in the page"


@pytest.fixture
def seen(visit: Callable[..., PageDriver]) -> PageDriver:
    return visit()
