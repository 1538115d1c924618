"""The numbers of an evaluation as Markdown."""

from collections.abc import Sequence
from typing import Any

__all__ = ["markdown_table", "report_text"]

MAX_TABLE_CLASSES = 30

LIKELIHOODS = {
    "likelihood": "tokens of the validation images",
    "likelihood_without_condition": "the same, without their condition",
}
SETS = {
    "reconstructions": "reconstructions of the validation images",
    "training_images": "training images",
    "validation_images": "validation images",
}


def report_text(numbers: dict[str, Any]) -> str:
    """Returns report.md for the numbers in metrics.json."""
    parts = [_likelihood(numbers), _images(numbers), _remarks(numbers), _classes(numbers)]
    return "\n\n".join(["# Evaluation", *filter(None, parts)]) + "\n"


def _likelihood(numbers: dict[str, Any]) -> str:
    form = "{num_tokens:,} {nats_per_token:.4f} {bits_per_token:.4f} {perplexity:.2f}"
    rows = [
        [what, *form.format(**numbers[name]).split()]
        for name, what in LIKELIHOODS.items()
        if name in numbers
    ]
    return markdown_table(["", "tokens", "nats per token", "bits per token", "perplexity"], rows)


def _images(numbers: dict[str, Any]) -> str:
    sets = {}
    for row in numbers.get("samples", []):
        off = " (off)" if row["guidance_scale"] == 1 else ""
        sets[f"samples, guidance {row['guidance_scale']:g}{off}"] = row
    sets |= {what: numbers[name] for name, what in SETS.items() if name in numbers}
    columns = {}  # title and format by key
    if any("agreement" in row for row in sets.values()):
        columns["agreement"] = "classifier predicts their class", "{:.1%}"
    if "frechet_features" in numbers:
        columns["frechet_distance"] = "Fréchet distance to the validation images", "{:.4g}"
    rows = [
        [what, f"{row['num_images']:,}"]
        + [form.format(row[key]) if key in row else "" for key, (_, form) in columns.items()]
        for what, row in sets.items()
    ]
    return markdown_table(["", "images", *(title for title, _ in columns.values())], rows)


def _remarks(numbers: dict[str, Any]) -> str:
    remarks = []
    if "frechet_features" in numbers:
        remarks.append(
            f"The distance is between features of {numbers['frechet_features']}: not FID. It falls "
            "with the number of images: compare rows with equally many."
        )
    tokenizer = numbers["reconstructions"]
    remarks.append(
        f"The tokenizer on the validation images: PSNR {tokenizer['psnr']:.2f} dB, SSIM "
        f"{tokenizer['ssim']:.4f}, {tokenizer['codebook_usage']:.1%} of its codes used, perplexity "
        f"{tokenizer['codebook_perplexity']:.1f}."
    )
    return "\n\n".join(remarks + numbers.get("notes", []))


def _classes(numbers: dict[str, Any]) -> str:
    """Lists the agreement of each class, or of those with the worst samples if there are many."""
    sampled = [row for row in numbers.get("samples", []) if "by_class" in row]
    if not sampled:
        return ""
    real = numbers["validation_images"]["by_class"]
    labels = list(range(len(real)))
    title = ""
    if len(labels) > MAX_TABLE_CLASSES:
        shares = [row["agreement"] for row in sampled[0]["by_class"]]
        labels.sort(key=lambda label: 2.0 if shares[label] is None else shares[label])
        labels = labels[:MAX_TABLE_CLASSES]
        title = f"The {MAX_TABLE_CLASSES} classes with the worst samples:\n\n"
    header = ["class", "real images"]
    for row in sampled:
        header += [f"samples, guidance {row['guidance_scale']:g}", "most often taken for"]
    rows = []
    for label in labels:
        cells = [real[label]["class"], _share(real[label])]
        for row in sampled:
            cells += [_share(row["by_class"][label]), row["by_class"][label]["instead"] or ""]
        rows.append(cells)
    return title + markdown_table(header, rows)


def _share(row: dict[str, Any]) -> str:
    share = "–" if row["agreement"] is None else f"{row['agreement']:.1%}"
    return f"{share} of {row['num_images']:,}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lays out a Markdown table with aligned columns; empty for no rows."""
    if not rows:
        return ""
    widths = [max(3, *(len(row[i]) for row in [header, *rows])) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    padded = [[cell.ljust(width) for cell, width in zip(x, widths, strict=True)] for x in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)
