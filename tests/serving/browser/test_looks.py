"""How the page looks and is built: phone, dark, keyboard, labels, nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

import vitrail.serving
from tests.serving.browser.driving import PageDriver, blots
from vitrail.report.pages.rendering import render
from vitrail.serving.routes.static_files import VISUALS, read_web_files
from vitrail.tasks.report_part import page_folders
from vitrail.visuals.colours import HEAT, SIGNED

WEB = Path(vitrail.serving.__file__).parent / "web"


def overflow(page: Page) -> int:
    width: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return width


@pytest.mark.parametrize("width", [360, 768])
def test_nothing_sticks_out_on_a_small_screen(visit: Callable[..., PageDriver], width: int) -> None:
    seen = visit(viewport={"width": width, "height": 740}, has_touch=True, is_mobile=True)
    page = seen.open()
    assert overflow(page) <= 0
    seen.drop_and_wait(blots(1), "a-very-long-name-without-any-space-in-it-" * 3 + ".png")
    assert overflow(page) <= 0
    page.get_by_role("radio", name="Relevance").check()
    seen.until_drawn()
    assert overflow(page) <= 0
    page.get_by_label("Walk, step by step").check()
    page.locator(".step h2").wait_for()
    for _ in range(page.locator(".stepper option").count() - 1):
        assert overflow(page) <= 0
        page.get_by_role("button", name="Next").click()
        seen.settle()
    page.get_by_label("Look", exact=True).check()
    page.get_by_role("button", name="Two side by side").click()
    seen.drop(blots(2), "b.png")
    page.locator(".pane .headline").nth(1).wait_for()
    seen.settle()
    assert overflow(page) <= 0


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(visit: Callable[..., PageDriver], scheme: str) -> None:
    seen = visit(color_scheme=scheme)
    page = seen.open()
    seen.drop_and_wait(blots(1))
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(ground) < 0.1) == (scheme == "dark")
    script = """(name) => {
      const element = document.querySelector(name), style = getComputedStyle(element);
      let behind = element;
      while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
      return [style.color, getComputedStyle(behind).backgroundColor];
    }"""
    for name in ["#choose", "#facts", ".headline span", ".line .number", ".said", "#compare", ".timing", "footer"]:
        ink, paper = (luminance(colour) for colour in page.evaluate(script, name))
        contrast = (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05)
        assert contrast >= 4.5, f"{name} in {scheme}: {contrast:.2f}"


def test_every_control_has_a_name(seen: PageDriver) -> None:
    page = seen.open()
    seen.drop_and_wait(blots(1))
    unnamed = """() => [...document.querySelectorAll("button, input, select, [role=application]")].filter((element) => {
      if (!element.checkVisibility() || element.type === "file") return false;
      const label = element.labels?.[0]?.textContent || element.getAttribute("aria-label") || element.textContent;
      return !label.trim();
    }).map((element) => element.outerHTML)"""
    assert page.evaluate(unnamed) == []
    page.get_by_label("Walk, step by step").check()
    page.locator(".step h2").wait_for()
    assert page.evaluate(unnamed) == []
    assert page.evaluate("[...document.images].every((image) => image.hasAttribute('alt'))")


def test_everything_by_keyboard(seen: PageDriver) -> None:
    """From the top of the page: open a sample, ask a patch, choose a head and a class, go for a walk."""
    page = seen.open()

    def tab_to(name: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("(name) => document.activeElement?.matches(name)", name):
                return
        raise AssertionError(f"{name} cannot be reached by Tab")

    page.locator(".samples button").first.wait_for()
    tab_to(".samples button")
    page.keyboard.press("Enter")
    page.locator(".pane .headline").first.wait_for()
    tab_to(".stage")
    page.keyboard.press("ArrowUp")
    seen.until_link("query=4,4")
    tab_to(".heads .tile")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    seen.until_link("head=0")
    page.evaluate("document.activeElement.blur()")
    page.locator("#choose").focus()
    tab_to(".line")
    page.keyboard.press("Enter")
    seen.until_link("method=relevance")
    page.locator("#choose").focus()
    tab_to("#view input")
    page.keyboard.press("ArrowRight")
    page.locator(".step h2").wait_for()
    tab_to(".stepper .primary")
    page.keyboard.press("Enter")
    seen.until("document.querySelector('.step .count').textContent === '2'")


def test_colours_are_those_of_the_reports() -> None:
    variables = re.compile(r"--[\w-]+: #[0-9a-f]{6}")
    report = render("base.html", name="", subtitle="", made="")
    linked = re.findall(r'href="(web/\w+\.css)"', (WEB / "index.html").read_text("utf-8"))
    served = "".join(read_web_files()[f"/{path}"].data.decode() for path in linked)
    assert len(set(variables.findall(served))) == 32
    assert variables.findall(served) == variables.findall(report)
    script = (WEB / "maps" / "colours.js").read_text("utf-8")
    for name, stops in (("HEAT", HEAT), ("SIGNED", SIGNED)):
        [gradient] = re.findall(rf"export const {name} = \[(.*)\];", script)
        assert tuple(re.findall(r"#[0-9a-f]{6}", gradient)) == stops


def test_no_script_writes_html_and_no_file_names_another_host() -> None:
    of_tasks = [path for folder in page_folders() for path in Path(folder).glob("*.js")]
    shared = VISUALS.glob("*.css")
    for path in sorted([*(path for path in WEB.rglob("*") if path.is_file()), *of_tasks, *shared]):
        text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|\"//", text), path.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|style=", text), path.name
        assert max(map(len, text.splitlines())) <= 125 or path.suffix == ".css", path.name
