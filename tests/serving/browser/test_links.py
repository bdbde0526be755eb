"""A link keeps what is shown."""

from __future__ import annotations

from collections.abc import Callable

from tests.serving.browser.driving import PageDriver, blots


def test_a_link_opens_what_was_shown(seen: PageDriver, visit: Callable[..., PageDriver]) -> None:
    page = seen.open()
    page.locator(".samples button").nth(2).click()
    page.locator(".pane .headline").first.wait_for()
    page.get_by_role("slider", name="Block", exact=True).fill("1")
    page.locator(".heads .tile").nth(2).click()
    page.mouse.click(*seen.patch_at(6, 2))
    seen.until_link("query=6,2")
    link = page.evaluate("location.hash")
    assert link == "#sample=2&block=1&head=1&query=6,2"
    page.mouse.move(2, 2)
    seen.until_drawn()
    seen.settle()
    drawn = page.evaluate("document.querySelector('.stage canvas').toDataURL()")
    words = page.locator(".said").first.inner_text()

    other = visit()
    page = other.open(link)
    page.locator(".pane .headline").first.wait_for()
    other.settle()
    assert page.locator(".said").first.inner_text() == words
    assert page.evaluate("document.querySelector('.stage canvas').toDataURL()") == drawn
    assert [request for request in other.requests if request.startswith("v1/look")] == ["v1/look?block=1"]


def test_a_link_to_relevance_and_one_to_a_step_of_the_walk(seen: PageDriver) -> None:
    page = seen.open("#sample=0&method=relevance&label=owl")
    seen.until_said("Relevance for owl")
    page.evaluate("location.hash = '#sample=0&view=walk&step=3'")
    page.locator(".step h2").wait_for()
    assert page.locator(".step .count").inner_text() == "3"


def test_a_link_made_with_a_picture_of_ones_own_asks_for_it(seen: PageDriver) -> None:
    page = seen.open("#sample=own&block=0&query=1,1")
    assert "not in it" in page.locator("#asks").inner_text()
    seen.drop_and_wait(blots(1))
    assert page.locator(".said").first.inner_text().startswith("Patch 1,1, block 0")
    assert not page.locator("#asks").is_visible()


def test_a_link_that_makes_no_sense_still_opens_the_page(seen: PageDriver) -> None:
    link = "#sample=99&second=x&block=77&head=-3&query=99,99&method=<b>&label=nobody&view=?&step=1e9&object=7"
    page = seen.open(link)
    seen.drop(blots(1), onto=".pane")
    page.locator(".pane .headline").first.wait_for()
    assert page.locator(".said").first.inner_text().startswith("[CLS], block 2, mean of the heads")


def test_strength_is_what_one_sees(seen: PageDriver) -> None:
    page = seen.open("#sample=0")
    page.locator(".pane .headline").first.wait_for()
    seen.settle()
    strong = page.evaluate("document.querySelector('.stage canvas').toDataURL()")
    page.get_by_label("colours from the least, not from 0").check()
    seen.settle()
    spread = page.evaluate("document.querySelector('.stage canvas').toDataURL()")
    assert spread != strong
    page.get_by_role("slider", name="Strength").fill("0")
    seen.settle()
    assert page.evaluate("document.querySelector('.stage canvas').toDataURL()") != strong
    red, green, blue = seen.colour_of(4, 4)
    assert red == green == blue
