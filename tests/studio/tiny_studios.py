"""Models of a few weights for studios, and files to upload; run, it serves the studios."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tiny_models import tiny_generator, tiny_vqgan
from torch import Tensor

from taming.conditioning import ClassLabel, Conditioning, ImageCondition
from taming.studio import StudioModel, build_studio, serve
from taming.tokenizer import VQGAN, CellClasses

GRID = (4, 4)
SIDE = 16  # pixels of an image and of a label map
NAMES = ["cats", "dogs", "owls"]
PASSWORD = "secret"
PALETTE = [[0, 0, 0], [255, 0, 0], [0, 0, 255]]


def tokenizer(seed: int = 0) -> VQGAN:
    quantizer = {"kind": "vector", "codebook_size": 16, "codebook_dim": 4}
    settings: dict[str, Any] = {"resolution": SIDE, "channel_multipliers": (1, 1, 1)}
    return tiny_vqgan(seed, quantizer=quantizer, **settings)


def _generator(conditioning: Conditioning, seed: int = 0, **parts: Any) -> StudioModel:
    generator = tiny_generator(conditioning, GRID, tokenizer=tokenizer(seed), **parts)
    return StudioModel("outputs/tiny", generator.require_tokenizer(), generator)


def class_model(seed: int = 0) -> StudioModel:
    return _generator(ClassLabel(3, dropout=0.1, class_names=NAMES), seed)


def map_model() -> StudioModel:
    cells = CellClasses(3, SIDE // 2, SIDE)
    return _generator(ImageCondition(3, (2, 2), palette=PALETTE), condition_tokenizer=cells)


def picture_model(seed: int) -> StudioModel:
    """A generator whose condition is a picture."""
    return _generator(ImageCondition(16, GRID), seed, condition_tokenizer=tokenizer(seed))


def slow_model() -> StudioModel:
    model = class_model()
    rows = model.generator.sample_rows

    def slow_rows(*arguments: Any, **settings: Any) -> Iterator[Tensor]:
        for tokens in rows(*arguments, **settings):
            time.sleep(2)
            yield tokens

    model.generator.sample_rows = slow_rows
    return model


def write_run(directory: Path) -> Path:
    """A training that goes on: three lines of metrics, the last being written, and two grids."""
    lines = "step,train/loss,val/psnr\n50,1.5,\n100,,20.5\n150,0.75,\n2"
    (directory / "metrics.csv").write_text(lines)
    (directory / "grids").mkdir()
    for step in (50, 100):
        write_picture(directory / "grids" / f"samples_{step:07d}.png")
    return directory


def write_picture(path: Path, size: tuple[int, int] = (40, 30), seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def main(run: str) -> None:
    """Prints the addresses of the studios, and serves them until the process is ended."""
    studios = {
        "class": build_studio(class_model(), class_model(seed=5), Path(run)),
        "pictures": build_studio(picture_model(1), picture_model(2)),
        "slow": build_studio(slow_model()),
        "map": build_studio(map_model()),
        "tokenizer": build_studio(StudioModel("outputs/tiny", tokenizer())),  # with a password
    }
    addresses = {
        name: serve(studio, password=PASSWORD if name == "tokenizer" else None, wait=False)
        for name, studio in studios.items()
    }
    print(json.dumps(addresses), flush=True)  # noqa: T201
    time.sleep(3600)


if __name__ == "__main__":
    main(sys.argv[1])
