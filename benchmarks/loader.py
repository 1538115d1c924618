"""Times training batches from a folder, an archive, shards and parquet, beside torchvision.

Each source loads the same images in turns, cropped at random, resized and mirrored, in float32:
ours with its Lanczos filter, torchvision's `ImageFolder` and `DataLoader` with its bilinear one.
"""

import argparse
import io
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import PIL.Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.compare import spread
from benchmarks.machine import machine
from benchmarks.table import aligned, spread_text
from taming.data import HuggingFaceImages, ImageFiles, ImageTransform, LoaderOptions, PictureReader
from taming.data.files import open_files
from taming.data.module import ImageDataModule
from taming.workflows.make_shards import make_shards

BATCH_SIZE = 32


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=Path, help="a folder or .zip file with folders of classes")
    parser.add_argument("--resolution", type=int, default=64)
    parser.add_argument("--scale", type=float, default=1, help="enlarge the images so many times")
    parser.add_argument("--max-images", type=int, default=3000)
    parser.add_argument("--num-workers", type=int, default=1)
    parser.add_argument("--batches", type=int, default=20, help="a round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        copy(options.images, place / "folder", options.max_images, options.scale)
        batches = {
            "torchvision": torchvision(place / "folder", options),
            "folder, whole JPEGs": ours(files(place / "folder"), options, draft=False),
            "folder": ours(files(place / "folder"), options),
            "zip": ours(files(zipped(place / "folder")), options),
            "shards": ours(files(sharded(place / "folder")), options),
            "parquet": ours(parquet(place / "folder"), options),
        }
        for stream in batches.values():  # starts the workers
            rate(stream, options.num_workers * 2 + 1)
        rounds = [
            {source: rate(stream, options.batches) for source, stream in batches.items()}
            for _ in range(options.rounds)
        ]
        sources = list(batches)
        batches.clear()  # ends the workers, before their files are removed
        print(f"{machine()}; {options.num_workers} loader processes; {options.images}")
        print("\n".join(aligned([row(source, rounds) for source in sources])))


def row(source: str, rounds: list[dict[str, float]]) -> dict[str, str]:
    """Returns a row of the table."""
    rates = spread([taken[source] for taken in rounds])
    ratios = spread([taken[source] / taken["torchvision"] for taken in rounds])
    return {
        "source": source,
        "images/s": spread_text(rates, 0),
        "times torchvision": spread_text(ratios, 2),
    }


def rate(batches: Iterator[Any], count: int) -> float:
    """Loads some batches; returns images a second."""
    started = time.perf_counter()
    for _ in islice(batches, count):
        pass
    return BATCH_SIZE * count / (time.perf_counter() - started)


def endless(make: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Yields one pass after the other."""
    while True:
        yield from make()


def torchvision(folder: Path, options: argparse.Namespace) -> Iterator[Any]:
    """Returns torchvision's batches."""
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
    return endless(lambda: loader)


def ours(source: Any, options: argparse.Namespace, draft: bool = True) -> Iterator[Any]:
    """Returns our batches of a source."""
    transform = ImageTransform(
        resolution=options.resolution, resize="shorter_side", crop="random",
        crop_scale=(0.8, 1.0), horizontal_flip=True, draft=draft,
    )  # fmt: skip
    loading = LoaderOptions(batch_size=BATCH_SIZE, num_workers=options.num_workers)
    return iter(ImageDataModule(source, transform, loading).train_dataloader())


def files(path: Path) -> ImageFiles:
    """Returns a folder's, an archive's or shards' images."""
    return ImageFiles(path=path, reader=PictureReader(), check="none")


def copy(images: Path, folder: Path, most: int, scale: float) -> None:
    """Writes the images, perhaps enlarged, as JPEG files."""
    listed = open_files(images)
    step = -(-len(listed.entries) // most)  # of every class
    for entry in listed.entries[::step]:
        target = folder / Path(entry.name).parent.name / f"{Path(entry.name).stem}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        with listed.open(entry.name) as file:
            content = file.read()
        if scale == 1:
            target.write_bytes(content)
            continue
        image = PIL.Image.open(io.BytesIO(content)).convert("RGB")
        size = round(image.width * scale), round(image.height * scale)
        image.resize(size, PIL.Image.Resampling.BICUBIC).save(target, quality=90)


def zipped(folder: Path) -> Path:
    """Returns an archive of a folder."""
    return Path(shutil.make_archive(str(folder), "zip", folder))


def sharded(folder: Path) -> Path:
    """Returns WebDataset shards of a folder."""
    make_shards(folder, folder.with_name("shards"), shard_size=64)
    return folder.with_name("shards")


def parquet(folder: Path) -> HuggingFaceImages:
    """Returns the images of a folder in a Parquet file, read by Hugging Face's `datasets`."""
    from datasets import ClassLabel, Dataset, Features, Image

    found, file = sorted(folder.glob("*/*.jpg")), folder.with_name("images.parquet")
    labels = [path.parent.name for path in found]
    columns = {
        "image": [{"bytes": path.read_bytes(), "path": None} for path in found],
        "label": labels,
    }
    features = Features({"image": Image(), "label": ClassLabel(names=sorted(set(labels)))})
    Dataset.from_dict(columns, features).to_parquet(file)
    return HuggingFaceImages(path=str(file), reader=PictureReader())


if __name__ == "__main__":
    main()
