"""The readers of the program, each with a directory of small files."""

import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from tiny_models import tiny_generator, tiny_vqgan

from taming.cli.saved_config import load_saved_config
from taming.conditioning import ClassLabel, ImageCondition
from taming.data import (
    ArrayReader,
    BrokenImageError,
    CacheDescription,
    ImageFolder,
    ImageStream,
    LabelMapReader,
    PictureReader,
    TokenDataset,
    TokenGrid,
    TokenWriter,
)
from taming.data.samples import open_samples
from taming.generation import ImageGenerator
from taming.report.health import findings
from taming.report.records import read_run
from taming.report.tables import evaluations, overview
from taming.serialization import checkpoint_entry, read_foreign_checkpoint
from taming.training import check_resume

__all__ = ["READERS", "Reader"]

TOKENS = CacheDescription("d", 3, 40, 2, TokenGrid("t", (2, 3), 1000), num_classes=300)


class Reader(NamedTuple):
    """`make` writes files into a directory; `read` reads them as the program does."""

    make: Callable[[Path], None]
    read: Callable[[Path], object]


def make_images(directory: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    for suffix in ("png", "jpg", "bmp", "tif", "webp"):
        Image.fromarray(pixels).save(directory / f"a.{suffix}")
    Image.fromarray(pixels[..., 0].astype(np.uint16) * 257).save(directory / "sixteen.png")
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(pixels).save(directory / "turned.jpg", exif=exif)


def make_label_maps(directory: Path) -> None:
    classes = np.random.default_rng(0).integers(0, 256, (9, 12), dtype=np.uint8)
    Image.fromarray(classes).save(directory / "grey.png")
    Image.frombytes("P", (12, 9), classes.tobytes()).save(directory / "palette.tif")


def read_images(directory: Path, reader: Any = None) -> None:
    for check in ("header", "full"):
        ImageFolder(directory, reader or PictureReader()).drop_broken(check)


def make_zip(directory: Path) -> None:
    inside = directory / "inside"
    inside.mkdir()
    make_images(inside)
    with zipfile.ZipFile(directory / "images.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in inside.iterdir():
            archive.write(path, f"class/{path.name}")
            path.unlink()
    inside.rmdir()


def make_shard(directory: Path) -> None:
    make_images(directory)
    files = {path.name.replace(".", "_"): path for path in sorted(directory.iterdir())}
    with tarfile.open(directory / "images.tar", "w") as archive:
        for key, path in files.items():
            archive.add(path, f"{key}{path.suffix}")
            path.write_text("7")
            archive.add(path, f"{key}.cls")
            path.unlink()


def read_shard(directory: Path) -> None:
    source = ImageStream(path=str(directory / "images.tar"), reader=PictureReader())
    table = source.open_table("train", streaming=True)
    for batch in source.batches(table, 0, 3):
        table.classes(batch)
        for image in filter(None, table.images(batch)):
            with suppress(BrokenImageError):
                source.reader.read(io.BytesIO(image["bytes"]), "an image")


def make_arrays(directory: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 65536, (9, 12, 3), dtype=np.uint16)
    np.save(directory / "a.npy", pixels)
    Image.fromarray(pixels[..., 0]).save(directory / "b.tif", compression="tiff_lzw")


def read_arrays(directory: Path) -> None:
    for name, channels in (("a.npy", 3), ("b.tif", 1)):
        ImageFolder(directory / name, ArrayReader(channels, (0, 65535))).drop_broken("full")


def make_tables(directory: Path) -> None:
    for name in "ab":
        Image.new("L", (8, 8)).save(directory / f"{name}.png")
    (directory / "labels.csv").write_text("file_name,label\na.png,cat\nb.png,dog\n")
    (directory / "one.json").write_text('{"a.png": "cat", "b.png": 1}')
    (directory / "two.json").write_text('{"labels": [["a.png", 0], ["b.png", 1]]}')


def read_tables(directory: Path) -> None:
    for table in ("labels.csv", "one.json", "two.json"):
        ImageFolder(directory, PictureReader(), labels=table).drop_broken("full")


def make_model(directory: Path) -> None:
    tokenizer = tiny_vqgan(quantizer={"kind": "finite_scalar", "levels": [5, 5]})
    condition = ImageCondition(8, (2, 3), as_context=True)
    model = tiny_generator(condition, condition_tokenizer=tiny_vqgan(), tokenizer=tokenizer)
    model.save_pretrained(directory / "model")


def make_checkpoint(directory: Path) -> None:
    entry = checkpoint_entry(tiny_generator(ClassLabel(3)).to_saved())
    path = directory / "checkpoints" / "last.ckpt"
    path.parent.mkdir()
    torch.save({"model": entry, "global_step": 3, "state_dict": {}}, path)


def read_checkpoint(directory: Path) -> None:
    _, saved = check_resume(directory, "generator")
    ImageGenerator.from_saved(saved)


def make_tokens(directory: Path) -> None:
    writer = TokenWriter(directory / "cache", TOKENS)
    for keys in writer.claim(80):
        numbers = np.array([key if isinstance(key, int) else key[1] for key in keys])
        codes = np.broadcast_to(numbers[:, None, None], (80, 2, 3))
        writer.write({"indices": codes, "labels": numbers})
    writer.finish()


def read_tokens(directory: Path) -> None:
    """Reads exactly what was written, or nothing."""
    batch = TokenDataset(directory / "cache", TOKENS)[range(40)]
    assert batch["indices"][:, 1, 1].tolist() == batch["labels"].tolist() == list(range(40))


def make_run(directory: Path) -> None:
    config = "run_dir: run\nseed: 1\ntrainer:\n  max_steps: 4\ndata:\n  path: ${run_dir}/x\n"
    (directory / "config.yaml").write_text(config)
    rows = "step,train/loss,val/loss\n1,2.5,\n2,2.25,2.0\n4,,1.5\n"
    (directory / "metrics.csv").write_text(rows)
    result = {"step": 4, "interrupted": False, "metrics": {"val/loss": 1.5}, "metrics_step": 4}
    result |= {"duration_seconds": 2.5, "versions": {"torch": "2"}, "device": "this one"}
    (directory / "result.json").write_text(json.dumps(result))
    numbers: dict[str, Any] = {"contract": {"seed": 0}, "reconstructions": {"psnr": 20.0}}
    (directory / "evaluation").mkdir()
    (directory / "evaluation" / "metrics.json").write_text(json.dumps(numbers))


def read_run_directory(directory: Path) -> None:
    run = read_run(directory)
    overview([run], [{}])
    list(evaluations(run))
    list(findings(run))


def make_samples(directory: Path) -> None:
    pixels = np.zeros((4, 6, 6, 3), np.uint8)
    np.savez(directory / "samples.npz", pixels, np.arange(4))
    np.savez_compressed(directory / "small.npz", pixels, np.arange(4))


def read_samples(directory: Path) -> None:
    for path in directory.iterdir():
        images = open_samples(path, PictureReader(), ["a", "b", "c", "d"])
        for index in range(len(images)):
            images.load(index)
            images.label(index)


READERS = {
    "images": Reader(make_images, read_images),
    "label maps": Reader(make_label_maps, lambda path: read_images(path, LabelMapReader(256))),
    "zip": Reader(make_zip, lambda path: ImageFolder(path / "images.zip", PictureReader(),
                                                    labels="auto").drop_broken("full")),
    "shard": Reader(make_shard, read_shard),
    "arrays": Reader(make_arrays, read_arrays),
    "label tables": Reader(make_tables, read_tables),
    "model": Reader(make_model, lambda path: ImageGenerator.from_pretrained(path / "model")),
    "checkpoint": Reader(make_checkpoint, read_checkpoint),
    "foreign": Reader(make_checkpoint, lambda path: read_foreign_checkpoint(
        path / "checkpoints" / "last.ckpt")),
    "tokens": Reader(make_tokens, read_tokens),
    "run": Reader(make_run, read_run_directory),
    "config": Reader(make_run, lambda path: load_saved_config(path / "config.yaml")),
    "samples": Reader(make_samples, read_samples),
}  # fmt: skip
