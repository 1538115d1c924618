"""Images to a token cache."""

import hashlib
import json
import logging
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

from taming.conditioning import CellClasses
from taming.data import (
    CacheDescription,
    ImageDataset,
    LabelMapTransform,
    PairTransform,
    TokenDataset,
    TokenGrid,
    TokenWriter,
    exclusive,
)
from taming.errors import UserError
from taming.vqgan import VQGAN

__all__ = ["encode_dataset"]

log = logging.getLogger(__name__)

RECORD_SECONDS = 10.0  # what a kill may cost
ENCODED = {"indices": "images", "condition_indices": "conditions"}


def encode_dataset(
    tokenizer: VQGAN,
    dataset: ImageDataset,
    cache_dir: Path,
    *,
    condition_tokenizer: VQGAN | CellClasses | None = None,
    num_views: int,
    batch_size: int,
    num_workers: int,
    device: torch.device,
    name: str,
) -> TokenDataset:
    """The data set's token cache under `cache_dir`: the valid one there, else made now.

    Its directory is named after a digest of what it is of, so a cache of another tokenizer, other
    images or another transform is never found, let alone used. An interrupted encoding goes on
    where it was when the same cache is asked for again. Of several processes that ask for it one
    makes it, and the others wait. Images that could not be read are named in the cache, and in a
    warning each time it is used.

    Args:
        tokenizer: encodes the images; it is moved to `device`, like the other one.
        dataset: the images.
        cache_dir: where caches live.
        condition_tokenizer: encodes the conditions of a data set of pairs; None to leave them out.
        num_views: encodings of each image, the first unaugmented.
        batch_size: images at once.
        num_workers: processes that load images.
        device: where to encode.
        name: of the data set, for messages.

    Raises:
        UserError: if the cache cannot be written, or the conditions do not fit their tokenizer.
    """
    condition_grid = None
    if condition_tokenizer is not None:
        resolution = _check_conditions(dataset, condition_tokenizer)
        condition_grid = _grid(condition_tokenizer, resolution)
    description = CacheDescription(
        data=dataset.fingerprint(),
        seed=dataset.seed if num_views > 1 else 0,  # the first view is unaugmented
        num_images=len(dataset),
        num_views=num_views,
        indices=_grid(tokenizer, dataset.resolution),
        condition_indices=condition_grid,
    )
    digest = hashlib.sha256(json.dumps(description.plain()).encode()).hexdigest()[:16]
    directory = cache_dir / digest
    if directory.exists():
        log.info("tokens of the %s: already in %s", name, directory)
    else:
        try:
            cache_dir.mkdir(parents=True, exist_ok=True)
            with exclusive(cache_dir / f"{digest}.lock", f"the tokens of the {name}"):
                if not directory.exists():
                    writer = TokenWriter(
                        cache_dir / f"{digest}.unfinished",
                        description,
                        with_labels=dataset.label(0) is not None,
                    )
                    tokenizers: dict[str, VQGAN | CellClasses] = {"indices": tokenizer}
                    if condition_tokenizer is not None:
                        tokenizers["condition_indices"] = condition_tokenizer
                    loader = _loader(dataset, writer.remaining(batch_size), num_workers)
                    _encode(tokenizers, dataset, loader, writer, device, name)
                    writer.finish(directory)
        except OSError as error:
            raise UserError(
                f"the token cache {directory} cannot be written ({error}). Free some space, or "
                "give another tokens.cache_dir."
            ) from error
    tokens = TokenDataset(directory, description)
    if tokens.replaced:
        log.warning(
            "tokens of the %s: %d images could not be read when they were encoded (%s%s), "
            "and others stand for them. If they can be read now, delete %s: all are encoded again.",
            name,
            len(tokens.replaced),
            tokens.replaced[0],
            ", …" if len(tokens.replaced) > 1 else "",
            directory,
        )
    return tokens


def _loader(
    dataset: ImageDataset, batches: Iterable[list[Any]], num_workers: int
) -> DataLoader[dict[str, torch.Tensor]]:
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=num_workers,
        generator=torch.Generator(),  # its own: a run with a cache draws the same numbers
    )


def _encode(
    tokenizers: dict[str, VQGAN | CellClasses],
    dataset: ImageDataset,
    loader: DataLoader[dict[str, torch.Tensor]],
    writer: TokenWriter,
    device: torch.device,
    name: str,
) -> None:
    for tokenizer in tokenizers.values():
        tokenizer.to(device)
    bar = tqdm(
        total=writer.total,
        initial=writer.done,
        unit="image",
        desc=f"encoding {name}",
        file=sys.stderr,
        mininterval=1,
    )
    recorded = time.monotonic()
    try:
        with torch.inference_mode(), bar:
            for batch in loader:
                codes = {
                    key: tokenizer.encode(batch[ENCODED[key]].to(device)).cpu().numpy()
                    for key, tokenizer in tokenizers.items()
                }
                # a broken image's stand-in may be of another class than the image
                labels = batch.get("labels")
                writer.write(codes, None if labels is None else labels.numpy())
                bar.update(len(batch["images"]))
                if time.monotonic() - recorded > RECORD_SECONDS:
                    writer.record(dataset.replaced)
                    recorded = time.monotonic()
    finally:  # Ctrl-C too
        writer.record(dataset.replaced)


def _grid(tokenizer: VQGAN | CellClasses, resolution: tuple[int, int]) -> TokenGrid:
    return TokenGrid(
        tokenizer=tokenizer.to_saved().fingerprint(),
        grid_size=tokenizer.grid_size_for(resolution),
        codebook_size=tokenizer.codebook_size,
    )


def _check_conditions(dataset: ImageDataset, tokenizer: VQGAN | CellClasses) -> tuple[int, int]:
    """The conditions' resolution; a `UserError` if there are none, or none for this tokenizer."""
    transform = dataset.transform
    if not isinstance(transform, PairTransform):
        raise UserError(
            "the images have no conditions to encode: use data=paired, or leave the condition "
            "tokenizer out."
        )
    label_maps = isinstance(transform.condition, LabelMapTransform)
    found, wanted = (
        f"label maps of {channels} classes" if of_maps else f"pictures of {channels} channels"
        for of_maps, channels in (
            (label_maps, transform.condition_channels),
            (tokenizer.label_maps, tokenizer.image_channels),
        )
    )
    if found != wanted:
        raise UserError(f"the conditions are {found}, and their tokenizer takes {wanted}.")
    return transform.condition.size
