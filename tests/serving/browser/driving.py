"""Driving the page of `vitrail serve` in a real Chromium."""

from __future__ import annotations

import base64
import io
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Page

LABELS = ["<img src=x onerror=\"document.title='broken'\">", 'a "quoted" & <b>bold</b> name', "owl", "cat"]


def blots(seed: int, size: tuple[int, int] = (60, 80)) -> bytes:
    """A PNG of large blots; no two give the same answer."""
    colours = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    picture = Image.fromarray(colours).resize((size[1], size[0]), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


@dataclass
class PageDriver:
    """A page, and what it asked for."""

    page: Page
    url: str
    requests: list[str] = field(default_factory=list)  # paths with their queries
    outside: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def open(self, link: str = "") -> Page:
        self.page.goto(self.url + link)
        self.page.locator("#pictures").wait_for()
        return self.page

    def drop(self, data: bytes, name: str = "photo.png", onto: str = "body") -> None:
        """As a hand would: the file arrives with a drop event."""
        script = """([data, name]) => {
          const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
          const transfer = new DataTransfer();
          transfer.items.add(new File([bytes], name, { type: "image/png" }));
          return transfer;
        }"""
        transfer = self.page.evaluate_handle(script, [base64.b64encode(data).decode(), name])
        self.page.dispatch_event(onto, "drop", {"dataTransfer": transfer})

    def drop_and_wait(self, data: bytes, name: str = "photo.png") -> None:
        self.drop(data, name)
        self.page.locator(".pane .headline").first.wait_for()
        self.settle()

    def until(self, script: str, given: Any = None, seconds: float = 10) -> None:
        """Until the expression, or the function of what is given, is true. (Playwright's own way to wait is eval in
        the page, which the page's policy forbids.)"""
        end = time.monotonic() + seconds
        while not self.page.evaluate(script, given):
            assert time.monotonic() < end, f"this did not come true: {script}"
            time.sleep(0.02)

    def until_said(self, words: str) -> None:
        self.until("words => document.querySelector('.said').textContent.includes(words)", words)

    def until_link(self, part: str) -> None:
        self.until("part => location.hash.includes(part)", part)

    def until_drawn(self) -> None:
        """What was asked of the server is on the page."""
        self.until("!document.querySelector('.stage').classList.contains('busy')")
        self.settle()

    def settle(self) -> None:
        """Until two frames have been drawn."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def patch_at(self, row: int, column: int, pane: int = 0, grid: tuple[int, int] = (8, 8)) -> tuple[float, float]:
        """Where the middle of a patch is on the screen."""
        self.page.locator(".stage").nth(pane).scroll_into_view_if_needed()
        box = self.page.locator(".stage").nth(pane).bounding_box()
        assert box is not None
        return box["x"] + box["width"] * (column + 0.5) / grid[1], box["y"] + box["height"] * (row + 0.5) / grid[0]

    def colour_of(self, row: int, column: int, pane: int = 0, grid: tuple[int, int] = (8, 8)) -> list[int]:
        """The colour drawn in the middle of a patch."""
        script = """([pane, x, y]) => {
          const canvas = document.querySelectorAll(".stage canvas")[pane];
          const place = [Math.floor(x * canvas.width), Math.floor(y * canvas.height)];
          return [...canvas.getContext("2d").getImageData(...place, 1, 1).data].slice(0, 3);
        }"""
        place = [pane, (column + 0.5) / grid[1], (row + 0.5) / grid[0]]
        colour: list[int] = self.page.evaluate(script, place)
        return colour

    def hard_edges(self) -> None:
        """No smoothing and full strength, so that a patch has the colour of its number."""
        self.page.get_by_label("smooth between patches").uncheck()
        self.page.get_by_role("slider", name="Strength").fill("100")
        self.settle()
