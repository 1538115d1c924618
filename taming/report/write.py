"""Writes the report on one run, or on several side by side."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from taming.report.curves import curve_section, save_curves
from taming.report.data import OpenData, load_subject
from taming.report.generator_views import (
    attention,
    draw_samples,
    neighbours,
    samples_by_class,
    surprise,
)
from taming.report.health import findings
from taming.report.page import Finding, Part, Section, Text, render_page
from taming.report.records import RunRecord, read_run
from taming.report.subject import Subject
from taming.report.tables import configurations, evaluations, overview
from taming.report.tokenizer_views import codebook, reconstructions, token_grids
from taming.runtime.errors import UserError, writing

__all__ = ["write_report"]

NUM_GRIDS, NUM_LOOKED_AT, NUM_SURPRISES, NUM_FOR_MEAN = 6, 2, 6, 64  # images

SECTIONS = {
    "Overview": "",
    "Health": "What the training warned of, and what its numbers and pictures show.",
    "Reconstructions": "Held-out images, equally many of each class, through the tokenizer and "
    "back; of more than 24 classes some.",
    "Codebook": "Point at a code for its number.",
    "Codes of images": "Point at a cell for its code. Where a code alone looks unlike its place in "
    "the reconstruction, the decoder has added what it knows from the codes around.",
    "Samples": "Drawn with temperature 1, no filters and seed 0.",
    "Attention": "Where the transformer looks when it predicts the token framed green: bright "
    "cells have more weight, each picture by itself. It cannot look at later cells. Point at a "
    "picture for the weight that is on the condition.",
    "Surprise": "How many bits each token costs, given those before it: what is dark was foreseen.",
    "Neighbours": "Images compared as small copies, pixel by pixel. If samples were nearer to "
    "training images than new images are, the model would repeat what it has seen.",
    "Evaluations": "Numbers of different contracts do not compare.",
}


def write_report(
    runs: Sequence[str | Path],
    output: str | Path,
    *,
    open_data: OpenData | None = None,
    device: torch.device | str = "cpu",
) -> Path:
    """Writes one HTML file that needs no network, and `curves.png` into each run directory.

    Args:
        runs: run directories, of either stage, finished or not.
        output: the file, which is returned.
        open_data: returns the data of the run in a directory, set up. Its `UserError` is shown in
            the report, which then does without pictures of images.
        device: where the models run.

    Raises:
        UserError: if there is no such run, or the file cannot be written.
    """
    paths, output = [Path(run).expanduser() for run in runs], Path(output).expanduser()
    records = [read_run(path, name) for path, name in zip(paths, short_names(paths), strict=True)]
    sections = {title: Section(title, text) for title, text in SECTIONS.items()}
    about = []
    for record in records:
        facts, parts = _describe(record, open_data, device)
        about.append(facts)
        for title, found in parts.items():
            sections[title].by_run[record.name] = found
    sections["Overview"].parts.append(overview(records, about))
    first = [sections.pop(title) for title in ("Overview", "Health")]
    everything = [*first, curve_section(records), *sections.values(), configurations(records)]
    page = render_page(", ".join(map(str, paths)), records, everything)
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(page)
        for record in records:
            save_curves(record, record.path / "curves.png")
    return output


def _describe(
    record: RunRecord, open_data: OpenData | None, device: torch.device | str
) -> tuple[dict[str, str], dict[str, list[Part]]]:
    """Returns what is known of a run's model and data, and the parts of the sections about it."""
    facts: dict[str, str] = {}
    parts: dict[str, list[Part]] = {}
    advice = ""
    try:
        subject, facts, missing = load_subject(record.path, open_data, device)
        parts = {title: list(found) for title, found in _pictures(subject)}
        advice = subject.tokenizer.quantizer.advice
    except UserError as error:
        missing = [f"There are no pictures of the model: {error}"]
    seen = [part for found in parts.values() for part in found if isinstance(part, Finding)]
    health = [*findings(record, advice), *seen]
    if not any(finding.level == "warning" for finding in health):
        health.insert(0, Finding("Nothing unusual in the numbers of this run.", "good"))
    parts["Health"] = [*health, *(Finding(text, "note") for text in missing)]
    if record.evaluations:
        parts["Evaluations"] = list(evaluations(record))
    return facts, parts


def _pictures(subject: Subject) -> Iterator[tuple[str, Iterable[Part]]]:
    """Yields the sections that show the model at work, as far as there are images."""
    shown, held_out, generator = subject.shown, subject.held_out, subject.generator
    if shown is not None:
        yield "Reconstructions", reconstructions(subject, shown)
        yield "Codes of images", token_grids(subject, shown.some(NUM_GRIDS))
    yield "Codebook", codebook(subject, held_out)
    if generator is None:
        return
    if generator.conditioning.takes_images and shown is None:
        yield "Samples", [Text("This generator needs condition images, which are not there.")]
        return
    samples = draw_samples(subject)
    yield "Samples", samples_by_class(subject, samples)
    some = (shown or samples).some(NUM_SURPRISES)
    yield "Attention", attention(subject, some.some(NUM_LOOKED_AT))
    many = None if held_out is None else held_out.some(NUM_FOR_MEAN)
    yield "Surprise", surprise(subject, some, many)
    if subject.train is not None:
        yield "Neighbours", neighbours(subject, samples)


def short_names(paths: Sequence[Path]) -> list[str]:
    """Returns a name for each run: that of its directory, or more of its path to tell it apart."""
    whole = [path.resolve() for path in paths]
    names = [path.name for path in whole]
    if len(set(names)) < len(names):
        above = Path(os.path.commonpath(whole))
        names = [str(path.relative_to(above)) for path in whole]
    return names
