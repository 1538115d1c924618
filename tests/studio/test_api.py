"""The studio through Gradio's client, and its errors for bad input."""

import json
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_studios import PASSWORD, class_model, map_model, picture_model, write_picture, write_run

from taming.generation import SamplingOptions
from taming.pictures import to_uint8
from taming.report.records import read_run
from taming.runtime.errors import UserError
from taming.studio import events
from taming.studio.app import check_access
from taming.studio.drawing import to_picture
from taming.studio.maps import enlarge
from taming.studio.uploads import to_images
from taming.studio.watch import _describe, _state

pytest.importorskip("gradio_client", reason="needs Gradio")
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError, AuthenticationError

# images, temperature, top-k, top-p, guidance, seed
SETTINGS = (2, 1.0, 0, 1.0, 1.0, 7)


@pytest.fixture(scope="session")
def client(studios: dict[str, str]) -> Client:
    return Client(studios["class"], verbose=False)


@pytest.fixture(scope="session")
def map_client(studios: dict[str, str]) -> Client:
    return Client(studios["map"], verbose=False)


def pixels(file: Any) -> np.ndarray:
    return np.array(Image.open(file).convert("RGB"))


def canvas(file: Path) -> dict[str, Any]:
    picture = handle_file(file)
    return {"background": picture, "layers": [], "composite": picture, "id": None}


def test_the_grid_is_what_sampling_gives_and_grows_row_by_row(client: Client) -> None:
    job = client.submit(*SETTINGS, 1, api_name="/generate")
    generator = class_model().generator
    images = generator.sample(2, torch.tensor([1, 1]), options=SamplingOptions(seed=7))
    expected = np.array(to_picture(to_uint8(images), ["dogs", "dogs"]))
    assert np.array_equal(pixels(job.result()), expected)
    first = pixels(job.outputs()[0])
    assert first.shape == expected.shape
    assert not np.array_equal(first, expected)


def test_completion_keeps_the_first_rows(client: Client, tmp_path: Path) -> None:
    file = write_picture(tmp_path / "a.png", (16, 16))
    grid = pixels(client.predict(canvas(file), 3, *SETTINGS, -1, api_name="/complete"))
    generator = class_model().generator
    images = torch.from_numpy(pixels(file)).permute(2, 0, 1)[None] / 127.5 - 1
    options = SamplingOptions(seed=7)
    completed = generator.complete(
        images.float().expand(2, -1, -1, -1), 3, torch.tensor([0, 1]), options=options
    )
    assert np.array_equal(grid, np.array(to_picture(to_uint8(completed), ["cats", "dogs"])))


def test_a_label_map_is_the_condition(map_client: Client, tmp_path: Path) -> None:
    painted = np.zeros((64, 64, 3), np.uint8)
    painted[:32] = (255, 0, 0)
    Image.fromarray(painted).save(tmp_path / "map.png")
    file = canvas(tmp_path / "map.png")
    grid = pixels(map_client.predict(*SETTINGS, file, api_name="/generate"))
    generator = map_model().generator
    codes = torch.tensor([[[1, 1], [0, 0]]]).expand(2, -1, -1)
    images = generator.sample(2, codes, options=SamplingOptions(seed=7))
    assert np.array_equal(grid, np.array(to_picture(to_uint8(images))))


def test_a_label_map_file_is_opened_in_its_colours(map_client: Client, tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 2, np.uint8)).save(tmp_path / "map.png")
    opened = map_client.predict(handle_file(tmp_path / "map.png"), api_name="/open_label_map")
    assert pixels(opened["composite"])[0, 0].tolist() == [0, 0, 255]


def test_looking_into_a_picture_and_changing_a_code(
    studios: dict[str, str], tmp_path: Path
) -> None:
    client = Client(studios["class"], verbose=False)  # a session of its own: it has an image
    file = write_picture(tmp_path / "a.png")
    picture, codes, surprise, about = client.predict(handle_file(file), 1, api_name="/look")
    assert "4 × 4 codes" in about and "bits" in about
    assert pixels(picture).shape == pixels(codes).shape == pixels(surprise).shape
    *_, text, alone, attention, gallery = client.predict(5, 0, api_name="/show_code")
    assert "Position 5 (row 1, column 1)" in text
    assert pixels(attention).shape[0] > 96
    probabilities = [float(entry["caption"].split(": ")[1].split("%")[0]) for entry in gallery]
    assert probabilities == sorted(probabilities, reverse=True)
    assert len(gallery) == 12
    assert pixels(alone).shape[0] >= 96
    other = int(gallery[-1]["caption"].split(":")[0])
    changed, *_ = client.predict(5, other, *SETTINGS, api_name="/change")
    assert not np.array_equal(pixels(changed), pixels(picture))
    *_, text, _, _, _ = client.predict(5, 1, api_name="/show_code")
    assert f"**code {other}**" in text


