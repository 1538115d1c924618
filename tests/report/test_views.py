import base64
import io
import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_models import tiny_generator, tiny_vqgan

from taming.conditioning import ClassLabel, ImageCondition, Unconditional
from taming.report import generator_views
from taming.report import subject as report_subject
from taming.report.generator_views import (
    attention,
    condition_effect,
    draw_samples,
    neighbours,
    samples_by_class,
    surprise,
)
from taming.report.images import heat, on_image, shrunk, tiled
from taming.report.page import Finding, Group, Matrix, Picture, Pictures, Section, render_page
from taming.report.subject import Images, Subject, balanced, evenly_spaced
from taming.report.tokenizer_views import codebook, reconstructions, token_grids
from taming.tokenizer import CellClasses


def pixels(picture: Picture, side: int = 256) -> np.ndarray:
    data = base64.b64decode(picture.address(side).removeprefix("data:image/webp;base64,"))
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def images(count: int = 6, size: tuple[int, int] = (4, 6), channels: int = 3) -> Images:
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(count, channels, *size, generator=generator) * 2 - 1
    return Images(noise, torch.arange(count) % 3)


def subject(conditioning: Any = None, **changes: Any) -> Subject:
    generator = tiny_generator(conditioning or ClassLabel(3))
    return Subject(generator.tokenizer, generator, class_names=["cat", "dog", "owl"], **changes)


def test_small_pictures_are_lossless_and_large_ones_shrink() -> None:
    small = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    for side in 256, 32:  # even on a page with small pictures, because a pixel may be a code
        assert (pixels(Picture.of(small), side) == small).all()
    assert pixels(Picture.of(np.zeros((300, 600, 3), np.uint8))).shape == (128, 256, 3)
    atlas = Picture.of(np.zeros((600, 300, 3), np.uint8), cells=["a"] * 60, num_columns=32)
    assert pixels(atlas).shape == (544, 272, 3)  # 17 pixels per cell


def test_pictures_shrink_until_the_page_is_small_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (12, 256, 256, 3), dtype=np.uint8)
    pictures = Pictures([Group("", [Picture.of(image) for image in noise])])
    section = Section("Samples", parts=[pictures])

    size = len(render_page("x", [], [section]))
    for max_size, side in ((size, 256), (size - 300_000, 192), (0, 32)):
        monkeypatch.setattr("taming.report.page.MAX_SIZE", max_size)
        page = render_page("x", [], [section]).decode()
        assert pictures.groups[0].pictures[0].address(side) in page


def test_pictures_of_codes_have_16_pixels() -> None:
    tokenizer = tiny_vqgan(resolution=128, channel_multipliers=(1,) * 7)
    (part,) = codebook(Subject(tokenizer), None)
    assert isinstance(part, Pictures)
    assert part.groups[0].pictures[0].image.size == (8 * 17, 17)


def test_shrunk_pictures_are_averages() -> None:
    picture = np.zeros((1, 5, 4, 3), np.uint8)
    picture[0, 0, 0] = 100
    picture[0, 2:4, 2:4] = 7
    small = shrunk(picture, 2)
    assert (small.shape, small.dtype) == ((1, 2, 2, 3), np.uint8)
    assert small[0, ..., 0].tolist() == [[25, 0], [0, 7]]


def test_heat_maps_and_highlights() -> None:
    colors = heat(np.array([[0.0, 1.0, 2.0, np.nan]]), 2.0).astype(int).sum(2)[0]
    assert colors[0] < 10 and colors[0] < colors[1] < colors[2] == colors[3]
    lit = on_image(np.full((16, 16, 3), 100, np.uint8), np.array([[0.0, 0.5], [0.25, 0.0]]), 3)
    means = [lit[:8, 8:].mean(), lit[8:, :8].mean(), lit[:8, :8].mean()]
    assert means == sorted(means, reverse=True)
    assert (lit[8, 8:] == (40, 220, 110)).all() and (lit[10, 10] != (40, 220, 110)).any()
    assert on_image(np.zeros((2, 2, 3), np.uint8), np.eye(2), 0).shape == (16, 16, 3)


def test_tiles_lie_row_by_row() -> None:
    tiles = np.arange(1, 4)[:, None, None, None].repeat(2, 1).repeat(2, 2).repeat(3, 3)
    sheet = tiled(tiles.astype(np.uint8), 2, gap=1)
    assert sheet.shape == (6, 6, 3)
    assert sheet[..., 0].tolist() == [
        *2 * [[1, 1, 128, 2, 2, 128]], 6 * [128], *2 * [[3, 3, 128, 128, 128, 128]], 6 * [128]
    ]  # fmt: skip


