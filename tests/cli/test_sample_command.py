"""Every setting of `sample`, on generators that nobody trained."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_commands import Run, fails, fails_before_writing, succeeds
from tiny_images import noise, write_images, write_maps
from tiny_models import tiny_generator

from taming.conditioning import ClassLabel, ImageCondition
from taming.data.readers import one_hot
from taming.evaluation import ImageClassifier
from taming.generation import Guidance, ImageGenerator, SamplingOptions, sample_best, speed
from taming.pictures import to_uint8
from taming.tokenizer import CellClasses


@pytest.fixture
def of_classes(tmp_path: Path) -> ImageGenerator:
    """Two classes, 4×4 pictures from 2×2 codes."""
    conditioning = ClassLabel(2, dropout=0.1, class_names=["cats", "dogs"])
    tiny_generator(conditioning, (2, 2)).save_pretrained(tmp_path / "of_classes")
    return ImageGenerator.from_pretrained(tmp_path / "of_classes")


@pytest.fixture
def of_maps(tmp_path: Path) -> ImageGenerator:
    model = tiny_generator(ImageCondition(3, (2, 2)), (2, 2), CellClasses(3, 2, 4))
    model.save_pretrained(tmp_path / "of_maps")
    return ImageGenerator.from_pretrained(tmp_path / "of_maps")


def samples(run: Run, *overrides: str) -> tuple[np.ndarray, str]:
    outcome = succeeds(run("sample", "output_dir=out", "device=cpu", *overrides))
    with np.load("out/samples.npz") as arrays:
        return arrays["arr_0"], outcome.out


def test_every_setting_reaches_the_generator(
    run: Run, of_classes: ImageGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: dict[str, Any] = {}

    def sample(self: ImageGenerator, count: int, condition: Any, **named: Any) -> torch.Tensor:
        calls.update(named, condition=condition.tolist())
        return torch.zeros(count, 3, 8, 6)

    monkeypatch.setattr(ImageGenerator, "sample", sample)
    overrides = (
        "temperature=0.9", "top_k=4", "top_p=0.8", "greedy=true", "seed=7", "compile=true",
        "guidance_scale=2.5", "guidance_schedule=linear", "guidance_power=1.5",
        "guidance_interval=[0.25,0.75]", "grid_size=[4,3]", "stride=2", "batch_size=3",
        "order=random", "num_steps=2",
    )  # fmt: skip
    samples(run, "checkpoint=of_classes", "num_images=3", *overrides)
    options = SamplingOptions(
        temperature=0.9, top_k=4, top_p=0.8, greedy=True, seed=7, compile=True,
        guidance=Guidance(2.5, "linear", 1.5, (0.25, 0.75)), grid_size=(4, 3), stride=2,
        batch_size=3, order="random", num_steps=2,
    )  # fmt: skip
    fields = {name for name in vars(options) if name not in ("guidance",)}
    assert all(getattr(options, name) != getattr(SamplingOptions(), name) for name in fields)
    assert calls == {
        "options": options, "first_image": 0, "progress": True, "condition": [0, 1, 0],
    }  # fmt: skip
    samples(run, "checkpoint=of_classes", "grid_size=4", "num_images=1", "classes=dogs")
    assert (calls["options"].grid_size, calls["condition"]) == ((4, 4), [1])


def test_regions_masks_and_growth(run: Run, tmp_path: Path) -> None:
    """What is not painted stays, pixel for pixel, away from the seam."""
    conditioning = ClassLabel(2, dropout=0.1, class_names=["cats", "dogs"])
    model = tiny_generator(conditioning, (6, 6), order="any")
    model.save_pretrained(tmp_path / "any")
    write_images(tmp_path / "photos" / "cats", 3, side=12)
    pixels = np.full((12, 12), 0, np.uint8)
    pixels[8:, 8:] = 255
    (tmp_path / "masks").mkdir()
    files = sorted((tmp_path / "photos" / "cats").iterdir())
    for number, file in enumerate(files):
        mask = np.full_like(pixels, 255) if number == 1 else pixels
        Image.fromarray(mask).save(tmp_path / "masks" / f"{file.stem}.png")
    originals = np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])
    settings = ("checkpoint=any", "complete.path=photos", "dtype=float32")
    pictures, _ = samples(run, *settings, "complete.region=[8,8,12,12]")
    interior = np.s_[:, :6, :6]
    assert np.array_equal(pictures[interior], originals[interior])
    assert not np.array_equal(pictures[:, 8:, 8:], originals[:, 8:, 8:])
    decoded, _ = samples(
        run, *settings, "complete.region=[8,8,12,12]", "complete.paste=false", "output_dir=raw"
    )
    with np.load("raw/samples.npz") as arrays:
        decoded = arrays["arr_0"]
    assert not np.array_equal(decoded[interior], originals[interior])
    masked, _ = samples(run, *settings, "complete.mask=masks", "num_steps=4")
    assert np.array_equal(masked[::2, :6, :6], originals[::2, :6, :6])
    assert not np.array_equal(masked[1, :6, :6], originals[1, :6, :6])
    grown, _ = samples(run, *settings, "complete.grow=[2,4,0,4]", "order=random")
    assert grown.shape == (3, 14, 20, 3)
    assert np.array_equal(grown[:, 4:, 6:14], originals[:, 2:, 2:10])
    (tmp_path / "masks" / f"{files[0].stem}.png").unlink()
    for overrides, message in (
        (["complete.mask=masks"], f"no mask for {files[0].stem}"),
        (["complete.region=[0,0,13,4]"], "within 12×12"),
        (["complete.grow=[1,0,0,0]"], "multiples of 2"),
        (["complete.grow=[2,0,0,0]", "complete.keep_rows=1"], "exclude each other"),
    ):
        fails(run("sample", "output_dir=other", "device=cpu", *settings, *overrides), message)
        assert not Path("other").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("temperature=-1", "temperature should be greater than or equal to 0"),
        ("top_p=many", "top_p"),
        ("rejection.candidates=0", "rejection.candidates"),
        ("classes=wolves", "'wolves' does not exist"),
        ("dtype=half", "dtype should be 'auto', 'float32' or 'bfloat16'"),
        ("rejection.classifier=of_classes", "classifier"),
        ("rejection.classifier=other", "class 0 is 'dogs' and not 'cats'"),
    ],
)
def test_a_setting_that_is_refused_leaves_nothing(
    run: Run, of_classes: ImageGenerator, override: str, message: str
) -> None:
    ImageClassifier(
        num_classes=2, image_channels=3, resolution=4, class_names=["dogs", "cats"]
    ).save_pretrained("other")
    outcome = run("sample", "checkpoint=of_classes", "output_dir=out", override)
    fails_before_writing(outcome, message)


@pytest.mark.parametrize(
    ("dtype", "amx", "expected"),
    [
        ("bfloat16", False, torch.bfloat16),
        ("float32", True, torch.float32),
        ("auto", False, torch.float32),
        ("auto", True, torch.float32),  # the model is narrow
    ],
)
def test_dtype_of_transformer_and_decoder(
    run: Run,
    of_classes: ImageGenerator,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    amx: bool,
    expected: torch.dtype,
) -> None:
    monkeypatch.setattr(speed, "multiplies_faster_in_bf16", lambda: amx)
    shapes = []
    original = ImageGenerator.sample

    def watched(self: ImageGenerator, *args: Any, **named: Any) -> torch.Tensor:
        tokenizer = self.require_tokenizer()
        assert tokenizer.pre_quantizer.weight.dtype == torch.float32  # codes are found as ever
        shapes.append((self.transformer.head.weight.dtype, tokenizer.last_layer.dtype))
        return original(self, *args, **named)

    monkeypatch.setattr(ImageGenerator, "sample", watched)
    assert samples(run, "checkpoint=of_classes", f"dtype={dtype}")[0].shape[0] == 16
    assert shapes == [(expected, expected)]


def test_conditions_and_images_to_complete(
    run: Run, of_maps: ImageGenerator, tmp_path: Path
) -> None:
    maps = noise(2, 4, 4, most=2)
    maps[:, 0, 0] = 9
    write_images(tmp_path / "scenes" / "image", 2, side=4)
    write_maps(tmp_path / "scenes" / "label", maps)
    arrays, out = samples(
        run, "checkpoint=of_maps", "num_images=3", "conditions.path=scenes",
        "conditions.subfolder=label", "conditions.unlabelled=9", "conditions.unlabelled_class=1",
        "complete.path=scenes", "complete.subfolder=image", "complete.keep_rows=1",
    )  # fmt: skip
    maps[:, 0, 0] = 1
    conditions = one_hot(torch.from_numpy(maps[[0, 1, 0]]), 3)
    files = [tmp_path / "scenes" / "image" / f"{index:03d}.png" for index in (0, 1, 0)]
    pixels = torch.from_numpy(np.stack([np.asarray(Image.open(file)) for file in files]))
    images = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1
    expected = of_maps.complete(images, 1, conditions, seed=0)
    assert np.array_equal(arrays, to_uint8(expected))
    assert (
        "checkpoint=of_maps conditions.path=scenes conditions.subfolder=label "
        "conditions.unlabelled=9 conditions.unlabelled_class=1 seed=1"
    ) in out


MY_MODULE = """
import torch

