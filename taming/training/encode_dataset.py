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
from taming.data.module import ImageDataModule
from taming.runtime.errors import UserError, join_names
from taming.runtime.process_group import gather, on_first_rank, rank
from taming.tokenizer import Tokenizer

__all__ = ["describe_cache", "encode_dataset", "encode_splits"]

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
    """Returns the token cache of a dataset, and writes it first if it does not exist.

    A digest of tokenizers, images and transform names its directory, so that a cache of anything
    else is never used. All processes that need the same cache share the work, even if they belong
    to several commands or to machines with a common `cache_dir` (see `TokenWriter`). An interrupted
    encoding continues. Each use warns of images that could not be read.

    Args:
        tokenizer: encodes the images; this moves both tokenizers to `device`.
        dataset: the images.
        cache_dir: the directory of all caches.
        condition_tokenizer: encodes the conditions of paired images; None to leave them out.
        num_views: encodings per image. The first has no augmentation.
        batch_size: images per batch.
        num_workers: processes that load images.
        device: where the tokenizers run.

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
        log.info("tokens of %s: in %s", images, directory)
    else:
        try:
            with closing(TokenWriter(directory, description)) as writer:
                finished = False
                while not finished:
                    _encode(tokenizers, dataset, writer, batch_size, num_workers, device)
                    gather(None)  # all ranks have written their shards
                    finished = on_first_rank(writer.finish)
        except OSError as error:
            raise UserError(
                f"The token cache {directory} cannot be written ({error}). Free some space, or "
                "set another tokens.cache_dir."
            ) from error
        while not directory.exists():  # a network file system shows it late
            time.sleep(1)
    tokens = TokenDataset(directory, description)
    if tokens.replaced_names:
        names = tokens.replaced_names
        log.warning(
            f"tokens of {images}: {len(names)} images could not be read and were replaced by "
            f"others ({join_names(names)}). If they can be read now, delete {directory} to encode "
            "all images again."
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
        seed=dataset.seed if num_views > 1 else 0,  # the first view has no augmentation
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
    """Encodes the shards that no other process has claimed."""
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


def encode_splits(
    images: ImageDataModule,
    tokenizer: Tokenizer,
    condition_tokenizer: Tokenizer | None,
    device: torch.device,
    *,
    cache_dir: str | Path,
    num_views: Annotated[int, Ge(1)],
    batch_size: Annotated[int, Ge(1)],
) -> tuple[TokenDataset, TokenDataset]:
    """Returns the token caches of the training and the validation images; see `encode_dataset`.

    Validation images have one view, and so do training images if nothing augments them.
    """
    if num_views > 1 and not images.transform.augments:
        log.warning(
            "note: the data are not augmented (crop, horizontal_flip, random_shift), so all "
            "tokens.num_views=%d views of an image are equal. Only one is encoded.",
            num_views,
        )
        num_views = 1
    train, val = (
        encode_dataset(
            tokenizer,
            dataset,
            cache_dir,
            condition_tokenizer=condition_tokenizer,
            num_views=views,
            batch_size=batch_size,
            num_workers=images.num_workers_for(dataset),
            device=device,
        )
        for dataset, views in ((images.train_dataset, num_views), (images.val_dataset, 1))
    )
    tokenizer.cpu()
    return train, val


def describe_cache(cache: TokenDataset) -> str:
    """Returns what a cache holds and how large it is, in words."""
    description = cache.description
    views = f" in {description.num_views} views" if description.num_views > 1 else ""
    text = f"{len(cache):,} images{views}"
    text += ", {}×{} codes each".format(*description.indices.grid_size)
    if description.condition_indices is not None:
        text += ", {}×{} condition codes each".format(*description.condition_indices.grid_size)
    size = sum(array.nbytes for array in cache.arrays.values())
    return f"{text}, {size / 2**20:.1f} MiB"