def test_examples_cover_all_classes() -> None:
    labels = [0] * 50 + [1] * 3 + [2]
    assert balanced(labels, 6) == [0, 49, 50, 52, 53]
    assert balanced(list(range(100)), 3) == [0, 50, 99]
    assert balanced([None] * 9, 3) == [0, 4, 8]
    assert evenly_spaced(5, 1) == [0]


def test_images_with_many_channels_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    class Maps(list[dict[str, torch.Tensor]]):
        block = None

        def label(self, number: int) -> None:
            return None

    maps = Maps(
        {"images": torch.zeros(50, 4, 4), "conditions": torch.zeros(3, 4, 4)} for _ in "abcdef"
    )
    monkeypatch.setattr(report_subject, "MAX_NUMBERS", 2 * 53 * 16)
    selected = report_subject.select_images(maps, maps)
    assert {name: len(images.images) for name, images in selected.items()} == {
        "examples": 2, "held_out": 2, "train": 2
    }  # fmt: skip


def test_reconstruction_errors_are_bright() -> None:
    batch = images()
    example = subject()
    with torch.no_grad():
        exact = example.tokenizer.decode(example.tokenizer.encode(batch.images)).clamp(-1, 1)
    *_, part = reconstructions(example, Images(exact, batch.labels))
    assert isinstance(part, Pictures)
    assert [group.caption.split(" · ")[0] for group in part.groups] == ["cat", "dog", "owl"] * 2
    image, reconstruction, error = (pixels(p) for p in part.groups[0].pictures)
    assert (image == example.pixels(exact)[0]).all()
    expected = np.abs(reconstruction.astype(float) - image).mean(2) / 64
    assert np.corrcoef(error.sum(2).ravel(), expected.ravel())[0, 1] > 0.8


def test_codes_are_sorted_by_use() -> None:
    example, batch = subject(), images(40)
    table, *parts = list(codebook(example, batch))
    num_used = int(table.rows[0][1].split()[0])
    counts = torch.bincount(example.tokenizer.encode(batch.images).flatten(), minlength=8)
    assert num_used == int((counts > 0).sum())
    atlas = next(part for part in parts if isinstance(part, Pictures)).groups[0]
    cells = atlas.pictures[0].cells
    assert cells[0].startswith(f"code {counts.argmax()}: ") and len(cells) == num_used
    (alone,) = codebook(example, None)  # without images there are no counts
    assert isinstance(alone, Pictures) and len(alone.groups[0].pictures[0].cells) == 8


def test_an_unused_codebook_is_a_finding() -> None:
    quantizer = {"kind": "vector", "codebook_size": 64, "codebook_dim": 4}
    grey = Images(torch.zeros(120, 3, 4, 6))
    parts = list(codebook(Subject(tiny_vqgan(quantizer=quantizer)), grey))
    assert any(isinstance(part, Finding) and "Fewer than half" in part.text for part in parts)


def test_cells_have_the_codes_of_an_image() -> None:
    example, batch = subject(), images(2)
    (part,) = token_grids(example, batch)
    codes = example.tokenizer.encode(batch.images)[1].flatten().tolist()
    for picture in part.groups[1].pictures[1:]:
        assert picture.cells == [f"code {code}" for code in codes] and picture.num_columns == 3


def test_views_of_a_generator() -> None:
    example, batch = subject(), images()
    samples = draw_samples(example)
    assert samples.images.shape == (24, 3, 4, 6)
    assert torch.equal(samples.images, draw_samples(example).images)
    (part,) = samples_by_class(example, samples)
    assert [(g.caption, len(g.pictures)) for g in part.groups] == [
        ("cat", 8), ("dog", 8), ("owl", 8)]  # fmt: skip
    matrix = next(iter(attention(example, batch)))
    assert isinstance(matrix, Matrix) and matrix.open
    assert list(matrix.rows) == ["layer 1"] and matrix.columns == ["head 1", "head 2"]
    *_, pictures = surprise(example, batch, batch)
    assert len(pictures.groups) == 7 and len(pictures.groups[1].pictures[1].cells) == 6


