"""The report of an evaluation in Markdown, and its rows in a table of several."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["biased_judges_note", "evaluation_rows", "image_sets", "markdown_table",
    "reconstruction_text", "report_text"]  # fmt: skip

MAX_TABLE_CLASSES = 30
Columns = Mapping[str, tuple[str, str]]  # title and format of a number, by its key

LIKELIHOODS = {
    "likelihood": "tokens of the {part} images",
    "likelihood_without_condition": "the same tokens without their condition",
}
SETS = {
    "reconstructions": "reconstructions of the {part} images",
    "training_images": "training images",
    "validation_images": "validation images",
    "test_images": "test images",
}
COLUMNS: Columns = {
    "num_near_duplicates": ("near-duplicates of training images", "{:,}"),
    "agreement": ("classifier predicts their class", "{:.1%}"),
    "classification_accuracy": ("classifier trained on them", "{:.1%}"),
    "classifier_score": ("classifier score", "{:.4g}"),
    "inception_score": ("Inception Score", "{:.4g}"),
    "fid": ("FID to the {part} images", "{:.4g}"),
    "frechet_distance": ("Fréchet distance to the {part} images", "{:.4g}"),
    "kid": ("KID", "{:.4g}"),
    "kernel_distance": ("kernel distance", "{:.4g}"),
    "precision": ("precision", "{:.3f}"),
    "recall": ("recall", "{:.3f}"),
    "density": ("density", "{:.3f}"),
    "coverage": ("coverage", "{:.3f}"),
    "diversity": ("mean distance within", "{:.4g}"),
    "reference_fid": ("FID to the reference file", "{:.4g}"),
    "reference_frechet_distance": ("Fréchet distance to the reference file", "{:.4g}"),
    "reference_sfid": ("sFID to the reference file", "{:.4g}"),
    "adm_inception_score": ("Inception Score (ADM)", "{:.4g}"),
    "adm_precision": ("precision (ADM)", "{:.4f}"),
    "adm_recall": ("recall (ADM)", "{:.4f}"),
}
MEMORISATION: Columns = {
    "training_distance": ("median distance to the nearest training image", "{:.4g}"),
    "training_distance_of_held_out": ("median distance of {part} images", "{:.4g}"),
    "close_to_training": ("closer than 95% of the {part} images", "{:.1%}"),
}
QUALITY: Columns = {
    "psnr": ("PSNR", "{:.2f}"),
    "ssim": ("SSIM", "{:.4f}"),
    "lpips": ("LPIPS", "{:.4f}"),
    "l1": ("L1", "{:.4f}"),
}


def report_text(numbers: dict[str, Any]) -> str:
    """Returns report.md for the numbers in metrics.json."""
    compared = {name: row for name, row in _samples(numbers) if "training_distance" in row}
    part = _part(numbers)
    parts = [
        _likelihood(numbers),
        _table(image_sets(numbers), COLUMNS, part=part),
        _table(compared, MEMORISATION, part=part),
        _remarks(numbers),
        _tokenizer(numbers),
        _classes(numbers),
        _protocol(numbers),
    ]
    return "\n\n".join(["# Evaluation", *filter(None, parts)]) + "\n"


def evaluation_rows(numbers: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yields name and numbers of each row that an evaluation has in a table of several.

    A generator has a row per guidance scale, with the likelihood. A tokenizer has one row.
    """
    likelihood = numbers.get("likelihood", {})
    bits = {key: value for key, value in likelihood.items() if key.startswith("bits_per_token")}
    rows = dict(_samples(numbers)) or {"": numbers.get("reconstructions", {})}
    for name, row in rows.items():
        plain = {key: value for key, value in row.items() if isinstance(value, int | float)}
        plain.pop("guidance_scale", None)
        yield name, bits | plain


