"""Encodes images into a token cache."""

import hashlib
import json
import logging
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import torch
from annotated_types import Ge
from tqdm import tqdm

from taming.data import CacheDescription, ImageDataset, TokenDataset, TokenGrid, TokenWriter
from taming.data.batches import make_loader
from taming.runtime.errors import UserError, join_names
from taming.runtime.process_group import gather, on_first_rank, rank
from taming.tokenizer import Tokenizer

__all__ = ["encode_dataset"]

log = logging.getLogger(__name__)


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
    images or another transform is never found, let alone used. All processes that need the same
    cache at the same time share the work, be they of one command or of several, on one machine or
    on several with a common `cache_dir`: see `TokenWriter`. An interrupted encoding goes on.
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
            with closing(TokenWriter(directory, description)) as writer:
                finished = False
                while not finished:
                    _encode(tokenizers, dataset, writer, batch_size, num_workers, device)
                    gather(None)  # all have written what they claimed
                    finished = on_first_rank(writer.finish)
        except OSError as error:
            raise UserError(
                f"the token cache {directory} cannot be written ({error}). Free some space, or "
                "give another tokens.cache_dir."
            ) from error
        while not directory.exists():  # a network shows it late
            time.sleep(1)
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


@torch.inference_mode()
def _encode(
    tokenizers: dict[str, Tokenizer],
    dataset: ImageDataset,
    writer: TokenWriter,
    batch_size: int,
    num_workers: int,
    device: torch.device,
) -> None:
    """Encodes what no other process has encoded or is encoding."""
    for tokenizer in tokenizers.values():
        tokenizer.to(device)
    entries = {"indices": "images", "condition_indices": "conditions"}
    loader = make_loader(dataset, num_workers, batch_sampler=writer.claim(batch_size))
    name = Path(dataset.images.description).name
    bar = tqdm(
        total=writer.description.num_items, initial=writer.done, unit="image",
        desc=f"encoding {name}", mininterval=1 if sys.stderr.isatty() else 30, disable=rank() > 0,
    )  # fmt: skip
    with bar:
        for batch in loader:
            tokens = {
                entry: tokenizers[name].encode(batch[name].to(device)).cpu().numpy()
                for entry, name in entries.items()
                if name in tokenizers
            }
            if "labels" in batch:
                tokens["labels"] = batch["labels"].numpy()
            writer.write(tokens, dataset.replaced_names)
            bar.update(writer.done - bar.n)
