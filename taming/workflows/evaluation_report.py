"""An evaluation for people: tables, and samples beside what a classifier took them for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from taming.pictures import framed, pixel_grid, to_uint8

__all__ = ["Verdicts", "report_text"]

SHOWN_A_CLASS, SHOWN_CLASSES, SHOWN_WITHOUT_CLASSES = 10, 12, 100
GOOD, BAD = (60, 170, 90), (220, 50, 40)
MIN_SIDE = 96  # pixels of a sample in the grid, so that a class name fits above it
MAX_TABLE_CLASSES = 30


class Verdicts:
    """The first samples of each class and what a classifier took them for.

    Args:
        class_names: by label; empty without classes.
    """

    def __init__(self, class_names: Sequence[str]) -> None:
        self._names = class_names
        self._shown: dict[int | None, list[tuple[torch.Tensor, int | None]]] = {}

    def update(
        self, samples: torch.Tensor, labels: torch.Tensor | None, named: Sequence[int] | None
    ) -> None:
        """Adds samples `(b c H W)`, the classes asked for and those the classifier named."""
        for number, sample in enumerate(samples):
            label = None if labels is None else int(labels[number])
            if label not in self._shown and len(self._shown) == SHOWN_CLASSES:
                continue
            shown = self._shown.setdefault(label, [])
            if len(shown) < (SHOWN_WITHOUT_CLASSES if label is None else SHOWN_A_CLASS):
                shown.append((sample.cpu().clone(), None if named is None else named[number]))

    def grid(self) -> Image.Image:
        """A row a class, each sample under its class: recognised ones framed green, others red.

        The red ones also have what they were taken for. Without classes the samples as they are.
        """
        pictures, captions = [], []
        columns = max(len(shown) for shown in self._shown.values())
        for label in sorted(self._shown, key=lambda label: -1 if label is None else label):
            shown = self._shown[label]
            for sample, named in shown:
                pictures.append(_framed(sample, label, named))
                captions.append(self._caption(label, named))
            for _ in range(columns - len(shown) if label is not None else 0):
                pictures.append(np.full_like(pictures[0], 255))
                captions.append("")
        return pixel_grid(
            np.stack(pictures),
            num_columns=None if None in self._shown else columns,
            captions=captions if any(captions) else None,
            min_side=MIN_SIDE,
        )

    def _caption(self, label: int | None, named: int | None) -> str:
        if label is None:
            return ""
        if named is None or named == label:
            return self._names[label]
        return f"{self._names[label]}\nseen: {self._names[named]}"


def _framed(sample: torch.Tensor, label: int | None, named: int | None) -> np.ndarray:
    """`(c H W)` to `(H+2 W+2 3)` with a frame, unless there is no verdict."""
    color = None if label is None or named is None else GOOD if named == label else BAD
    return framed(to_uint8(sample[None])[0], color)


def report_text(numbers: dict[str, Any]) -> str:
    """The numbers as Markdown."""
    parts = ["# Evaluation", _likelihood(numbers), _images(numbers), _classes(numbers)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _likelihood(numbers: dict[str, Any]) -> str:
    rows = []
    for name, what in (
        ("likelihood", "tokens of the validation images"),
        ("likelihood_without_condition", "the same, without their condition"),
    ):
        if name in numbers:
            found = numbers[name]
            rows.append(
                [
                    what,
                    f"{found['num_tokens']:,}",
                    f"{found['nats_per_token']:.4f}",
                    f"{found['bits_per_token']:.4f}",
                    f"{found['perplexity']:.2f}",
                ]
            )
    return _table(["", "tokens", "nats per token", "bits per token", "perplexity"], rows)


def _images(numbers: dict[str, Any]) -> str:
    sets = [
        (
            f"samples, guidance {row['guidance_scale']:g}"
            + (" (off)" if row["guidance_scale"] == 1 else ""),
            row,
        )
        for row in numbers.get("samples", [])
    ]
    sets += [
        (what, numbers[name])
        for name, what in (
            ("reconstructions", "reconstructions of the validation images"),
            ("training_images", "training images"),
            ("validation_images", "validation images"),
        )
        if name in numbers
    ]
    header, keys = ["", "images"], []
    if any("agreement" in row for _, row in sets):
        header, keys = [*header, "classifier names their class"], ["agreement"]
    if "frechet_features" in numbers:
        header = [*header, "Fréchet distance to the validation images"]
        keys = [*keys, "frechet_distance"]
    formats = {"agreement": "{:.1%}", "frechet_distance": "{:.4g}"}
    rows = [
        [what, f"{row['num_images']:,}"]
        + [formats[key].format(row[key]) if key in row else "" for key in keys]
        for what, row in sets
    ]
    lines = [_table(header, rows)]
    if "frechet_features" in numbers:
        lines.append(
            f"The distance is that of features of {numbers['frechet_features']}: not FID. It falls "
            "with the number of images: compare rows of equally many."
        )
    lines.append(_tokenizer(numbers["reconstructions"]))
    lines += numbers.get("notes", [])
    return "\n\n".join(lines)


def _tokenizer(found: dict[str, Any]) -> str:
    return (
        f"The tokenizer on the validation images: PSNR {found['psnr']:.2f} dB, SSIM "
        f"{found['ssim']:.4f}, {found['codebook_usage']:.1%} of its codes used, perplexity "
        f"{found['codebook_perplexity']:.1f}."
    )


def _classes(numbers: dict[str, Any]) -> str:
    """Agreement class by class; of many classes those that samples show worst."""
    sampled = [row for row in numbers.get("samples", []) if "by_class" in row]
    if not sampled:
        return ""
    real = numbers["validation_images"]["by_class"]
    order = list(range(len(real)))
    title = ""
    if len(order) > MAX_TABLE_CLASSES:
        shares = [row["agreement"] for row in sampled[0]["by_class"]]
        order.sort(key=lambda label: 2.0 if shares[label] is None else shares[label])
        order = order[:MAX_TABLE_CLASSES]
        title = f"The {MAX_TABLE_CLASSES} classes that samples show worst:\n\n"
    header = ["class", "real images"]
    for row in sampled:
        header += [f"samples, guidance {row['guidance_scale']:g}", "most often taken for"]
    rows = []
    for label in order:
        cells = [real[label]["class"], _share_of(real[label])]
        for row in sampled:
            found = row["by_class"][label]
            cells += [_share_of(found), found["instead"] or ""]
        rows.append(cells)
    return title + _table(header, rows)


def _share_of(row: dict[str, Any]) -> str:
    share = "–" if row["agreement"] is None else f"{row['agreement']:.1%}"
    return f"{share} of {row['num_images']:,}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, its columns aligned so that it reads as plain text too; empty if it is."""
    if not rows:
        return ""
    widths = [max(3, *(len(row[i]) for row in [header, *rows])) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )
