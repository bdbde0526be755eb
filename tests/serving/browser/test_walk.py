"""The walk, one step after the other."""

from __future__ import annotations

from tests.serving.browser.driving import PageDriver, blots


def test_the_walk_step_by_step(seen: PageDriver) -> None:
    page = seen.open()
    page.get_by_label("Walk, step by step").check()
    assert "Choose a picture first" in page.locator("#walk").inner_text()
    page.get_by_label("Look", exact=True).check()
    seen.drop_and_wait(blots(1))
    page.get_by_label("Walk, step by step").check()
    page.locator(".step h2").wait_for()
    count = page.locator(".stepper option").count()
    assert count > 8
    previous, next_ = page.get_by_role("button", name="Previous"), page.get_by_role("button", name="Next")
    assert previous.is_disabled()
    titles = [page.locator(".step h2 span").last.inner_text()]
    for number in range(2, count + 1):
        next_.click()
        seen.until("n => document.querySelector('.step .count').textContent === n", str(number))
        titles.append(page.locator(".step h2 span").last.inner_text())
        broken = "[...document.querySelectorAll('.step img')].filter((i) => i.complete && !i.naturalWidth).length"
        assert page.evaluate(broken) == 0
    assert titles[0] == "The image becomes patches"
    assert titles[-1] == "Softmax"
    assert next_.is_disabled()
    figure, bars = page.locator(".figures figure").bounding_box(), page.locator(".figures .bars").bounding_box()
    assert figure is not None and bars is not None
    assert bars["width"] == figure["width"] > 300
    previous.click()
    seen.until_link("step=" + str(count - 1) + "")
    assert sum(request.startswith("v1/walk") for request in seen.requests) == 1


def test_the_walk_goes_through_another_block_and_by_keys(seen: PageDriver) -> None:
    page = seen.open("#sample=0&view=walk&step=7")
    page.locator(".step h2").wait_for()
    page.get_by_label("Through block").fill("0")
    seen.until_link("block=0")
    page.locator(".step h2").wait_for()
    page.get_by_role("button", name="Next").focus()
    page.keyboard.press("ArrowLeft")
    seen.until("document.querySelector('.step .count').textContent === '6'")
    assert [request for request in seen.requests if request.startswith("v1/walk")] == [
        "v1/walk?block=2",
        "v1/walk?block=0",
    ]
