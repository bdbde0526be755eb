"""Two pictures side by side."""

from __future__ import annotations

from tests.serving.browser.driving import PageDriver, blots


def test_two_pictures_share_block_head_and_query(seen: PageDriver) -> None:
    page = seen.open()
    seen.drop_and_wait(blots(1), "left.png")
    page.get_by_role("button", name="Two side by side").click()
    assert page.get_by_label("right", exact=True).is_checked()
    seen.drop(blots(2), "right.png")
    page.locator(".pane .headline").nth(1).wait_for()
    assert page.locator(".pane .filename").all_inner_texts() == ["left.png", "right.png"]
    left, right = (page.locator(".pane").nth(number).bounding_box() for number in (0, 1))
    assert left is not None and right is not None
    assert right["x"] >= left["x"] + left["width"]
    assert abs(left["y"] - right["y"]) < 2
    page.mouse.move(*seen.patch_at(3, 3, pane=1))
    seen.settle()
    assert all(words.startswith("Patch 3,3") for words in page.locator(".said").all_inner_texts())
    assert page.locator(".heads").count() == 2


def test_a_picture_goes_where_it_is_dropped_and_the_second_can_be_removed(seen: PageDriver) -> None:
    page = seen.open("#sample=0&second=1")
    page.locator(".pane .headline").nth(1).wait_for()
    seen.drop(blots(5), "new.png", onto=".pane[data-pane='0']")
    seen.until("document.querySelector('.pane .filename').textContent === 'new.png'")
    seen.until("location.hash === '#sample=own&second=1'")
    page.get_by_role("button", name="Remove the second picture").click()
    seen.until("location.hash === '#sample=own'")
    assert page.locator(".pane:visible").count() == 1


def test_the_walk_of_two_pictures(seen: PageDriver) -> None:
    page = seen.open("#sample=0&second=2&view=walk")
    page.locator(".step h2").nth(1).wait_for()
    assert page.locator(".step").count() == 2
