"""Reconstructing, as a user runs it, with a small VQGAN."""

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_commands import Run, UntrainedLPIPS, fails, fails_before_writing, succeeds
from tiny_images import write_picture
from tiny_models import tiny_vqgan

import taming
from taming.pictures import to_uint8


@pytest.fixture
def vqgan_path(tmp_path: Path) -> Path:
    """A model directory, downsample factor 4."""
    return save_vqgan(tmp_path / "vqgan")


def save_vqgan(directory: Path, **changes: Any) -> Path:
    settings = {"resolution": 16, "channel_multipliers": (1, 1, 1), **changes}
    return tiny_vqgan(**settings).save_pretrained(directory)


def numbers(directory: str = "out") -> dict[str, Any]:
    return json.loads((Path(directory) / "metrics.json").read_text())


@pytest.fixture
def reconstruct(run: Run) -> Run:
    """Reconstructs into `out`; what was printed."""

    def call(checkpoint: Path, *overrides: str) -> str:
        return succeeds(
            run("reconstruct", f"checkpoint={checkpoint}", "output_dir=out", *overrides)
        ).out

    return call


def test_a_folder_of_many_sizes(reconstruct: Run, vqgan_path: Path, tmp_path: Path) -> None:
    cats = tmp_path / "in" / "cats"
    pixels = np.array(Image.open(write_picture(cats / "1.png", 16, 24)))
    write_picture(cats / "2.png", 17, 27, seed=1)  # loses a row and three columns
    write_picture(tmp_path / "in" / "dogs" / "1.png", 32, 12, seed=2)
    (tmp_path / "in" / "dogs" / "bad.jpg").write_bytes(b"no picture")
    whole = write_picture(tmp_path / "whole.jpg", 16, 24).read_bytes()
    (tmp_path / "in" / "dogs" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    out = reconstruct(vqgan_path, "input=in", "write_images=true")
    metrics = numbers()
    assert metrics["num_images"] == 3
    assert metrics["resolution"] is None
    assert metrics["num_cropped"] == 1
    assert [name for name, _ in metrics["broken"]] == ["dogs/bad.jpg", "dogs/cut.jpg"]
    assert metrics["num_latents"] == (16 * 24 + 16 * 24 + 32 * 12) // 16
    assert 0 < metrics["psnr"] < 20  # an untrained model of noise
    assert 0 < metrics["codebook_usage"] <= 1
    for part in ("PSNR", "SSIM", "dogs/bad.jpg", "1 images center-cropped", "2 broken files"):
        assert part in out, out

    vqgan = taming.VQGAN.from_pretrained(vqgan_path)
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 127.5 - 1
    expected = to_uint8(vqgan.decode(vqgan.encode(image)).detach())[0]
    with Image.open("out/images/cats/1.png") as pair:
        assert pair.size == (48, 16)
        assert np.array_equal(np.asarray(pair)[:, :24], pixels)
        difference = np.asarray(pair)[:, 24:].astype(int) - expected
        assert abs(difference).max() <= 1  # a batch of two, and of one
    with Image.open("out/reconstructions.png") as grid:
        factor = 2  # cells of 32×24 are enlarged to 48 pixels
        assert grid.size == (6 * (24 * factor + 2) + 2, 32 * factor + 4)


def test_numbers_are_those_of_the_images_however_they_are_read(
    reconstruct: Run, vqgan_path: Path, tmp_path: Path
) -> None:
    for name in range(5):
        write_picture(tmp_path / "in" / f"{name}.png", 20, 30, seed=name)
    with ZipFile(tmp_path / "in.zip", "w") as archive:
        for path in sorted((tmp_path / "in").iterdir()):
            archive.write(path, path.name)
    results = []
    for overrides in (("input=in", "batch_size=2"), ("input=in.zip", "num_workers=1")):
        reconstruct(vqgan_path, "resolution=[16,12]", *overrides)
        results.append(numbers())
    for name in ("psnr", "ssim", "codebook_usage", "codebook_perplexity"):
        assert results[0][name] == pytest.approx(results[1][name], rel=1e-5), name
    assert results[0]["resolution"] == results[1]["resolution"] == [16, 12]
    assert results[0]["num_images"] == results[1]["num_images"] == 5
    assert results[0]["num_cropped"] == 0
    reconstruct(vqgan_path, "resolution=[16,12]", "input=in", "max_images=2")
    assert numbers()["num_images"] == 2


def test_one_large_grey_image_in_tiles(reconstruct: Run, tmp_path: Path) -> None:
    grey = save_vqgan(tmp_path / "grey", image_channels=1)
    write_picture(tmp_path / "photo.png", 40, 60)
    settings = ("tile=16", "overlap=4", "write_images=true", "side_by_side=false")
    out = reconstruct(grey, "input=photo.png", *settings)
    metrics = numbers()
    assert (metrics["num_images"], metrics["resolution"]) == (1, [40, 60])
    assert (metrics["tile"], metrics["overlap"]) == (16, 4)
    assert metrics["num_latents"] == 3 * 5 * 16  # codes of all tiles
    with Image.open("out/images/photo.png") as single:
        assert single.size == (60, 40)
    with Image.open("out/reconstructions.png") as grid:
        assert grid.size == (2 * (2 * 60 + 2) + 2, 2 * 40 + 4)
    assert "40×60" in out


def test_frechet_distance_names_its_network(
    reconstruct: Run, vqgan_path: Path, tmp_path: Path, squeezenet: Path
) -> None:
    for name in range(3):
        write_picture(tmp_path / "in" / f"{name}.png", 16, 16, seed=name)
    settings = (f"frechet.weights={squeezenet}", "frechet.resolution=32")
    out = reconstruct(vqgan_path, "input=in", *settings)
    metrics = numbers()
    assert metrics["frechet_distance"] > 0
    assert metrics["frechet_features"] == "squeezenet1_1, last stage, images at 32×32"
    assert "not FID" in out
    assert "3 images are no more than the network's 512 features" in out


def test_lpips(
    reconstruct: Run, vqgan_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taming.evaluation.reconstruct.LPIPSLoss", UntrainedLPIPS)
    write_picture(tmp_path / "photo.png", 32, 32)
    reconstruct(vqgan_path, "lpips=alex", "input=photo.png")
    assert numbers()["lpips"] > 0
    assert numbers()["lpips_network"] == "alex"


def test_names_that_collide_or_leave_the_folder(
    reconstruct: Run, run: Run, vqgan_path: Path, tmp_path: Path
) -> None:
    write_picture(tmp_path / "a.png", 16, 16)
    with ZipFile(tmp_path / "in.zip", "w") as archive:
        for name in ("x/1.png", "x/1.jpg", "/top.png", "../up.png", "x/../../up.png"):
            archive.writestr(ZipInfo(name), (tmp_path / "a.png").read_bytes())
    arguments = ("input=in.zip", "write_images=true")
    reconstruct(vqgan_path, *arguments)
    paths = {path.relative_to("out").as_posix() for path in Path("out").rglob("*.png")}
    images = {"images/x/1.png.png", "images/x/1.jpg.png", "images/top.png"}
    assert paths == {*images, "reconstructions.png"}
    assert not list(tmp_path.rglob("up*"))
    outcome = run("reconstruct", f"checkpoint={vqgan_path}", "output_dir=out", *arguments)
    fails(outcome, "out/images exists already")


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ("input=small", ["small.png", "11 pixels"]),
        ("input=in resolution=18", ["18×18", "multiples of 4"]),
        ("input=in tile=18", ["tile=18", "multiple of 4"]),
        ("input=in tile=16 overlap=9", ["overlap=9", "18"]),
        ("input=in overlap=4", ["tile=PIXELS"]),
        ("input=in lpips=squeeze", ["lpips", "vgg"]),
        ("input=in background=[0,0,300]", ["background"]),
        ("input=in batch_size=0", ["batch_size"]),
        ("input=in checkpoint=maps", ["label maps"]),
    ],
)
def test_input_that_cannot_be_used(
    run: Run, vqgan_path: Path, tmp_path: Path, overrides: str, parts: list[str]
) -> None:
    write_picture(tmp_path / "small" / "small.png", 9, 30)
    write_picture(tmp_path / "in" / "a.png", 16, 16)
    save_vqgan(tmp_path / "maps", label_maps=True)
    outcome = run("reconstruct", "checkpoint=vqgan", "output_dir=out", *overrides.split())
    fails_before_writing(outcome, *parts)
