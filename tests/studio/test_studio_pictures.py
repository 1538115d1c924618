"""Uploads become tensors, and codes become pictures."""

from pathlib import Path

import gradio as gr
import numpy as np
import pytest
import torch
from PIL import Image
from tiny_studios import PALETTE, class_model, map_model, tokenizer, write_picture

from taming.generation import SamplingOptions
from taming.pictures import to_uint8
from taming.runtime.errors import UserError
from taming.studio.components import in_range
from taming.studio.drawing import Drawing, draw_rows, num_columns, together
from taming.studio.maps import attention_picture, codes_picture, mark_code, single_codes
from taming.studio.uploads import read_picture, to_images


def test_a_picture_is_cropped_in_the_middle() -> None:
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, 10:30] = 255  # the middle square
    images = to_images(Image.fromarray(pixels), tokenizer(), (4, 4))
    assert images.shape == (1, 3, 16, 16)
    assert images[..., 1:-1].min() == 1


def test_colours_become_the_nearest_class() -> None:
    cells = map_model().generator.require_condition_tokenizer()
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:16] = (250, 9, 3)  # as a brush's edge leaves it
    pixels[16:, 16:] = (10, 0, 200)
    maps = to_images(Image.fromarray(pixels), cells, (2, 2), np.array(PALETTE, np.uint8))
    assert maps.shape == (1, 3, 16, 16)
    assert cells.encode(maps).tolist() == [[[1, 1], [0, 2]]]


def test_only_usual_formats_are_opened(tmp_path: Path) -> None:
    """A decoder such as that of EPS starts another program."""
    eps = tmp_path / "picture.png"
    Image.new("RGB", (4, 4)).save(eps, "EPS")
    with pytest.raises(UserError, match="this file cannot be read") as raised:
        read_picture(eps)
    assert str(tmp_path) not in str(raised.value)


def test_rows_are_the_images_of_one_call() -> None:
    model = class_model()
    options, labels = SamplingOptions(seed=3), torch.tensor([0, 2])
    steps = list(draw_rows(model.generator, 2, labels, options))
    images = model.generator.sample(2, labels, options=options)
    assert np.array_equal(steps[-1].pixels, to_uint8(images))
    assert steps[0].tokens.shape == (2, 4)
    assert (steps[0].pixels[:, 4:] == steps[0].pixels[0, -1, -1]).all()  # not drawn yet
    assert {step.pixels.shape for step in steps} == {(2, 16, 16, 3)}


def test_the_shorter_of_two_drawings_stays_visible() -> None:
    first, second = (
        [Drawing(torch.zeros(1, n), np.zeros((1, 4, 4, 3), np.uint8)) for n in range(count)]
        for count in (1, 3)
    )
    steps = [(one.tokens.shape[1], other.tokens.shape[1]) for one, other in together(first, second)]
    assert steps == [(0, 0), (0, 1), (0, 2)]


def test_the_grid_of_codes_has_each_code_alone_in_its_place(tmp_path: Path) -> None:
    vqgan = tokenizer()
    images = to_images(read_picture(write_picture(tmp_path / "a.png")), vqgan, (4, 4))
    with torch.no_grad():
        indices = vqgan.encode(images)[0]
        picture = codes_picture(vqgan, indices)
        alone = single_codes(vqgan, indices[1, 2][None])[0]
    assert np.array_equal(picture[4:8, 8:12], alone)


def test_all_places_of_a_code_are_framed() -> None:
    indices = torch.tensor([[1, 2], [3, 1]])
    marked = np.array(mark_code(np.full((4, 4, 3), 200, np.uint8), indices, 3))
    half = len(marked) // 2
    assert marked[-1, -1].tolist() != marked[0, 0].tolist()  # the chosen one, another
    inner = marked[half // 2, half // 2].tolist(), marked[half + half // 2, half // 2].tolist()
    assert inner == ([200] * 3, [90] * 3)  # the same code, another code


def test_attention_has_a_map_for_each_head() -> None:
    model = class_model()
    tokens = torch.arange(16)[None]
    pixels, condition = np.zeros((16, 16, 3), np.uint8), torch.tensor([1])
    picture = attention_picture(model.generator, pixels, tokens, condition, 5, [0])
    assert picture.width > 2 * 96  # two heads in a row
    assert num_columns(5) == 3


def test_a_number_out_of_range_leaves_no_traceback_in_the_terminal() -> None:
    number = in_range(gr.Number(label="position", minimum=0, maximum=15))
    assert number.preprocess(15) == 15
    for value, message in (
        (99, "position is 99, but must be 0 to 15"),
        (None, "position is empty"),
    ):
        with pytest.raises(gr.Error, match=message) as raised:
            number.preprocess(value)
        assert not raised.value.print_exception
