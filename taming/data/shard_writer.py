"""Writes image files into WebDataset shards."""

import io
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

__all__ = ["MadeShards", "make_shards"]

MEBI = 1 << 20


class MadeShards(NamedTuple):
    """What was written."""

    num_images: int
    num_classes: int
    num_shards: int
    size: int  # bytes of all shards


def make_shards(
    source: str | Path,
    output_dir: str | Path,
    *,
    shard_size: Annotated[int, Ge(1)],
    seed: Annotated[int, Ge(0)] = 0,
) -> MadeShards:
    """Writes the images of a folder or `.zip` file into numbered `.tar` archives, unchanged.

    The images are mixed, so that one shard holds some of every class. Each keeps its path and name,
    in which dots become `_`, for a sample's name ends at the first; where folders are classes, a
    `.cls` file beside it has the number.

    Args:
        source: the images.
        output_dir: where `000000.tar` and so on are written.
        shard_size: MiB of a shard, about.
        seed: seed of the mixing.

    Raises:
        UserError: if there are no images, one cannot be read, the output cannot be written, or
            there are shards already.
    """
    files, output_dir = open_files(source), Path(output_dir).expanduser()
    if any(output_dir.glob("*.tar")):
        raise UserError(f"{output_dir} holds shards already: remove them, or choose another.")
    names = [entry.name for entry in files.entries]
    class_names, labels = find_labels(files, names, "auto")
    keys = _keys(names)
    order = np.random.default_rng(seed).permutation(len(names)).tolist()
    paths: list[Path] = []
    archive: tarfile.TarFile | None = None
    with writing(output_dir), ExitStack() as shard:
        output_dir.mkdir(parents=True, exist_ok=True)
        for index in tqdm(order, desc=f"packing {files.path.name}", unit="image"):
            if archive is None or archive.offset >= shard_size * MEBI:
                shard.close()  # the one before is whole
                paths.append(output_dir / f"{len(paths):06d}.tar")
                file = shard.enter_context(replacing(paths[-1], "wb"))
                archive = shard.enter_context(tarfile.open(fileobj=file, mode="w"))
            name, key = names[index], keys[index]
            try:
                with files.open(files.entries[index]) as image:
                    content = image.read()
            except Exception as error:  # a damaged archive makes zipfile raise nearly anything
                raise UserError(f"{source}: {name} cannot be read ({error}).") from error
            _add(archive, key + PurePosixPath(name).suffix, content)
            if labels[index] is not None:
                _add(archive, f"{key}.cls", str(labels[index]).encode())
    size = sum(path.stat().st_size for path in paths)
    return MadeShards(len(names), len(class_names), len(paths), size)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


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
