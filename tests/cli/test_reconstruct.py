"""Reconstructing, as a user runs it, with a small VQGAN."""

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_commands import Outcome, Run, fails_before_writing
from torchvision.models import squeezenet1_1

import taming
from taming.pictures import to_uint8


def save_vqgan(directory: Path, image_channels: int = 3, label_maps: bool = False) -> Path:
    torch.manual_seed(0)
    vqgan = taming.VQGAN(
        quantizer={"kind": "vector", "codebook_size": 8, "codebook_dim": 4},
        image_channels=image_channels,
        label_maps=label_maps,
        resolution=16,
        base_channels=8,
        channel_multipliers=(1, 1, 1),
        num_residual_blocks=1,
        attention_resolutions=(4,),
        latent_channels=8,
    )
    vqgan.save_pretrained(directory)
    return directory


@pytest.fixture
def vqgan_path(tmp_path: Path) -> Path:
    """A model directory, downsample factor 4."""
    return save_vqgan(tmp_path / "vqgan")


def write(path: Path, height: int, width: int, seed: int = 0) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def numbers(directory: str = "out") -> dict[str, Any]:
    return json.loads((Path(directory) / "metrics.json").read_text())


def good(outcome: Outcome) -> Outcome:
    assert outcome.status == 0, outcome.err
    return outcome


def test_a_folder_of_many_sizes(run: Run, vqgan_path: Path, tmp_path: Path) -> None:
    pixels = write(tmp_path / "in" / "cats" / "1.png", 16, 24)
    write(tmp_path / "in" / "cats" / "2.png", 17, 27, seed=1)  # loses a row and three columns
    write(tmp_path / "in" / "dogs" / "1.png", 32, 12, seed=2)
    (tmp_path / "in" / "dogs" / "bad.jpg").write_bytes(b"no picture")
    outcome = good(
        run(
            "reconstruct",
            f"checkpoint={vqgan_path}",
            "input=in",
            "output_dir=out",
            "write_images=true",
        )
    )
    found = numbers()
    assert found["num_images"] == 3
    assert found["resolution"] is None
    assert found["num_cropped"] == 1
    assert [name for name, _ in found["broken"]] == ["dogs/bad.jpg"]
    assert found["num_latents"] == (16 * 24 + 16 * 24 + 32 * 12) // 16
    assert 0 < found["psnr"] < 20  # an untrained model of noise
    assert 0 < found["codebook_usage"] <= 1
    for part in ("PSNR", "SSIM", "dogs/bad.jpg", "cut in the middle", "wrote out/metrics.json"):
        assert part in outcome.out, outcome.out

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
    run: Run, vqgan_path: Path, tmp_path: Path
) -> None:
    for name in range(5):
        write(tmp_path / "in" / f"{name}.png", 20, 30, seed=name)
    with ZipFile(tmp_path / "in.zip", "w") as archive:
        for path in sorted((tmp_path / "in").iterdir()):
            archive.write(path, path.name)
    results = []
    for more in (("input=in", "batch_size=2"), ("input=in.zip", "num_workers=1")):
        arguments = (f"checkpoint={vqgan_path}", "resolution=[16,12]", "output_dir=out")
        good(run("reconstruct", *arguments, *more))
        results.append(numbers())
    for name in ("psnr", "ssim", "codebook_usage", "codebook_perplexity"):
        assert results[0][name] == pytest.approx(results[1][name], rel=1e-5), name
    assert results[0]["resolution"] == results[1]["resolution"] == [16, 12]
    assert results[0]["num_images"] == results[1]["num_images"] == 5
    assert results[0]["num_cropped"] == 0
    good(run("reconstruct", *arguments, "input=in", "max_images=2"))
    assert numbers()["num_images"] == 2


def test_one_large_grey_image_in_tiles(run: Run, tmp_path: Path) -> None:
    grey = save_vqgan(tmp_path / "grey", image_channels=1)
    write(tmp_path / "photo.png", 40, 60)
    outcome = good(
        run(
            "reconstruct",
            f"checkpoint={grey}",
            "input=photo.png",
            "output_dir=out",
            "tile=16",
            "overlap=4",
            "write_images=true",
            "side_by_side=false",
        )
    )
    found = numbers()
    assert (found["num_images"], found["resolution"]) == (1, [40, 60])
    assert (found["tile"], found["overlap"]) == (16, 4)
    assert found["num_latents"] == 3 * 5 * 16  # codes of all tiles
    with Image.open("out/images/photo.png") as single:
        assert single.size == (60, 40)
    with Image.open("out/reconstructions.png") as grid:
        assert grid.size == (2 * (2 * 60 + 2) + 2, 2 * 40 + 4)
    assert "40×60" in outcome.out


def test_a_whole_tile_changes_nothing(run: Run, vqgan_path: Path, tmp_path: Path) -> None:
    write(tmp_path / "photo.png", 32, 24)
    results = []
    for more in ((), ("tile=32",)):
        arguments = (f"checkpoint={vqgan_path}", "input=photo.png", "output_dir=out")
        good(run("reconstruct", *arguments, *more))
        results.append({**numbers(), "tile": None, "overlap": None})
    assert results[0] == results[1]