def test_a_tokenizer_alone_can_be_looked_into(studios: dict[str, str], tmp_path: Path) -> None:
    client = Client(studios["tokenizer"], verbose=False, auth=("studio", PASSWORD))
    names = client.view_api(return_format="dict")["named_endpoints"]
    assert "/look" in names and "/generate" not in names
    picture, *_ = client.predict(handle_file(write_picture(tmp_path / "a.png")), api_name="/look")
    assert pixels(picture).shape[0] >= 384
    *_, text, alone = client.predict(3, 0, api_name="/show_code")
    assert "Position 3" in text and pixels(alone).any()


def test_two_models_draw_with_one_seed(client: Client) -> None:
    first, second = client.predict(*SETTINGS, 0, api_name="/compare")
    alone = client.predict(*SETTINGS, 0, api_name="/generate")
    assert np.array_equal(pixels(first), pixels(alone))
    assert not np.array_equal(pixels(first), pixels(second))


def test_each_model_encodes_the_condition_picture_itself(
    studios: dict[str, str], tmp_path: Path
) -> None:
    file = write_picture(tmp_path / "a.png")
    client = Client(studios["pictures"], verbose=False)
    pictures = client.predict(*SETTINGS, canvas(file), api_name="/compare")
    for seed, grid in zip((1, 2), pictures, strict=True):
        generator = picture_model(seed).generator
        condition = to_images(Image.open(file), generator.require_condition_tokenizer(), (4, 4))
        options = SamplingOptions(seed=SETTINGS[-1])
        images = generator.sample(2, condition.expand(2, -1, -1, -1), options=options)
        assert np.array_equal(pixels(grid), np.array(to_picture(to_uint8(images), None)))


def test_both_reconstruct_a_picture(client: Client, tmp_path: Path) -> None:
    file = handle_file(write_picture(tmp_path / "a.png"))
    first, second = client.predict(file, api_name="/reconstruct_both")
    assert pixels(first).shape == enlarge(np.zeros((16, 32, 3))).shape
    assert not np.array_equal(pixels(first), pixels(second))


def test_a_training_is_watched(client: Client, run: Path) -> None:
    status, plot, grids = client.predict([], api_name="/watch")[:3]
    assert "step 150" in status and "psnr 20.5" in status
    assert "0.75" in str(plot)
    assert [grid["caption"] for grid in grids] == ["samples_0000100", "samples_0000050"]


