"""Images to a token cache."""

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

from taming.data import CacheDescription, ImageDataset, TokenDataset
from taming.errors import UserError
from taming.vqgan import VQGAN

__all__ = ["encode_dataset"]


def encode_dataset(
    tokenizer: VQGAN,
    dataset: ImageDataset,
    cache_dir: Path,
    *,
    num_views: int,
    batch_size: int,
    num_workers: int,
    device: torch.device,
    name: str,
) -> TokenDataset:
    """The data set's token cache under `cache_dir`: the valid one there, else made now.

    Its directory is named after a digest of what it is of, so a cache of another tokenizer, other
    images or another transform is never found, let alone used.

    Args:
        tokenizer: encodes the images.
        dataset: the images.
        cache_dir: where caches live.
        num_views: encodings of each image, the first unaugmented.
        batch_size: images at once.
        num_workers: processes that load images.
        device: where to encode.
        name: of the data set, for messages.

    Raises:
        UserError: if the cache cannot be written.
    """
    description = CacheDescription(
        tokenizer=tokenizer.to_saved().fingerprint(),
        data=dataset.fingerprint(),
        seed=dataset.seed,
        num_images=len(dataset),
        num_views=num_views,
        grid_size=tokenizer.grid_size_for(dataset.resolution),
        codebook_size=tokenizer.codebook_size,
    )
    digest = hashlib.sha256(json.dumps(description.plain()).encode()).hexdigest()[:16]
    directory = cache_dir / digest
    if not directory.exists():
        unfinished: Path | None = None
        try:
            cache_dir.mkdir(parents=True, exist_ok=True)
            # a directory of this process's own: another run may be making the same cache
            unfinished = Path(tempfile.mkdtemp(prefix=f"{digest}.unfinished.", dir=cache_dir))
            _encode(
                tokenizer, dataset, unfinished, description, batch_size, num_workers, device, name
            )
            if not directory.exists():
                unfinished.rename(directory)
        except OSError as error:
            raise UserError(
                f"the token cache {directory} cannot be written ({error}). Free some space, or "
                "give another tokens.cache_dir."
            ) from error
        finally:
            if unfinished is not None:
                shutil.rmtree(unfinished, ignore_errors=True)
    return TokenDataset(directory, description)


def _encode(
    tokenizer: VQGAN,
    dataset: ImageDataset,
    directory: Path,
    description: CacheDescription,
    batch_size: int,
    num_workers: int,
    device: torch.device,
    name: str,
) -> None:
    labels = [dataset.label(index) for index in range(len(dataset))]
    known = [label for label in labels if label is not None]
    indices = TokenDataset.create(directory, description, known if known else None)
    keys = list(_keys(len(dataset), description.num_views))
    batches = [keys[start : start + batch_size] for start in range(0, len(keys), batch_size)]
    loader = DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=num_workers,
        generator=torch.Generator(),  # its own: a run with a cache draws the same numbers
    )
    tokenizer = tokenizer.to(device)
    flat = indices.reshape(-1, *description.grid_size)
    done = 0
    bar = tqdm(
        total=len(keys), unit="image", desc=f"encoding {name}", file=sys.stderr, mininterval=1
    )
    with torch.inference_mode(), bar:
        for batch in loader:
            codes = tokenizer.encode(batch["images"].to(device)).cpu().numpy()
            for offset, code in enumerate(codes):
                view, index = divmod(done + offset, len(dataset))
                flat[index * description.num_views + view] = code
            done += len(codes)
            bar.update(len(codes))
    indices.flush()
    TokenDataset.finish(directory, description)


def _keys(num_images: int, num_views: int) -> Iterator[int | tuple[int, int]]:
    """Every image unaugmented, then view after view with random numbers of its own."""
    yield from range(num_images)
    for view in range(1, num_views):
        for index in range(num_images):
            yield index, view * num_images + index