class MyClassifier:
    def __call__(self, images):
        light = images.mean((1, 2, 3))
        return torch.stack([-light, light], 1)

class OfThree:
    def __call__(self, images):
        return torch.zeros(len(images), 3)
"""


def test_rejection_by_a_classifier_of_ours_and_one_in_the_current_directory(
    run: Run, of_classes: ImageGenerator, tmp_path: Path
) -> None:
    (tmp_path / "my_module.py").write_text(MY_MODULE)
    torch.manual_seed(3)
    ours = ImageClassifier(num_classes=2, image_channels=3, resolution=4).eval()
    ours.save_pretrained("evaluation/classifier")
    fixed = ("checkpoint=of_classes", "num_images=4", "rejection.candidates=3", "guidance_power=2")
    labels, options = torch.tensor([0, 1, 0, 1]), SamplingOptions(seed=0)
    for setting in ("{_target_: my_module.MyClassifier}", "evaluation/classifier"):
        arrays, out = samples(run, *fixed, f"rejection.classifier={setting}")
        classifier = ours if "my_module" not in setting else sys.modules["my_module"].MyClassifier()
        best = sample_best(of_classes, classifier, 4, labels, 3, options=options)
        assert np.array_equal(arrays, to_uint8(best.images))
        assert f"{best.probabilities.mean():.0%} for their class" in out
    assert "note: guidance_schedule, guidance_power" in out
    assert "wrote out/samples.npz" in out
    assert "evaluate.py checkpoint=of_classes data.path=MY_IMAGES" in out
    outcome = run("sample", *fixed, "rejection.classifier={_target_: my_modul.My}")
    fails(outcome, "error: configuration of my_modul.My: No module named 'my_modul'.")
    outcome = run("sample", *fixed, "rejection.classifier={_target_: my_module.My}")
    fails(outcome, "error: configuration of my_module.My: No module named 'my_module.My'")
    outcome = run("sample", *fixed, "rejection.classifier={_target_: my_module.OfThree}")
    fails(outcome, "(4, 3) for 4 images. It must return a logit for each of the model's 2 classes")
    sys.modules.pop("my_module")
