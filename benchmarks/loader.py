"""Times training batches from a folder, a zip, shards and parquet, and torchvision's batches.

The sources take turns with the same images: cropped at random, resized and mirrored, in float32.
Our sources resize with a Lanczos filter, torchvision's `ImageFolder` with a bilinear filter.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import PIL.Image
import PIL.ImageOps
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.machine import machine
from benchmarks.table import aligned, ratios, spread, take_turns
from taming.data import HuggingFaceImages, ImageFiles, ImageTransform, LoaderOptions, PictureReader
from taming.data.files import open_files
from taming.data.module import ImageDataModule
from taming.data.shards import make_shards

BATCH_SIZE = 32


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=Path, help="a folder or .zip file with folders of classes")
    parser.add_argument("--resolution", type=int, default=64)
    parser.add_argument("--scale", type=float, default=1, help="factor to enlarge the images by")
    parser.add_argument("--max-images", type=int, default=3000)
    parser.add_argument("--num-workers", type=int, default=1)
    parser.add_argument("--batches", type=int, default=20, help="per round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        rates = measure(Path(place), options)
    rows = [
        {
            "source": source,
            "images/s": spread(rounds),
            "times torchvision": spread(ratios(rounds, rates["torchvision"])),
        }
        for source, rounds in rates.items()
    ]
    print(f"{machine()}; {options.num_workers} loader processes; {options.images}\n{aligned(rows)}")


def measure(place: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    """Returns the images per second of each source, round by round."""
    batches = sources(place, options)
    for stream in batches.values():  # starts the workers
        rate(stream, options.num_workers * 2 + 1)
    sides = {source: partial(rate, stream, options.batches) for source, stream in batches.items()}
    return take_turns(sides, options.rounds)


def rate(batches: Iterator[Any], count: int) -> float:
    """Loads some batches and returns images per second."""
    started = time.perf_counter()
    for _ in islice(batches, count):
        pass
    return BATCH_SIZE * count / (time.perf_counter() - started)


def sources(place: Path, options: argparse.Namespace) -> dict[str, Iterator[Any]]:
    """Writes the images to each kind of source and returns the batches of each."""
    folder, shards = place / "folder", place / "shards"
    copy(options.images, folder, options.max_images, options.scale)
    make_shards(folder, shards, shard_size=64)
    archive = Path(shutil.make_archive(str(folder), "zip", folder))

    def batches(source: Any, draft: bool = True) -> Iterator[Any]:
        transform = ImageTransform(
            resolution=options.resolution, resize="shorter_side", crop="random",
            crop_scale=(0.8, 1.0), horizontal_flip=True, draft=draft,
        )  # fmt: skip
        loading = LoaderOptions(batch_size=BATCH_SIZE, num_workers=options.num_workers)
        return iter(ImageDataModule(source, transform, loading).train_dataloader())

    files = partial(ImageFiles, reader=PictureReader(), check="none")
    return {
        "torchvision": torchvision(folder, options),
        "folder, whole JPEGs": batches(files(path=folder), draft=False),
        "folder": batches(files(path=folder)),
        "zip": batches(files(path=archive)),
        "shards": batches(HuggingFaceImages(path=str(shards), reader=PictureReader())),
        "parquet": batches(parquet(folder)),
    }


def torchvision(folder: Path, options: argparse.Namespace) -> Iterator[Any]:
    """Returns torchvision's batches, pass after pass."""
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(options.resolution, scale=(0.64, 1), ratio=(1, 1)),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )
    loader = DataLoader(
        ImageFolder(str(folder), transform),
        BATCH_SIZE,
        shuffle=True,
        drop_last=True,
        num_workers=options.num_workers,
        persistent_workers=options.num_workers > 0,
    )
    return chain.from_iterable(repeat(loader))


def copy(images: Path, folder: Path, max_images: int, scale: float) -> None:
    """Writes the images as JPEG files, enlarged by `scale`."""
    files = open_files(images)
    step = -(-len(files.entries) // max_images)  # takes images of every class
    for entry in islice(files.entries, 0, None, step):
        path = Path(entry.name)
        target = folder / path.parent.name / f"{path.stem}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        with files.open(entry) as file:
            if scale == 1:
                target.write_bytes(file.read())
            else:
                image = PIL.Image.open(file).convert("RGB")
                PIL.ImageOps.scale(image, scale).save(target, quality=90)


def parquet(folder: Path) -> HuggingFaceImages:
    """Writes a folder to a Parquet file and opens it with Hugging Face's `datasets`."""
    from datasets import ClassLabel, Dataset, Features, Image

    paths, file = sorted(folder.glob("*/*.jpg")), folder.with_name("images.parquet")
    labels = [path.parent.name for path in paths]
    images = [{"bytes": path.read_bytes(), "path": None} for path in paths]
    features = Features({"image": Image(), "label": ClassLabel(names=sorted(set(labels)))})
    Dataset.from_dict({"image": images, "label": labels}, features).to_parquet(file)
    return HuggingFaceImages(path=str(file), reader=PictureReader())


if __name__ == "__main__":
    main()
