"""Encodes images into a token cache."""

import hashlib
import json
import logging
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from filelock import AcquireReturnProxy, FileLock, Timeout
from tqdm import tqdm

from taming.data import CacheDescription, ImageDataset, TokenDataset, TokenGrid, TokenWriter
from taming.data.batches import make_loader
from taming.errors import UserError, join_names
from taming.ranks import dealt, gather_in_turn, on_first_rank, rank
from taming.tokenizer import Tokenizer

__all__ = ["encode_dataset"]

log = logging.getLogger(__name__)

RECORD_SECONDS = 10.0  # what a kill may cost


def encode_dataset(
    tokenizer: Tokenizer,
    dataset: ImageDataset,
    cache_dir: str | Path,
    *,
    condition_tokenizer: Tokenizer | None = None,
    num_views: Annotated[int, Ge(1)],
    batch_size: Annotated[int, Ge(1)],
    num_workers: int,
    device: torch.device,
) -> TokenDataset:
    """Returns the data set's token cache under `cache_dir`: the valid one there, else made now.

    Its directory is named after a digest of what it is of, so a cache of another tokenizer, other
    images or another transform is never found, let alone used. An interrupted encoding goes on
    where it was. The processes of one training, or command, share the work, and the first of them
    writes; of several runs that need the same cache one makes it, and the others wait.
    Images that could not be read are named in the cache, and in a warning each time it is used.

    Args:
        tokenizer: encodes the images; it is moved to `device`, like the other one.
        dataset: the images.
        cache_dir: where caches live.
        condition_tokenizer: encodes the conditions of a data set of pairs; None to leave them out.
        num_views: encodings of each image, the first unaugmented.
        batch_size: images encoded at once.
        num_workers: processes that load images.
        device: where to encode.

    Raises:
        UserError: if the cache cannot be written.
    """
    cache_dir = Path(cache_dir).expanduser()
    tokenizers: dict[str, Tokenizer] = {"images": tokenizer}
    if condition_tokenizer is not None:
        tokenizers["conditions"] = condition_tokenizer
    description = _describe(tokenizers, dataset, num_views)
    digest = hashlib.sha256(json.dumps(description.plain()).encode()).hexdigest()[:16]
    directory = cache_dir / digest
    images = f"{len(dataset)} images of {dataset.images.description}"
    if on_first_rank(directory.exists):
        log.info("tokens of %s: already in %s", images, directory)
    else:
        try:
            with _lock(cache_dir, digest, images) if rank() == 0 else nullcontext():
                writer = None
                if rank() == 0 and not directory.exists():
                    writer = TokenWriter(cache_dir / f"{digest}.unfinished", description)
                start = on_first_rank(lambda: writer.done if writer else description.num_items)
                batches = dealt(description.batches(start, batch_size))
                loader = make_loader(dataset, num_workers, batch_sampler=batches)
                num_batches = math.ceil((description.num_items - start) / batch_size)
                encoded = _encode(tokenizers, dataset, loader, device)
                _write(gather_in_turn(encoded, num_batches), writer, dataset)
                if writer is not None:
                    writer.finish(directory)
        except OSError as error:
            raise UserError(
                f"the token cache {directory} cannot be written ({error}). Free some space, or "
                "give another tokens.cache_dir."
            ) from error
        on_first_rank(lambda: None)  # all wait until the cache is there
    tokens = TokenDataset(directory, description)
    if tokens.replaced_names:
        log.warning(
            "tokens of %s: %d images could not be read when they were encoded (%s), and others "
            "stand for them. If they can be read now, delete %s: all are encoded again.",
            images,
            len(tokens.replaced_names),
            join_names(tokens.replaced_names),
            directory,
        )
    return tokens


def _describe(
    tokenizers: dict[str, Tokenizer], dataset: ImageDataset, num_views: int
) -> CacheDescription:
    sizes = {"images": dataset.transform.size, "conditions": dataset.transform.condition_size}
    grids = {
        name: TokenGrid(
            tokenizer=tokenizer.to_saved().fingerprint(),
            grid_size=tokenizer.grid_size_for(sizes[name]),
            codebook_size=tokenizer.codebook_size,
        )
        for name, tokenizer in tokenizers.items()
    }
    return CacheDescription(
        data=dataset.fingerprint(),
        seed=dataset.seed if num_views > 1 else 0,  # the first view is unaugmented
        num_images=len(dataset),
        num_views=num_views,
        indices=grids["images"],
        condition_indices=grids.get("conditions"),
        num_classes=len(dataset.images.class_names) or None,
    )


def _lock(cache_dir: Path, digest: str, images: str) -> AcquireReturnProxy:
    """Keeps other runs away from a cache; waits for one that makes it."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    lock = FileLock(cache_dir / f".{digest}.lock")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        log.info("another process is at work on the tokens of %s: waiting for it", images)
        return lock.acquire()


@torch.inference_mode()
def _encode(
    tokenizers: dict[str, Tokenizer],
    dataset: ImageDataset,
    loader: Iterable[dict[str, Any]],
    device: torch.device,
) -> Iterator[tuple[dict[str, np.ndarray], list[str]]]:
    """Yields each batch's tokens, and the names of the images that others have stood in for."""
    for tokenizer in tokenizers.values():
        tokenizer.to(device)
    entries = {"indices": "images", "condition_indices": "conditions"}
    for batch in loader:
        tokens = {
            entry: tokenizers[name].encode(batch[name].to(device)).cpu().numpy()
            for entry, name in entries.items()
            if name in tokenizers
        }
        if "labels" in batch:
            tokens["labels"] = batch["labels"].numpy()
        yield tokens, dataset.replaced_names


def _write(
    encoded: Iterable[tuple[dict[str, np.ndarray], list[str]]],
    writer: TokenWriter | None,
    dataset: ImageDataset,
) -> None:
    """Writes batch after batch in the first process; the others, without a writer, encode only."""
    total, done = (1, 0) if writer is None else (writer.description.num_items, writer.done)
    name = Path(dataset.images.description).name
    bar = tqdm(
        total=total, initial=done, unit="image", desc=f"encoding {name}", mininterval=1,
        disable=writer is None,
    )  # fmt: skip
    recorded, replaced_names = time.monotonic(), set()
    try:
        with bar:
            for tokens, names in encoded:
                assert writer is not None
                writer.write(tokens)
                replaced_names.update(names)
                bar.update(len(tokens["indices"]))
                if time.monotonic() - recorded > RECORD_SECONDS:
                    writer.record(replaced_names)
                    recorded = time.monotonic()
    finally:  # Ctrl-C too
        if writer is not None:
            writer.record(replaced_names)
