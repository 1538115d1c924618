"""Writes image files into WebDataset shards."""

import io
import tarfile
from collections import Counter
from collections.abc import Generator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge
from tqdm import tqdm

from taming.data.files import open_files
from taming.data.labels import find_labels
from taming.errors import UserError, replacing, writing

__all__ = ["MadeShards", "make_shards"]

MEBI = 1 << 20


class MadeShards(NamedTuple):
    """What was written."""

    num_images: int
    num_classes: int
    num_shards: int
    size: int  # bytes of all shards


def make_shards(
    source: str | Path, output_dir: Path, *, shard_size: Annotated[int, Ge(1)], seed: int = 0
) -> MadeShards:
    """Writes the images of a folder or `.zip` file into numbered `.tar` archives, unchanged.

    The images are mixed, so that one shard holds some of every class. Each keeps its path and name,
    in which dots become `_`, for a sample's name ends at the first; where folders are classes, a
    `.cls` file beside it has the number.

    Args:
        source: the images.
        output_dir: where `000000.tar` and so on are written.
        shard_size: MiB of a shard, about.
        seed: seed of the mixing, not negative.

    Raises:
        UserError: if there are no images, one cannot be read, the output cannot be written, or
            there are shards already.
    """
    files = open_files(source)
    if any(output_dir.glob("*.tar")):
        raise UserError(f"{output_dir} holds shards already: remove them, or choose another.")
    names = [entry.name for entry in files.entries]
    class_names, labels = find_labels(files, names, "auto")
    keys = _keys(names)

    def samples() -> Generator[dict[str, bytes]]:
        order = np.random.default_rng(seed).permutation(len(names)).tolist()
        for index in tqdm(order, desc=f"packing {files.path.name}", unit="image"):
            name, key = names[index], keys[index]
            try:
                with files.open(name) as file:
                    content = file.read()
            except Exception as error:  # a damaged archive makes zipfile raise nearly anything
                raise UserError(f"{source}: {name} cannot be read ({error}).") from error
            sample = {key + PurePosixPath(name).suffix: content}
            if labels[index] is not None:
                sample[f"{key}.cls"] = str(labels[index]).encode()
            yield sample

    num_shards = size = 0
    waiting = samples()
    sample = next(waiting, None)
    with writing(output_dir), closing(waiting):
        output_dir.mkdir(parents=True, exist_ok=True)
        while sample is not None:
            path = output_dir / f"{num_shards:06d}.tar"
            with replacing(path, "wb") as file, tarfile.open(fileobj=file, mode="w") as archive:
                while sample is not None and archive.offset < shard_size * MEBI:
                    for name, content in sample.items():
                        member = tarfile.TarInfo(name)
                        member.size = len(content)
                        archive.addfile(member, io.BytesIO(content))
                    sample = next(waiting, None)
            num_shards += 1
            size += path.stat().st_size
    return MadeShards(len(names), len(class_names), num_shards, size)


def _keys(names: list[str]) -> list[str]:
    """Returns a path for each file, without suffix and dots in its name, that no other has."""
    found: list[str] = []
    taken: Counter[str] = Counter()
    for name in names:
        path = PurePosixPath(name)
        key = path.with_name(path.stem.replace(".", "_")).as_posix()
        taken[key] += 1
        found.append(key if taken[key] == 1 else f"{key}_again{taken[key]}")
    return found