def test_the_end_of_a_training_is_seen(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    before = _state(run)
    (run / "result.json").write_text("{}")
    assert _state(run) != before


def test_a_resumed_training_is_running(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    for step, state in ((150, "has finished"), (100, "is running or was interrupted")):
        (run / "result.json").write_text(json.dumps({"step": step, "metrics": {"val/psnr": 9.5}}))
        text = _describe(read_run(run))
        psnr = 9.5 if step == 150 else 20.5
        assert f"{state}; step 150." in text and f"psnr {psnr}" in text


def broken(folder: Path) -> Iterator[tuple[str, Path, str]]:
    """Bad pictures: name, file, and a part of the error."""
    good = write_picture(folder / "good.png").read_bytes()

    def write(name: str, content: bytes) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    chunk = (
        struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    )
    data = struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    picture = "this file cannot be read"
    yield "text", write("text.png", b"no picture at all"), picture
    yield "empty", write("empty.png", b""), picture
    yield "cut off", write("cut.png", good[: len(good) // 2]), picture
    yield "svg", write("svg.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>"), picture
    yield "pdf", write("pdf.png", b"%PDF-1.4\n%%EOF"), picture
    yield "zip", write("zip.png", b"PK\x03\x04" + bytes(40)), picture
    yield "program", write("elf.png", b"\x7fELF" + bytes(60)), picture
    yield "postscript", write("eps.png", b"%!PS-Adobe-3.0 EPSF-3.0\n"), picture
    yield "enormous", write("bomb.png", good[:8] + chunk + data), "pixels"
    Image.new("1", (9000, 8000)).save(folder / "large.png")
    yield "large", folder / "large.png", "9000×8000 pixels"


def test_bad_uploads_give_a_one_line_error(client: Client, tmp_path: Path) -> None:
    for name, file, part in broken(tmp_path):
        for call in (
            lambda file=file: client.predict(handle_file(file), 1, api_name="/look"),
            lambda file=file: client.predict(canvas(file), 2, *SETTINGS, -1, api_name="/complete"),
        ):
            assert part in error_of(call), name


def error_of(call: Callable[[], Any]) -> str:
    with pytest.raises(AppError) as raised:
        call()
    text = str(raised.value)
    assert len(text) > 20 and "Traceback" not in text and "/gradio/" not in text, text
    return text


@pytest.mark.parametrize(
    ("position", "value", "part"),
    [
        (0, 0, "images is 0, but must be 1 to 64"),
        (0, 1000, "images is 1000"),
        (0, None, "images is empty"),
        (1, -1.0, "temperature is -1, but must be 0 to 2"),
        (1, None, "temperature is empty"),
        (2, -3, "top-k is -3, but must be at least 0"),
        (3, 0.0, "top-p is 0, but must be 0.01 to 1"),
        (3, 2.0, "top-p is 2"),
        (4, 99.0, "guidance is 99, but must be 0 to 10"),
        (5, -1, "seed is -1"),
        (5, None, "seed is empty"),
        (6, 17, "choices"),
        (6, None, "class is empty"),
    ],
)
def test_bad_settings_give_a_one_line_error(
    client: Client, position: int, value: Any, part: str
) -> None:
    settings: list[Any] = [*SETTINGS, 0]
    settings[position] = value
    assert part in error_of(lambda: client.predict(*settings, api_name="/generate"))


def test_other_mistakes_give_a_one_line_error(
    studios: dict[str, str], map_client: Client, tmp_path: Path
) -> None:
    client = Client(studios["class"], verbose=False)
    guided = (2, 1.0, 0, 1.0, 3.0, 7)
    assert "no image to look into" in error_of(lambda: client.predict(0, 0, api_name="/show_code"))
    assert "picture is empty" in error_of(lambda: client.predict(None, 1, api_name="/look"))
    assert "guidance" in error_of(lambda: client.predict(*guided, -2, api_name="/generate"))
    client.predict(handle_file(write_picture(tmp_path / "a.png")), 1, api_name="/look")
    text = error_of(lambda: client.predict(99, 0, api_name="/show_code"))
    assert "position is 99, but must be 0 to 15" in text
    text = error_of(lambda: client.predict(5, 99, *SETTINGS, api_name="/change"))
    assert "new code is 99, but must be 0 to 15" in text
    Image.fromarray(np.full((8, 8), 9, np.uint8)).save(tmp_path / "nine.png")
    for name, part in (("a.png", "not a label map"), ("nine.png", "3 classes")):
        file = handle_file(tmp_path / name)
        text = error_of(lambda file=file: map_client.predict(file, api_name="/open_label_map"))
        assert part in text


def test_one_job_at_a_time_even_after_a_cancelled_one() -> None:
    started, may_end, order = threading.Event(), threading.Event(), []

    def slow() -> Iterator[int]:
        started.set()
        may_end.wait(10)
        order.append("slow")
        yield 1

    first = threading.Thread(target=lambda: next(events._guarded(slow)()))
    second = threading.Thread(target=events._guarded(lambda: order.append("second")))
    first.start()
    assert started.wait(10)
    second.start()
    may_end.set()
    for thread in (first, second):
        thread.join(10)
    assert order == ["slow", "second"]


def test_others_need_a_password(studios: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"host=0\.0\.0\.0.*password"):
        check_access("0.0.0.0", None)
    check_access("0.0.0.0", "secret")
    check_access("localhost", None)
    with pytest.raises(AuthenticationError):
        Client(studios["tokenizer"], verbose=False)
