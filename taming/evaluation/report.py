"""The numbers of an evaluation as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["evaluation_rows", "image_sets", "markdown_table", "report_text"]

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
COLUMNS = {  # title and format of a set's numbers
    "agreement": ("classifier predicts their class", "{:.1%}"),
    "classification_accuracy": ("classifier trained on them", "{:.1%}"),
    "classifier_score": ("classifier score", "{:.4g}"),
    "inception_score": ("Inception Score", "{:.4g}"),
    "fid": ("FID to the validation images", "{:.4g}"),
    "frechet_distance": ("Fréchet distance to the validation images", "{:.4g}"),
    "kid": ("KID", "{:.4g}"),
    "kernel_distance": ("kernel distance", "{:.4g}"),
    "precision": ("precision", "{:.3f}"),
    "recall": ("recall", "{:.3f}"),
    "density": ("density", "{:.3f}"),
    "coverage": ("coverage", "{:.3f}"),
    "diversity": ("mean distance within", "{:.4g}"),
}
MEMORISATION = {
    "training_distance": ("median distance to the nearest training image", "{:.4g}"),
    "training_distance_of_held_out": ("that of validation images", "{:.4g}"),
    "close_to_training": ("closer than all but 5% of these", "{:.1%}"),
}
QUALITY = {
    "psnr": ("PSNR", "{:.2f}"),
    "ssim": ("SSIM", "{:.4f}"),
    "lpips": ("LPIPS", "{:.4f}"),
    "l1": ("L1", "{:.4f}"),
}
Columns = Mapping[str, tuple[str, str]]


def report_text(numbers: dict[str, Any]) -> str:
    """Returns report.md for the numbers in metrics.json."""
    compared = {name: row for name, row in _samples(numbers) if "training_distance" in row}
    parts = [
        _likelihood(numbers),
        _table(image_sets(numbers), COLUMNS),
        _table(compared, MEMORISATION),
        _remarks(numbers),
        _tokenizer(numbers),
        _classes(numbers),
        _contract(numbers),
    ]
    return "\n\n".join(["# Evaluation", *filter(None, parts)]) + "\n"


def evaluation_rows(numbers: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yields a name and the numbers of each row that an evaluation has in a table of several.

    Rows are the samples of each guidance scale, with the likelihood, or the reconstructions of a
    tokenizer alone.
    """
    shared = {
        name: value
        for name, value in numbers.get("likelihood", {}).items()
        if name.startswith("bits_per_token")
    }
    rows = dict(_samples(numbers)) or {"": numbers.get("reconstructions", {})}
    for name, row in rows.items():
        found = shared | {
            key: value for key, value in row.items() if isinstance(value, int | float)
        }
        found.pop("guidance_scale", None)
        yield name, found


