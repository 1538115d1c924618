"""The studio in a headless Chromium: what a user clicks and sees."""

from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WAIT = 60_000  # milliseconds, on a busy machine


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that must not ask anything of another machine."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(WAIT)
    elsewhere: list[str] = []
    errors: list[str] = []
    local = ("http://127.0.0.1", "data:", "blob:")
    page.on("request", lambda r: None if r.url.startswith(local) else elsewhere.append(r.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert elsewhere == []
    assert errors == []


def tab(page: Any, name: str) -> Any:
    page.get_by_role("tab", name=name, exact=True).first.click()
    return page.get_by_role("tabpanel").filter(visible=True)


def picture(page: Any, name: str) -> Any:
    """The picture that is shown in a component."""
    return page.locator(f"#{name} img").first


def source(image: Any) -> str:
    image.wait_for()
    return str(image.get_attribute("src"))


def test_draw_look_and_change_a_code(page: Any, class_studio: str) -> None:
    page.goto(class_studio)
    panel = tab(page, "Generate")
    panel.get_by_label("images").fill("2")
    panel.get_by_role("button", name="Draw").click()
    grid = picture(page, "generated")
    grid.wait_for()
    page.wait_for_timeout(3000)
    box = grid.bounding_box()
    grid.click(position={"x": box["width"] * 0.75, "y": box["height"] * 0.6})
    panel = page.get_by_role("tabpanel").filter(visible=True, has_text="Look into it")
    panel.get_by_text("different ones of 16").wait_for()
    decoded = picture(page, "decoded")
    before = source(decoded)
    box = decoded.bounding_box()
    # the second row of codes, its third column
    decoded.click(position={"x": box["width"] * 2.5 / 4, "y": box["height"] * 1.5 / 4})
    panel.get_by_text("Position 6 (row 1, column 2)").wait_for()
    assert panel.get_by_label("position").input_value() == "6"
    picture(page, "attention").wait_for()
    candidate = panel.get_by_role("button").filter(has_text="%").last
    code = candidate.inner_text().split(":")[0]
    candidate.click()
    panel.get_by_role("button", name="Change it").click()
    page.wait_for_function("before => !document.querySelector(`img[src='${before}']`)", arg=before)
    panel.get_by_role("button", name="Show this code").click()
    panel.get_by_text(f"code {code}", exact=True).wait_for()