def test_frechet_distance_names_its_network(run: Run, vqgan_path: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.save(squeezenet1_1(weights=None).state_dict(), tmp_path / "squeezenet.pth")
    for name in range(3):
        write(tmp_path / "in" / f"{name}.png", 16, 16, seed=name)
    outcome = good(
        run(
            "reconstruct",
            f"checkpoint={vqgan_path}",
            "input=in",
            "output_dir=out",
            "frechet.weights=squeezenet.pth",
            "frechet.resolution=32",
        )
    )
    found = numbers()
    assert found["frechet_distance"] > 0
    assert found["frechet_features"] == "squeezenet1_1, last stage, images at 32×32"
    assert "not FID" in outcome.out
    assert "3 images are no more than the network's 512 features" in outcome.out


def test_lpips(run: Run, vqgan_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from taming.losses import LPIPSLoss

    class Untrained(LPIPSLoss):  # for the weights would be downloaded
        def __init__(self, backbone: str) -> None:
            super().__init__(backbone=backbone, pretrained=False)

    monkeypatch.setattr("taming.workflows.reconstruct.LPIPSLoss", Untrained)
    write(tmp_path / "photo.png", 32, 32)
    arguments = (f"checkpoint={vqgan_path}", "output_dir=out", "lpips=alex")
    good(run("reconstruct", *arguments, "input=photo.png"))
    assert numbers()["lpips"] > 0
    assert numbers()["lpips_network"] == "alex"


def test_the_tokenizer_of_a_generator(
    run: Run, transformer_run: Path, vqgan_run: Path, images: Path
) -> None:
    results = []
    for checkpoint in (transformer_run, vqgan_run):
        arguments = (f"checkpoint={checkpoint}", f"input={images}", "output_dir=out")
        good(run("reconstruct", *arguments))
        results.append(numbers())
    assert results[0] == results[1]
    assert results[0]["num_images"] == 16


def test_names_that_collide_or_leave_the_folder(run: Run, vqgan_path: Path, tmp_path: Path) -> None:
    write(tmp_path / "a.png", 16, 16)
    with ZipFile(tmp_path / "in.zip", "w") as archive:
        for name in ("x/1.png", "x/1.jpg", "/top.png"):
            archive.writestr(ZipInfo(name), (tmp_path / "a.png").read_bytes())
    arguments = (f"checkpoint={vqgan_path}", "input=in.zip", "output_dir=out", "write_images=true")
    good(run("reconstruct", *arguments))
    found = {p.relative_to("out/images").as_posix() for p in Path("out/images").rglob("*.png")}
    assert found == {"x/1.png.png", "x/1.jpg.png", "top.png"}
    outcome = run("reconstruct", *arguments)
    assert outcome.status == 2
    assert "out/images exists already" in outcome.err


def test_input_that_cannot_be_used(run: Run, vqgan_path: Path, tmp_path: Path) -> None:
    def reconstruct(*arguments: str) -> Outcome:
        return run("reconstruct", f"checkpoint={vqgan_path}", "output_dir=out", *arguments)

    fails_before_writing(run("reconstruct"), "checkpoint", "input")
    fails_before_writing(
        run("reconstruct", "checkpoint=nowhere", "input=x"), "nowhere", "does not exist"
    )
    fails_before_writing(reconstruct("input=nowhere"), "nowhere", "does not exist", "input")
    (tmp_path / "empty").mkdir()
    fails_before_writing(reconstruct("input=empty"), "empty", "no images")
    (tmp_path / "text.txt").write_text("no picture")
    fails_before_writing(reconstruct("input=text.txt"), "text.txt", "broken")
    write(tmp_path / "in" / "small.png", 3, 30)
    fails_before_writing(reconstruct("input=in"), "small.png", "11 pixels")
    write(tmp_path / "in" / "small.png", 9, 30)
    fails_before_writing(reconstruct("input=in"), "small.png", "11 pixels")
    fails_before_writing(reconstruct("input=in", "resolution=18"), "18×18", "multiples of 4")
    fails_before_writing(reconstruct("input=in", "tile=18"), "tile=18", "multiple of 4")
    fails_before_writing(reconstruct("input=in", "tile=16", "overlap=9"), "overlap=9", "half")
    fails_before_writing(reconstruct("input=in", "overlap=4"), "tile=PIXELS")
    fails_before_writing(reconstruct("input=in", "lpips=squeeze"), "lpips should be", "vgg")
    fails_before_writing(
        reconstruct("input=in", "frechet.weights=none.pth"), "none.pth", "does not exist"
    )
    fails_before_writing(reconstruct("input=in", "background=[0,0,300]"), "background")
    for override in ("batch_size=0", "max_images=0", "num_workers=-1", "device=abacus"):
        fails_before_writing(reconstruct("input=in", override), override.split("=")[0])


def test_a_tokenizer_of_label_maps(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.png", 16, 16)
    for channels in (3, 5):
        maps = save_vqgan(tmp_path / f"{channels}", image_channels=channels, label_maps=True)
        outcome = run("reconstruct", f"checkpoint={maps}", "input=a.png", "output_dir=out")
        fails_before_writing(outcome, f"{channels} channels", "label maps")