def _samples(numbers: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for row in numbers.get("samples", []):
        if "guidance_scale" not in row:
            yield "samples", row
            continue
        off = " (off)" if row["guidance_scale"] == 1 else ""
        yield f"samples, guidance {row['guidance_scale']:g}{off}", row


def image_sets(numbers: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the numbers of each set of images, by what it is."""
    sets = dict(_samples(numbers))
    return sets | {what: numbers[name] for name, what in SETS.items() if name in numbers}


def _table(sets: Mapping[str, dict[str, Any]], columns: Columns, title: str = "") -> str:
    """Lays out the numbers of sets of images, those columns that any of them has."""
    found = {key: column for key, column in columns.items() if any(key in x for x in sets.values())}
    rows = [
        [
            what,
            f"{row['num_images']:,}",
            *(_cell(row, key, form) for key, (_, form) in found.items()),
        ]
        for what, row in sets.items()
    ]
    return markdown_table([title, "images", *(title for title, _ in found.values())], rows)


def _cell(row: Mapping[str, Any], key: str, form: str) -> str:
    """Returns a number, and its 95% interval where it is known."""
    if row.get(key) is None:
        return ""
    interval = row.get(f"{key}_interval")
    if interval is None or None in interval:
        return form.format(row[key])
    low, high = (form.format(end) for end in interval)
    return f"{form.format(row[key])} ({low} to {high})"


def _likelihood(numbers: dict[str, Any]) -> str:
    form = "{num_tokens:,} {nats_per_token:.4f} {bits_per_token:.4f} {perplexity:.2f}"
    rows = [
        [what, *form.format(**numbers[name]).split()]
        for name, what in LIKELIHOODS.items()
        if name in numbers
    ]
    text = markdown_table(["", "tokens", "nats per token", "bits per token", "perplexity"], rows)
    if not rows:
        return ""
    found = numbers["likelihood"]
    return (
        f"{text}\n\nWithout a transformer: {found['bits_per_token_uniform']:.4f} bits if all codes "
        f"are equally probable, {found['bits_per_token_frequencies']:.4f} if they are as frequent "
        "as among these tokens."
    )


def _remarks(numbers: dict[str, Any]) -> str:
    remarks = []
    if "frechet_features" in numbers:
        name = numbers["frechet_features"]
        not_fid = "" if name.startswith("Inception") else ": not FID"
        remarks.append(
            f"The distance is between features of {name}{not_fid}. It falls with the number of "
            "images: compare rows with equally many."
        )
    if any("_interval" in key for row in image_sets(numbers).values() for key in row):
        remarks.append("In brackets: 95% intervals by bootstrap over the images of the row.")
    return "\n\n".join(remarks + numbers.get("notes", []))


def _tokenizer(numbers: dict[str, Any]) -> str:
    tokenizer = numbers.get("reconstructions")
    if tokenizer is None:
        return ""
    quality = ", ".join(
        f"{title} {_cell(tokenizer, key, form)}"
        for key, (title, form) in QUALITY.items()
        if tokenizer.get(key) is not None
    )
    text = (
        f"The tokenizer on the validation images: {quality}; "
        f"{tokenizer['codebook_usage']:.1%} of its codes used, perplexity "
        f"{tokenizer['codebook_perplexity']:.1f}."
    )
    rows = tokenizer.get("by_class", [])
    worst = sorted(rows, key=lambda row: (row["psnr"] is None, row["psnr"]))[:MAX_TABLE_CLASSES]
    table = _table({row["class"]: row for row in worst}, QUALITY, "class")
    return f"{text}\n\nBy class, the worst first:\n\n{table}" if table else text


def _contract(numbers: dict[str, Any]) -> str:
    """Lists what the numbers depend on."""
    rows = []
    for name, value in numbers["contract"].items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {version}" for key, version in value.items())
        elif isinstance(value, list):
            value = "×".join(map(str, value))
        rows.append([name.replace("_", " "), "none" if value is None else str(value)])
    text = markdown_table(["contract", ""], rows)
    return f"Numbers of another contract are not comparable with these.\n\n{text}"


def _classes(numbers: dict[str, Any]) -> str:
    """Lists the agreement of each class, or of those with the worst samples if there are many."""
    sampled = [(name, row) for name, row in _samples(numbers) if "by_class" in row]
    if not sampled:
        return ""
    real = numbers["validation_images"]["by_class"]
    labels = list(range(len(real)))
    title = ""
    if len(labels) > MAX_TABLE_CLASSES:
        shares = [row["agreement"] for row in sampled[0][1]["by_class"]]
        labels.sort(key=lambda label: 2.0 if shares[label] is None else shares[label])
        labels = labels[:MAX_TABLE_CLASSES]
        title = f"The {MAX_TABLE_CLASSES} classes with the worst samples:\n\n"
    header = ["class", "real images"]
    for name, _ in sampled:
        header += [name, "most often taken for"]
    rows = []
    for label in labels:
        cells = [real[label]["class"], _share(real[label])]
        for _, row in sampled:
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