def test_a_generator_that_has_learned_nothing_is_a_finding() -> None:
    example, batch = subject(), images()
    torch.nn.init.zeros_(example.generator.transformer.head.weight)
    table, chance, no_effect, _ = surprise(example, batch, batch)
    assert table.rows[0][1] == table.rows[1][1] == "3.000"
    assert chance.text.startswith("The transformer predicts tokens hardly better than chance")
    assert no_effect.text.startswith("The class has no effect yet: with another class,")
    assert "cost 0.00 bits more" in no_effect.text
    blurred, _ = reconstructions(example, batch)
    assert blurred.text.startswith("The tokenizer's reconstructions are below 20 dB (PSNR ")


def test_the_effect_of_a_condition_is_the_gain_in_bits_per_image() -> None:
    def gain_of(right: float, wrong: float) -> list[str]:
        example, batch = subject(), images()
        bits = torch.full((6, 6), right)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(generator_views, "_bits", lambda *_: torch.full((6, 6), wrong))
            return [finding.text for finding in condition_effect(example, batch, bits)]

    assert gain_of(1.0, 1.2) == []  # 6 tokens: 1.2 bits per image
    assert "cost 0.60 bits more" in gain_of(1.0, 1.1)[0]
    unconditional = subject(Unconditional())
    assert list(condition_effect(unconditional, images(), torch.zeros(6, 6))) == []


def test_attention_belongs_to_its_image() -> None:
    example, batch = subject(), images()
    both = attention(example, batch.thin(2))
    last = attention(example, batch.select(torch.tensor([5])))
    for of_both, alone in zip(list(both)[3:], last, strict=True):  # three tokens per image
        assert of_both.caption == alone.caption
        for pictures in zip(of_both.rows["layer 1"], alone.rows["layer 1"], strict=True):
            light, same = (np.asarray(picture.image).astype(int) for picture in pictures)
            assert np.abs(light - same).max() <= 1


def test_samples_are_compared_with_training_images() -> None:
    train, held_out = images(20), Images(images(30).images[20:])
    example = subject(train=train, held_out=held_out)
    *parts, copies = neighbours(example, Images(train.images[:8] + 0.01))
    assert "They may be copies" in copies.text
    figure = json.loads(parts[-1].figure)
    assert [trace["name"] for trace in figure["data"]] == ["samples", "held-out images"]
    *_, unlike = neighbours(example, Images(2 * held_out.images.sign()))
    assert "Samples do not look like the images yet" in unlike.text
    assert not any(isinstance(part, Finding) for part in neighbours(example, held_out))
    copied = subject(train=train, held_out=train)
    assert not any(isinstance(part, Finding) for part in neighbours(copied, held_out))


def test_samples_are_next_to_their_conditions() -> None:
    maps = torch.eye(4)[torch.arange(24).view(1, 4, 6) % 4].movedim(-1, 1).repeat(3, 1, 1, 1)
    cells = CellClasses(4, 2, (4, 6))
    generator = tiny_generator(ImageCondition(4, (2, 3)), condition_tokenizer=cells)
    batch = images(3)._replace(labels=None, conditions=maps)
    example = Subject(generator.tokenizer, generator, batch)
    (part,) = samples_by_class(example, draw_samples(example))
    assert [len(group.pictures) for group in part.groups] == [3, 3, 3]
    assert len(list(attention(example, batch))) == 9  # three tokens per image
    unconditional = subject(Unconditional())
    (part,) = samples_by_class(unconditional, draw_samples(unconditional))
    assert [len(group.pictures) for group in part.groups] == [20]


def test_label_maps_have_wrong_pixels() -> None:
    tokenizer = tiny_vqgan(image_channels=5)
    maps = torch.eye(5)[torch.randint(5, (2, 4, 6))].movedim(-1, 1)
    (part,) = reconstructions(Subject(tokenizer), Images(maps))
    assert "wrong pixels" in part.legend and part.groups[0].caption.endswith("of pixels")


def test_names_are_escaped() -> None:
    name = "<b>&</script>"
    section = Section("Health", by_run={name: [Finding("<i>", "note")]})
    page = render_page("x", [name], [section, Section("Empty")]).decode()
    assert "<b>" not in page and "&lt;i&gt;" in page and 'id="empty"' not in page
    assert page.count("plotly.js v") == 1


def test_pictures_reserve_their_place_and_are_printed() -> None:
    pictures = Pictures([Group.of("", np.zeros((24, 32, 3), np.uint8))])
    page = render_page("x", [], [Section("Samples", parts=[pictures])]).decode()
    (image,) = re.findall(r'<img [^>]*width="32" height="24"[^>]*>', page)
    assert "loading" not in image  # a lazy picture is missing in print
