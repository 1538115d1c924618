"""The studio in headless Chromium: what a user clicks, uploads, paints and reads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_studios import PASSWORD, write_picture

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WAIT = 60_000  # milliseconds, on a busy machine


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that must not contact other machines."""
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
    # Gradio's own editor of pictures raises this as it opens
    assert [error for error in errors if error != "https://svelte.dev/e/props_invalid_value"] == []


def tab(page: Any, name: str) -> Any:
    page.get_by_role("tab", name=name, exact=True).first.click()
    return page.get_by_role("tabpanel").filter(visible=True)


def picture(page: Any, name: str) -> Any:
    """The picture that is shown in a component."""
    return page.locator(f"#{name} img").first


def source(image: Any) -> str:
    image.wait_for()
    return str(image.get_attribute("src"))


def until_replaced(page: Any, src: str) -> None:
    page.wait_for_function("src => !document.querySelector(`img[src='${src}']`)", arg=src)


def says(page: Any, text: str) -> None:
    page.locator(".toast-body", has_text=text).first.wait_for()


def test_draw_look_and_change_a_code(page: Any, studios: dict[str, str]) -> None:
    page.goto(studios["class"])
    panel = tab(page, "Generate")
    panel.get_by_label("images").fill("2")
    panel.get_by_role("button", name="Draw").click()
    grid = picture(page, "generated")
    grid.wait_for()
    page.wait_for_timeout(3000)
    box = grid.bounding_box()
    grid.click(position={"x": box["width"] * 0.75, "y": box["height"] * 0.6})
    panel = page.get_by_role("tabpanel").filter(visible=True, has_text="Look again")
    panel.get_by_text("different ones out of 16").wait_for()
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
    page.wait_for_function(
        "([input, code]) => input.value === code",
        arg=[panel.get_by_label("new code").element_handle(), code],
    )
    panel.get_by_role("button", name="Change the code").click()
    until_replaced(page, before)
    panel.get_by_text(f"code {code}", exact=True).wait_for()


def test_an_upload_shows_its_codes_and_nothing_is_shown_before(
    page: Any, studios: dict[str, str], tmp_path: Path
) -> None:
    page.goto(studios["tokenizer"])
    page.locator("input[type=password]").wait_for()
    form = {"username": "studio", "password": PASSWORD}
    page.request.post(studios["tokenizer"] + "login", form=form)
    page.goto(studios["tokenizer"])
    panel = page.get_by_role("tabpanel").filter(visible=True)
    panel.get_by_text("Upload or paste a picture").wait_for()
    assert not any(page.locator(f"#{name}").is_visible() for name in ("decoded", "codes", "code"))
    page.locator("input[type=file]").first.set_input_files(write_picture(tmp_path / "a.png"))
    panel.get_by_text("different ones out of 16").wait_for()
    panel.get_by_text("Position 10 (row 2, column 2)").wait_for()  # in the middle
    picture(page, "code").wait_for()
    assert not panel.get_by_text("new code").is_visible()
    panel.get_by_label("position").fill("99")
    panel.get_by_role("button", name="Show this code").click()
    says(page, "position is 99, but must be 0 to 15")


def test_a_picture_is_drawn_upon_and_completed(
    page: Any, studios: dict[str, str], tmp_path: Path
) -> None:
    page.goto(studios["class"])
    panel = tab(page, "Complete")
    panel.get_by_role("button", name="Complete").click()
    says(page, "the picture is empty")
    panel.locator("input[type=file]").first.set_input_files(write_picture(tmp_path / "a.png"))
    page.wait_for_timeout(3000)
    stroke(page, panel.locator("canvas").first)
    panel.get_by_role("button", name="Complete").click()
    picture(page, "completed").wait_for()


def test_a_label_map_is_painted(page: Any, studios: dict[str, str]) -> None:
    page.goto(studios["map"])
    panel = tab(page, "Generate")
    page.wait_for_timeout(3000)
    panel.get_by_role("button", name="Draw").click()
    grid = picture(page, "generated")
    grid.wait_for()
    page.wait_for_timeout(3000)
    before = source(grid)
    fill_first_cell(page, panel.locator("canvas").first)
    panel.get_by_role("button", name="Draw").click()
    until_replaced(page, before)


def fill_first_cell(page: Any, canvas: Any) -> None:
    """Paints the upper left quarter, so that its cell's most frequent class is another one."""
    box = canvas.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x - 130, y - 130)
    page.mouse.down()
    for line in range(7):
        page.mouse.move(x - (10 if line % 2 == 0 else 130), y - 130 + 20 * line, steps=2)
    page.mouse.up()
    page.wait_for_timeout(1000)


def stroke(page: Any, canvas: Any) -> None:
    box = canvas.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x - 40, y)
    page.mouse.down()
    page.mouse.move(x + 40, y + 30, steps=10)
    page.mouse.up()
    page.wait_for_timeout(1000)


def test_both_models_and_a_training_are_shown(page: Any, studios: dict[str, str]) -> None:
    page.goto(studios["class"])
    panel = tab(page, "Compare")
    panel.get_by_role("button", name="Draw with both").click()
    picture(page, "drawn-0").wait_for()
    picture(page, "drawn-1").wait_for()
    panel = tab(page, "Training")
    panel.get_by_text("step 150").wait_for()
    panel.locator("canvas, svg.marks").first.wait_for()
    panel.get_by_text("samples_0000100").wait_for()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no picture at all", "this file cannot be read"),
        (bytes(21 * 2**20), "maximum allowed size"),
    ],
)
def test_a_bad_upload_gives_an_error_in_the_page(
    page: Any, studios: dict[str, str], tmp_path: Path, content: bytes, message: str
) -> None:
    page.goto(studios["class"])
    panel = tab(page, "Look")
    (tmp_path / "bad.png").write_bytes(content)
    panel.locator("input[type=file]").first.set_input_files(tmp_path / "bad.png")
    says(page, message)


def test_cancel_ends_a_drawing(page: Any, studios: dict[str, str]) -> None:
    """The first of its rows is shown, and the next job begins before its last could be drawn."""
    page.goto(studios["slow"])
    panel = tab(page, "Generate")
    panel.get_by_role("button", name="Draw").click()
    grid = picture(page, "generated")
    grid.wait_for()
    panel.get_by_role("button", name="Cancel").click()
    page.wait_for_timeout(1000)
    cancelled = source(grid)
    page.wait_for_timeout(4000)
    assert source(grid) == cancelled  # no row came after
    panel.get_by_role("button", name="Draw").click()
    until_replaced(page, cancelled)
