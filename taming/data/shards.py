"""Packs image files into WebDataset shards."""

import io
import json
import tarfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge
from tqdm import tqdm

from taming.data.files import open_files
from taming.data.labels import find_labels
from taming.runtime.errors import UserError, replacing, writing

__all__ = ["ShardSummary", "make_shards"]

MEBI = 1 << 20


class ShardSummary(NamedTuple):
    """The number of images, classes and shards, and the size of all shards in bytes."""

    num_images: int
    num_classes: int
    num_shards: int
    size: int


def make_shards(
    source: str | Path,
    output_dir: str | Path,
    *,
    shard_size: Annotated[int, Ge(1)],
    labels: str = "auto",
    seed: Annotated[int, Ge(0)] = 0,
) -> ShardSummary:
    """Packs the images of a folder or `.zip` file into numbered `.tar` archives, unchanged.

    The images are shuffled, so that one shard holds some of every class. Each keeps its path and
    name, in which dots become `_`, because the name of a sample ends at its first dot. The class
    goes into a file next to the image: its number into `.cls` if folders are classes, and its name
    into `.json` if a table gives the classes.

    Args:
        source: the images.
        output_dir: the directory for `000000.tar` and so on.
        shard_size: the approximate MiB of a shard.
        labels: where classes come from, see `find_labels`.
        seed: seed of the order.

    Raises:
        UserError: if there are no images, one cannot be read, the output cannot be written, or
            the output directory already holds shards.
    """
    files, output_dir = open_files(source), Path(output_dir).expanduser()
    if any(output_dir.glob("*.tar")):
        raise UserError(f"{output_dir} already holds shards. Remove them, or give another folder.")
    names = [entry.name for entry in files.entries]
    class_names, numbers = find_labels(files, names, labels)
    keys = _keys(names)
    order = np.random.default_rng(seed).permutation(len(names)).tolist()
    paths: list[Path] = []
    archive: tarfile.TarFile | None = None
    with writing(output_dir), ExitStack() as shard:
        output_dir.mkdir(parents=True, exist_ok=True)
        for index in tqdm(order, desc=f"packing {files.path.name}", unit="image"):
            if archive is None or archive.offset >= shard_size * MEBI:
                shard.close()  # completes the previous one
                paths.append(output_dir / f"{len(paths):06d}.tar")
                file = shard.enter_context(replacing(paths[-1], "wb"))
                archive = shard.enter_context(tarfile.open(fileobj=file, mode="w"))
            name, key, number = names[index], keys[index], numbers[index]
            try:
                with files.open(files.entries[index]) as image:
                    content = image.read()
            except Exception as error:  # a damaged archive makes zipfile raise nearly anything
                raise UserError(f"{source}: {name} cannot be read ({error}).") from error
            _add(archive, key + PurePosixPath(name).suffix, content)
            if number is not None and labels in ("auto", "folders"):
                _add(archive, f"{key}.cls", str(number).encode())
            elif number is not None:
                _add(archive, f"{key}.json", json.dumps({"label": class_names[number]}).encode())
    size = sum(path.stat().st_size for path in paths)
    return ShardSummary(len(names), len(class_names), len(paths), size)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _keys(names: list[str]) -> list[str]:
    """Returns a unique path for each file, without its suffix and without dots in its name."""
    keys: list[str] = []
    count: Counter[str] = Counter()
    for name in names:
        path = PurePosixPath(name)
        key = path.with_name(path.stem.replace(".", "_")).as_posix()
        count[key] += 1
        keys.append(key if count[key] == 1 else f"{key}_again{count[key]}")
    return keys
