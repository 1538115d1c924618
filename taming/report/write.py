"""Writes a report about one run, or several runs side by side."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from taming.report.curves import curve_section, save_curves
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
from taming.report.subject import OpenData, Subject, load_subject
from taming.report.tables import configurations, evaluations, overview
from taming.report.tokenizer_views import codebook, reconstructions, token_grids
from taming.runtime.errors import UserError, writing

__all__ = ["write_report"]

NUM_GRIDS, NUM_ATTENTION, NUM_SURPRISE, NUM_MEAN_SURPRISE = 6, 2, 6, 64  # images
FILES = ("report.html", "curves.png")  # in a run directory

SECTIONS = {  # title: explanation
    "Overview": "",
    "Health": "Warnings of the training, and findings from its metrics and pictures.",
    "Reconstructions": "Held-out images through the tokenizer and back, the same number of each "
    "class, for at most 24 classes.",
    "Codebook": "",
    "Codes of images": "If a code decoded alone differs from the same place in the reconstruction, "
    "the decoder used the codes around it.",
    "Samples": "Temperature 1, no filters, seed 0.",
    "Attention": "Where the transformer looks when it predicts the token in the green frame. Each "
    "picture has its own scale, and brighter cells have more weight. Later cells are masked.",
    "Surprise": "The bits that each token costs, given the tokens before it. Dark cells were "
    "predicted well.",
    "Neighbours": "Small copies of the images are compared pixel by pixel. A model that memorises "
    "gives samples that are closer to training images than held-out images are.",
    "Evaluations": "Numbers from different protocols are not comparable.",
}
HINTS = {
    "Codebook": "Point at a code for its number.",
    "Codes of images": "Point at a cell for its code.",
    "Attention": "Point at a picture for the weight on the condition.",
}


def write_report(
    runs: Sequence[str | Path],
    output: str | Path,
    *,
    open_data: OpenData | None = None,
    device: torch.device | str = "cpu",
) -> Path:
    """Writes one self-contained HTML file, and `curves.png` into each run directory.

    The runs are of either stage, finished or unfinished. `open_data` opens the data of a run
    directory. If it raises a `UserError`, the report shows the message instead of images.

    Raises:
        UserError: if a run does not exist, or the file cannot be written.
    """
    paths, output = [Path(run).expanduser() for run in runs], Path(output).expanduser()
    records = [read_run(path, name) for path, name in zip(paths, short_names(paths), strict=True)]
    sections = {name: Section(name, text, HINTS.get(name, "")) for name, text in SECTIONS.items()}
    facts = []
    for record in records:
        run_facts, parts = _describe(record, open_data, device)
        facts.append(run_facts)
        for title, run_parts in parts.items():
            sections[title].by_run[record.name] = run_parts
    sections["Overview"].parts.append(overview(records, facts))
    first = [sections.pop(title) for title in ("Overview", "Health")]
    in_order = [*first, curve_section(records), *sections.values(), configurations(records)]
    page = render_page(", ".join(map(str, paths)), [record.name for record in records], in_order)
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        for path in [record.path / name for record in records for name in FILES]:
            if path.is_symlink():  # in a run from anyone, it may lead anywhere
                path.unlink()
        output.write_bytes(page)
        for record in records:
            save_curves(record, record.path / "curves.png")
    return output


def _describe(
    record: RunRecord, open_data: OpenData | None, device: torch.device | str
) -> tuple[dict[str, str], dict[str, list[Part]]]:
    """Returns facts about a run's model and data, and the run's parts of each section."""
    facts: dict[str, str] = {}
    parts: dict[str, list[Part]] = {}
    advice = ""
    try:
        subject, facts, missing = load_subject(record.path, open_data, device)
        parts = {title: list(section_parts) for title, section_parts in _pictures(subject)}
        advice = subject.tokenizer.quantizer.advice
    except UserError as error:
        missing = [f"The report shows no pictures of the model: {error}"]
    health = findings(record, advice)
    for section_parts in parts.values():
        health += [part for part in section_parts if isinstance(part, Finding)]
    if not any(finding.level == "warning" for finding in health):
        health.insert(0, Finding("Nothing unusual was found.", "good"))
    parts["Health"] = [*health, *(Finding(text, "note") for text in missing)]
    if record.evaluations:
        parts["Evaluations"] = list(evaluations(record))
    return facts, parts


def _pictures(subject: Subject) -> Iterator[tuple[str, Iterable[Part]]]:
    """Yields the sections with pictures, as far as there are images."""
    examples, held_out, generator = subject.examples, subject.held_out, subject.generator
    if examples is not None:
        yield "Reconstructions", reconstructions(subject, examples)
        yield "Codes of images", token_grids(subject, examples.thin(NUM_GRIDS))
    yield "Codebook", codebook(subject, held_out)
    if generator is None:
        return
    if generator.conditioning.takes_images and examples is None:
        yield "Samples", [Text("This generator needs condition images, but the data is missing.")]
        return
    samples = draw_samples(subject)
    yield "Samples", samples_by_class(subject, samples)
    images = (examples or samples).thin(NUM_SURPRISE)
    yield "Attention", attention(subject, images.thin(NUM_ATTENTION))
    for_mean = None if held_out is None else held_out.thin(NUM_MEAN_SURPRISE)
    yield "Surprise", surprise(subject, images, for_mean)
    if subject.train is not None:
        yield "Neighbours", neighbours(subject, samples)


def short_names(paths: Sequence[Path]) -> list[str]:
    """Returns the name of each directory, or a longer part of its path if names repeat."""
    absolute = [path.resolve() for path in paths]
    names = [path.name for path in absolute]
    if len(set(names)) == len(names):
        return names
    parent = Path(os.path.commonpath(absolute))
    return [str(path.relative_to(parent)) for path in absolute]