def _samples(numbers: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for row in numbers.get("samples", []):
        if "guidance_scale" not in row:
            yield "samples", row
            continue
        off = " (off)" if row["guidance_scale"] == 1 else ""
        yield f"samples, guidance {row['guidance_scale']:g}{off}", row


def image_sets(numbers: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the numbers of each set of images, by the set's title."""
    sets, part = dict(_samples(numbers)), _part(numbers)
    titles = {name: title.format(part=part) for name, title in SETS.items()}
    return sets | {title: numbers[name] for name, title in titles.items() if name in numbers}


def _part(numbers: Mapping[str, Any]) -> str:
    return "test" if "test_images" in numbers else "validation"


def _table(
    sets: Mapping[str, dict[str, Any]], columns: Columns, title: str = "", part: str = ""
) -> str:
    """Lays out the numbers of sets of images in the columns that any of them has."""
    columns = {
        key: column for key, column in columns.items() if any(key in x for x in sets.values())
    }
    rows = []
    for name, numbers in sets.items():
        cells = [_cell(numbers, key, form) for key, (_, form) in columns.items()]
        rows.append([name, f"{numbers['num_images']:,}", *cells])
    titles = [title.format(part=part) for title, _ in columns.values()]
    return markdown_table([title, "images", *titles], rows)


def _cell(row: Mapping[str, Any], key: str, form: str) -> str:
    """Returns a number and its 95% interval, if it has one."""
    if row.get(key) is None:
        return ""
    interval = row.get(f"{key}_interval")
    if interval is None or None in interval:
        return form.format(row[key])
    low, high = (form.format(end) for end in interval)
    return f"{form.format(row[key])} ({low} to {high})"


def _likelihood(numbers: dict[str, Any]) -> str:
    if "likelihood" not in numbers:
        return ""
    form = "{num_tokens:,} {nats_per_token:.4f} {bits_per_token:.4f} {perplexity:.2f}"
    rows = [
        [title.format(part=_part(numbers)), *form.format(**numbers[name]).split()]
        for name, title in LIKELIHOODS.items()
        if name in numbers
    ]
    table = markdown_table(["", "tokens", "nats per token", "bits per token", "perplexity"], rows)
    likelihood = numbers["likelihood"]
    return (
        f"{table}\n\nWithout a transformer: {likelihood['bits_per_token_uniform']:.4f} bits if "
        f"all codes are equally probable, {likelihood['bits_per_token_frequencies']:.4f} with the "
        "frequencies of the codes among these tokens."
    )


def _remarks(numbers: dict[str, Any]) -> str:
    remarks = []
    if "frechet_features" in numbers:
        network = numbers["frechet_features"]
        not_fid = "" if network.startswith("Inception") else ", so it is not FID"
        remarks.append(
            f"The distance uses features of {network}{not_fid}. It falls as the number of images "
            "grows, so compare only rows of equally many images."
        )
    rows = image_sets(numbers).values()
    if any(key.endswith("_interval") and value for row in rows for key, value in row.items()):
        remarks.append(
            "Brackets hold 95% intervals. They cover the choice of the row's images, and not the "
            "choice of the reference."
        )
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
        f"The tokenizer on the {_part(numbers)} images: {quality}, codebook usage "
        f"{tokenizer['codebook_usage']:.1%}, codebook perplexity "
        f"{tokenizer['codebook_perplexity']:.1f}."
    )
    rows = tokenizer.get("by_class", [])
    worst = sorted(rows, key=lambda row: (row["psnr"] is None, row["psnr"]))[:MAX_TABLE_CLASSES]
    table = _table({row["class"]: row for row in worst}, QUALITY, "class")
    return f"{text}\n\nBy class, worst first:\n\n{table}" if table else text


def _protocol(numbers: dict[str, Any]) -> str:
    rows = []
    for name, value in numbers["contract"].items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {version}" for key, version in value.items())
        elif isinstance(value, list):
            value = "×".join(map(str, value))
        rows.append([name.replace("_", " "), "none" if value is None else str(value)])
    table = markdown_table(["protocol", ""], rows)
    return f"Compare these numbers only with numbers of the same protocol.\n\n{table}"


def _classes(numbers: dict[str, Any]) -> str:
    """Lists the agreement of each class, or of the classes with the worst samples if many."""
    sampled = [(name, row) for name, row in _samples(numbers) if "by_class" in row]
    if not sampled:
        return ""
    real = numbers[f"{_part(numbers)}_images"]["by_class"]
    labels = list(range(len(real)))
    title = ""
    if len(labels) > MAX_TABLE_CLASSES:
        shares = [row["agreement"] for row in sampled[0][1]["by_class"]]
        labels.sort(key=lambda label: 2.0 if shares[label] is None else shares[label])
        labels = labels[:MAX_TABLE_CLASSES]
        title = f"The {MAX_TABLE_CLASSES} classes with the worst samples:\n\n"
    header = ["class", "real images"]
    for name, _ in sampled:
        header += [name, "most often predicted instead"]
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
    """Returns a Markdown table with aligned columns; empty without rows."""
    if not rows:
        return ""
    widths = [max(3, *(len(row[i]) for row in [header, *rows])) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    padded = [[cell.ljust(width) for cell, width in zip(x, widths, strict=True)] for x in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def reconstruction_text(numbers: Mapping[str, Any]) -> str:
    """Returns the numbers of `reconstruct_images` as aligned lines."""
    size = numbers["resolution"]
    resolution = "several sizes" if size is None else f"{size[0]}×{size[1]}"
    rows = [
        ("images", f"{numbers['num_images']}, {resolution}"),
        ("PSNR", f"{numbers['psnr']:.2f} dB"),
        ("SSIM", f"{numbers['ssim']:.4f}"),
    ]
    if "lpips" in numbers:
        rows.append(("LPIPS", f"{numbers['lpips']:.4f} ({numbers['lpips_network']})"))
    if "frechet_distance" in numbers:
        distance, network = numbers["frechet_distance"], numbers["frechet_features"]
        rows.append(("Fréchet distance", f"{distance:.4g} ({network}; not FID)"))
    rows += [
        ("codebook usage", f"{numbers['codebook_usage']:.1%} of {numbers['codebook_size']} codes"),
        ("perplexity", f"{numbers['codebook_perplexity']:.1f}"),
    ]
    return "\n".join(f"{name:<18}{value}" for name, value in rows)


def biased_judges_note(
    judges: Sequence[str], training_network: str | None, is_known: bool
) -> str | None:
    """Returns a note if a network that judges is, or may be, part of the tokenizer's loss.

    Args:
        judges: names of the networks that judge.
        training_network: the network of the perceptual loss; None without one.
        is_known: whether the settings of the training are known.
    """
    if is_known:  # LPIPS' name of a network is the beginning of torchvision's
        network = training_network or "none"
        judges = [name for name in judges if name.startswith(network) or network.startswith(name)]
    if not judges:
        return None
    trained = f"trained to please the network that judges here, {', '.join(judges)}: its numbers"
    finding = (
        f"The tokenizer was {trained} are"
        if is_known
        else f"It is not known whether the tokenizer was {trained} may be"
    )
    return f"{finding} too good compared with another tokenizer. Use another network as well."
