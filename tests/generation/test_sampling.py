"""Sampling to disk, compared with what the generator draws."""

import zipfile
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_images import noise, write_maps, write_picture
from tiny_models import tiny_generator as generator
from tiny_models import tiny_vqgan as vqgan
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from taming.conditioning import ClassLabel, ImageCondition, Unconditional
from taming.data.readers import one_hot
from taming.generation import Guidance, ImageGenerator, SamplingOptions, sample_best
from taming.generation.inputs import ImagesToComplete, InputImages
from taming.generation.sample import sample_images
from taming.pictures import as_palette, to_uint8
from taming.runtime.errors import MissingPathError, UserError
from taming.tokenizer import CellClasses

GRID = (2, 3)  # of images of 4×6
COLOURS = [[10, 20, 30], [200, 0, 0], [0, 200, 0]]


def of_label_maps(dropout: float = 0.0, **reading: int) -> ImageGenerator:
    """Three classes, cells of a pixel: label maps of 2×3."""
    conditioning = ImageCondition(3, GRID, dropout, palette=COLOURS, **reading)
    return generator(conditioning, GRID, CellClasses(3, 1, GRID))


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    """Three label maps of 2×5: the model sees the three columns in the middle."""
    return write_maps(tmp_path / "maps", noise(3, 2, 5, most=2))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two photos of 4×6."""
    for index in range(2):
        write_picture(tmp_path / "photos" / f"{index}.png", 4, 6, seed=index)
    return tmp_path / "photos"


def in_turn(folder: Path, numbers: list[int]) -> np.ndarray:
    files = sorted(folder.iterdir())
    return np.stack([np.asarray(Image.open(files[i])) for i in numbers])


def one_hot_of(maps: Path, numbers: list[int]) -> Tensor:
    return one_hot(torch.from_numpy(in_turn(maps, numbers)[:, :, 1:4]), 3)


def as_images(photos: Path, numbers: list[int]) -> Tensor:
    pixels = torch.from_numpy(in_turn(photos, numbers)).permute(0, 3, 1, 2)
    return pixels.float() / 127.5 - 1


def read_samples(output_dir: Path) -> dict[str, np.ndarray]:
    with np.load(output_dir / "samples.npz") as arrays:
        return dict(arrays)


def notes_of(model: ImageGenerator, path: Path, **settings: Any) -> str:
    """A run in `path/out`, with seed 0; its notes."""
    names = [field.name for field in fields(SamplingOptions) if field.name in settings]
    options = SamplingOptions(**{"seed": 0, **{name: settings.pop(name) for name in names}})
    notes, _ = sample_images(model, path / "out", options=options, **settings)
    return "\n".join(notes)


def draw(model: ImageGenerator, path: Path, classifier: Any = None, **settings: Any) -> np.ndarray:
    """The samples of a run in `path/out`."""
    notes_of(model, path, classifier=classifier, **settings)
    return read_samples(path / "out")["arr_0"]


def test_samples_take_label_maps_in_turn_and_appear_next_to_them(
    maps: Path, tmp_path: Path
) -> None:
    model = of_label_maps()
    settings = {"batch_size": 2, "seed": 3, "write_images": True}
    notes_of(model, tmp_path, num_images=5, conditions=InputImages(maps), **settings)
    conditions = one_hot_of(maps, [0, 1, 2, 0, 1])
    expected = to_uint8(model.sample(5, conditions, seed=3))
    assert len(np.unique(expected.reshape(5, -1), axis=0)) == 5
    arrays = read_samples(tmp_path / "out")
    assert list(arrays) == ["arr_0"]
    assert np.array_equal(arrays["arr_0"], expected)
    names = sorted(path.name for path in (tmp_path / "out" / "images").iterdir())
    assert names[:4] == [f"00000{i}_00{i % 3}.png" for i in range(4)]
    # four pictures a row, each 4×6 twelve times as large; a condition's pixel has 2×2 of a sample's
    grid = np.asarray(Image.open(tmp_path / "out" / "samples.png"))
    for number in range(5):
        top, left = 2 + number // 2 * 50, 2 + number % 2 * 2 * 74
        condition = grid[top : top + 48 : 24, left : left + 72 : 24]
        classes = conditions[number].argmax(0).numpy()
        assert np.array_equal(condition, np.array(COLOURS, dtype=np.uint8)[classes])
        sample = grid[top : top + 48 : 12, left + 74 : left + 74 + 72 : 12]
        assert np.array_equal(sample, expected[number])


def test_label_maps_are_read_as_in_training(maps: Path, tmp_path: Path) -> None:
    """Pixels of 0 were unlabelled, and of class 2; an explicit setting says otherwise."""
    model = of_label_maps(unlabelled=0, unlabelled_class=2)
    classes = torch.from_numpy(in_turn(maps, [0, 1, 2])[:, :, 1:4])
    for label_settings, zeros_are in (
        ({}, 2),
        ({"unlabelled": None}, 0),
        ({"unlabelled_class": 1}, 1),
    ):
        samples = draw(model, tmp_path, conditions=InputImages(maps, **label_settings))
        merged = one_hot(classes.where(classes != 0, zeros_are), 3)
        assert np.array_equal(samples, to_uint8(model.sample(3, merged, seed=0)))


def test_conditions_of_larger_images_are_larger(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 3, (4, 9), dtype=np.uint8)
    Image.fromarray(values).save(tmp_path / "map.png")
    model = of_label_maps()
    samples = draw(
        model, tmp_path, conditions=InputImages(tmp_path / "map.png"), grid_size=[4, 9], stride=1
    )
    condition = one_hot(torch.from_numpy(values), 3)[None]
    options = SamplingOptions(seed=0, grid_size=(4, 9), stride=1)
    expected = model.sample(1, condition, options=options)
    assert samples.shape == (1, 8, 18, 3)
    assert np.array_equal(samples, to_uint8(expected))


def test_pictures_from_an_archive_and_a_colour_model_of_them(photos: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "pairs.zip", "w") as archive:
        for file in photos.iterdir():
            archive.write(file, f"depth/{file.name}")
        archive.writestr("image/a.png", b"not looked at")
    model = generator(ImageCondition(8, GRID), GRID, vqgan(seed=5))
    conditions = InputImages(tmp_path / "pairs.zip", subfolder="depth")
    expected = model.sample(2, as_images(photos, [0, 1]), seed=0)
    assert np.array_equal(draw(model, tmp_path, conditions=conditions), to_uint8(expected))


def test_guidance_without_conditions_and_with(maps: Path, tmp_path: Path) -> None:
    model = of_label_maps(dropout=0.1)
    guidance = Guidance(4.0, "power_cosine", power=2.0, interval=[0.2, 0.9])
    free = draw(model, tmp_path)
    assert np.array_equal(free, to_uint8(model.sample(16, seed=0)))
    guided = draw(model, tmp_path, conditions=InputImages(maps), guidance=guidance)
    options = SamplingOptions(seed=0, guidance=guidance)
    expected = model.sample(3, one_hot_of(maps, [0, 1, 2]), options=options)
    assert np.array_equal(guided, to_uint8(expected))


def test_completion_keeps_the_first_rows(photos: Path, tmp_path: Path) -> None:
    model = generator(Unconditional())
    complete = ImagesToComplete(photos)
    notes_of(model, tmp_path, complete=complete, num_images=3, batch_size=2)
    images = as_images(photos, [0, 1, 0])
    expected = to_uint8(model.complete(images, 1, seed=0))  # one of two rows: half
    samples = read_samples(tmp_path / "out")["arr_0"]
    assert np.array_equal(samples, expected)
    grid = np.asarray(Image.open(tmp_path / "out" / "samples.png"))
    assert np.array_equal(grid[2:50:12, 2:74:12], to_uint8(images)[0])
    assert np.array_equal(grid[2:50:12, 76:148:12], expected[0])


def test_fewer_images_than_files_are_spread_evenly_over_the_folders(tmp_path: Path) -> None:
    for number in range(9):
        folder = tmp_path / "all" / ("cats" if number < 6 else "dogs")
        write_picture(folder / f"{number}.png", 4, 6, seed=number)
    model = generator(ClassLabel(2, class_names=["cats", "dogs"]))
    complete = ImagesToComplete(tmp_path / "all")
    completed = draw(model, tmp_path, complete=complete, num_images=3)
    assert read_samples(tmp_path / "out")["arr_1"].tolist() == [0, 0, 1]
    images = [
        as_images(tmp_path / "all" / "cats", [0, 3]),
        as_images(tmp_path / "all" / "dogs", [0]),
    ]
    expected = model.complete(torch.cat(images), 1, torch.tensor([0, 0, 1]), seed=0)
    assert np.array_equal(completed, to_uint8(expected))


def test_completion_of_larger_images(photos: Path, tmp_path: Path) -> None:
    Image.open(photos / "0.png").resize((12, 8)).save(tmp_path / "large.png")
    model = generator(Unconditional())
    complete = ImagesToComplete(tmp_path / "large.png", keep_rows=3)
    samples = draw(model, tmp_path, complete=complete, grid_size=[4, 6])
    pixels = torch.from_numpy(np.array(Image.open(tmp_path / "large.png"))).permute(2, 0, 1)
    expected = model.complete(pixels[None].float() / 127.5 - 1, 3, seed=0)
    assert np.array_equal(samples, to_uint8(expected))


@pytest.mark.parametrize(
    ("place", "path", "labels"),
    [
        ("photos", "photos", [0, 1, 0]),  # in no class's folder: all classes in turn
        ("dogs", "dogs", [1, 1, 1]),
        ("dogs", "dogs/0.png", [1, 1, 1]),
        ("all/dogs/cats", "all", [1, 1, 1]),  # of a dog
        ("dogs/all/cats", "dogs", [0, 0, 0]),  # said of all, and then of these
    ],
)
def test_images_to_complete_have_the_class_of_their_folder(
    place: str, path: str, labels: list[int], photos: Path, tmp_path: Path
) -> None:
    model = generator(ClassLabel(2, class_names=["cats", "dogs"]))
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    photos.rename(tmp_path / place)
    complete = ImagesToComplete(tmp_path / path)
    notes = notes_of(model, tmp_path, complete=complete, num_images=3)
    assert read_samples(tmp_path / "out")["arr_1"].tolist() == labels
    assert ("in turn" in notes) is (place == "photos")


def test_without_class_folders_no_class_is_requested(photos: Path, tmp_path: Path) -> None:
    model = generator(ClassLabel(2, 0.1, class_names=["cats", "dogs"]))
    notes = notes_of(model, tmp_path, complete=ImagesToComplete(photos))
    arrays = read_samples(tmp_path / "out")
    expected = model.complete(as_images(photos, [0, 1]), 1, seed=0)
    assert np.array_equal(arrays["arr_0"], to_uint8(expected))
    assert list(arrays) == ["arr_0"]
    assert "no class is requested" in notes


@pytest.mark.parametrize("none", ["none", ["none"]])
def test_none_requests_no_class_unless_it_is_a_class(none: Any, tmp_path: Path) -> None:
    model = generator(ClassLabel(4, 0.1))
    samples = draw(model, tmp_path, classes=none, num_images=5, write_images=True)
    assert np.array_equal(samples, to_uint8(model.sample(5, seed=0)))
    assert list(read_samples(tmp_path / "out")) == ["arr_0"]
    named = generator(ClassLabel(2, 0.1, class_names=["some", "none"]))
    (tmp_path / "named").mkdir()
    samples = draw(named, tmp_path / "named", classes=none, num_images=5)
    assert np.array_equal(
        samples, to_uint8(named.sample(5, torch.ones(5, dtype=torch.int64), seed=0))
    )
    assert read_samples(tmp_path / "named" / "out")["arr_1"].tolist() == [1] * 5


def test_each_image_has_the_class_of_its_own_folder(photos: Path, tmp_path: Path) -> None:
    model = generator(ClassLabel(2, class_names=["cats", "dogs"]))
    for number, name in enumerate(["dogs", "cats"]):  # the other way round than their labels
        (tmp_path / "all" / name).mkdir(parents=True)
        (photos / f"{number}.png").rename(tmp_path / "all" / name / f"{number}.png")
    complete = ImagesToComplete(tmp_path / "all")
    completed = draw(model, tmp_path, complete=complete, num_images=3)
    assert read_samples(tmp_path / "out")["arr_1"].tolist() == [0, 1, 0]  # cats/1.png is the first
    images = torch.cat([as_images(tmp_path / "all" / c, [0]) for c in ("cats", "dogs", "cats")])
    expected = model.complete(images, 1, torch.tensor([0, 1, 0]), seed=0)
    assert np.array_equal(completed, to_uint8(expected))
    draw(model, tmp_path, complete=complete, classes=["dogs"])
    assert read_samples(tmp_path / "out")["arr_1"].tolist() == [1, 1]
    (tmp_path / "all" / "dogs").rename(tmp_path / "all" / "wolves")
    with pytest.raises(UserError, match=r"1 of 2 images .* such as wolves/0\.png.*`classes`"):
        draw(model, tmp_path, complete=complete)


def test_conditions_and_images_to_complete_must_be_pairs(
    maps: Path, photos: Path, tmp_path: Path
) -> None:
    """One photo is missing, and all that follow would go with the map before their own."""
    for number in (1, 0):
        (photos / f"{number}.png").rename(photos / f"00{2 * number}.png")
    inputs: dict[str, Any] = {
        "conditions": InputImages(maps), "complete": ImagesToComplete(photos), "batch_size": 1
    }  # fmt: skip
    with pytest.raises(UserError, match=r"no partner: remove 001\.$"):
        draw(of_label_maps(), tmp_path, **inputs)
    assert len(draw(of_label_maps(), tmp_path, **inputs, num_images=1)) == 1
    inputs["conditions"] = InputImages(maps / "002.png")  # one for all
    assert len(draw(of_label_maps(), tmp_path, **inputs)) == 2


def test_a_broken_image_is_left_out(maps: Path, tmp_path: Path) -> None:
    (maps / "001.png").write_bytes((maps / "001.png").read_bytes()[:45])
    model = of_label_maps()
    samples = draw(model, tmp_path, conditions=InputImages(maps))
    (maps / "001.png").unlink()
    expected = model.sample(2, one_hot_of(maps, [0, 1]), seed=0)
    assert np.array_equal(samples, to_uint8(expected))


def test_the_partner_of_a_broken_image_is_left_out(
    maps: Path, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 0):
        (photos / f"{number}.png").rename(photos / f"00{2 * number}.png")
    (photos / "001.png").write_bytes((photos / "000.png").read_bytes()[:60])
    model = of_label_maps()
    inputs = {"conditions": InputImages(maps), "complete": ImagesToComplete(photos)}
    samples = draw(model, tmp_path, **inputs)
    assert "left out because a partner is broken or missing: 001" in caplog.text
    (photos / "001.png").unlink()
    expected = model.complete(as_images(photos, [0, 1]), 1, one_hot_of(maps, [0, 2]), seed=0)
    assert np.array_equal(samples, to_uint8(expected))


def test_older_images_in_the_output_directory_are_an_error(tmp_path: Path) -> None:
    model = generator(Unconditional())
    draw(model, tmp_path, num_images=2, write_images=True)
    for write_images in (True, False):
        with pytest.raises(UserError, match="exists already"):
            draw(model, tmp_path, num_images=1, write_images=write_images)


def test_label_maps_are_completed_and_written_in_their_colours(tmp_path: Path) -> None:
    values = np.random.default_rng(4).integers(0, 5, (4, 6), dtype=np.uint8)
    values[0, 0] = 9
    Image.fromarray(values).save(tmp_path / "map.png")
    model = generator(Unconditional(), tokenizer=vqgan(image_channels=5))
    complete = ImagesToComplete(tmp_path / "map.png", unlabelled=9, unlabelled_class=2)
    samples = draw(model, tmp_path, complete=complete)
    values[0, 0] = 2
    logits = model.complete(one_hot(torch.from_numpy(values), 5)[None], 1, seed=0)
    assert np.array_equal(samples, as_palette(None, 5)[logits.argmax(1).numpy()])
    # three classes look like red, green and blue, and are not
    three = generator(Unconditional(), tokenizer=vqgan(label_maps=True))
    samples = draw(three, tmp_path, num_images=2)
    logits = three.sample(2, seed=0)
    assert np.array_equal(samples, as_palette(None, 3)[logits.argmax(1).numpy()])


def brightness(images: Tensor) -> Tensor:
    """A classifier: class 1 is bright."""
    light = images.mean((1, 2, 3))
    return torch.stack([-light, light], 1) * 20


def thirds(images: Tensor) -> Tensor:
    """The same for three classes."""
    return torch.cat([brightness(images), images.mean((1, 2, 3))[:, None]], 1)


def test_a_classifier_selects_among_completions(photos: Path, tmp_path: Path) -> None:
    model = generator(ClassLabel(2, class_names=["dark", "bright"]))
    assert model.tokenizer is not None
    given_tokens = model.tokenizer.encode(as_images(photos, [0, 1])).flatten(1)[:, :3]
    options = SamplingOptions(seed=0)
    labels = torch.tensor([0, 1])
    best = sample_best(model, brightness, 2, labels, 4, options=options, given_tokens=given_tokens)
    completed = draw(model, tmp_path, brightness, complete=ImagesToComplete(photos), candidates=4)
    assert np.array_equal(completed, to_uint8(best.images))


@pytest.mark.compile
@pytest.mark.parametrize("classifier", [None, thirds])
def test_a_smaller_last_batch_needs_no_second_compilation(
    classifier: Any,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counter = CompileCounter()  # stands for the compiler
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    model = generator(ClassLabel(3))
    settings: dict[str, Any] = {
        "complete": ImagesToComplete(photos), "num_images": 5, "batch_size": 3,
        "candidates": 1 if classifier is None else 2,
    }  # fmt: skip
    samples = draw(model, tmp_path, classifier, **settings)
    compiled = draw(model, tmp_path, classifier, **settings, compile=True)
    assert len(compiled) == 5
    assert np.array_equal(compiled, samples)
    assert read_samples(tmp_path / "out")["arr_1"].tolist() == [0, 1, 2, 0, 1]
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("maps", {}, "Give conditions.path"),
        ("maps", {"conditions": InputImages("nowhere")}, "nowhere does not exist"),
        ("maps", {"conditions": InputImages("photos")}, "not a label map"),
        ("maps", {"conditions": InputImages("maps"), "classes": [0]}, "trained without classes"),
        ("free", {"conditions": InputImages("maps")}, "was not trained on condition images"),
        ("free", {"conditions": InputImages(subfolder="a")}, "no effect without conditions.path"),
        ("free", {"complete": ImagesToComplete("photos", keep_rows=2)}, "keep_rows is 2.* 1 to 1"),
        ("free", {"classifier": brightness}, "Use a model of classes"),
        ("tokens", {}, "no tokenizer"),
        ("classes", {"classes": "none"}, "without condition_dropout"),
        ("classes", {"classes": ["none", 0]}, "'none' does not exist"),
        ("classes", {"classes": []}, "`classes` is empty"),
    ],
)
def test_wrong_inputs_are_refused_before_any_work(
    kind: str,
    settings: dict[str, Any],
    message: str,
    maps: Path,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    free = generator(Unconditional())
    model = {
        "maps": of_label_maps(),
        "free": free,
        "tokens": ImageGenerator(None, free.transformer, Unconditional(), GRID),
        "classes": generator(ClassLabel(2)),
    }[kind]
    with pytest.raises(UserError, match=message) as caught:
        notes_of(model, tmp_path, **settings)
    assert isinstance(caught.value, MissingPathError) is ("nowhere" in message)
    assert not (tmp_path / "out").exists()
