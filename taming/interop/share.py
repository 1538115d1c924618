"""Shares a model on the Hugging Face hub: its directory, a card, pictures, the report."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from taming.evaluation import markdown_table
from taming.report.page import Part, Table, Text
from taming.report.records import RunRecord, is_run, read_run
from taming.report.tables import evaluations, overview, shown
from taming.runtime.nested import leaves
from taming.serialization import (
    SavedModel,
    find_model,
    load_saved_model,
    save_model_directory,
    upload,
)

__all__ = ["model_card", "share_model"]

GRID, REPORT = "grid.png", "report.html"
CODES = ("kind", "codebook_size", "codebook_dim", "levels")  # of a quantizer
KINDS = {
    "vqgan": "A VQGAN: an encoder that turns images into grids of codes, and a decoder that paints "
    "them back.",
    "generator": "An image generator: a transformer that draws grids of codes, and the decoder of "
    "a VQGAN that paints them.",
}
USES = {
    "vqgan": "vqgan = taming.VQGAN.from_pretrained({name!r})\n"
    "indices = vqgan.encode(images)  # (b c H W) in [-1, 1] -> (b h w)\n"
    "reconstructions = vqgan.decode(indices)",
    "generator": "generator = taming.ImageGenerator.from_pretrained({name!r})\n"
    "images = generator.sample(16, seed=0)  # (b c H W) in [-1, 1]",
}


def share_model(
    checkpoint: str | Path, repo: str, *, license: str, private: bool | None = None
) -> str:
    """Uploads a model directory, its card, the newest grid and the report of its run, if there.

    `repo` is `"owner/name"`, `license` the hub's identifier of a licence; see `upload`. Returns the
    name to load the model by, `"hf:owner/name@commit"`.
    """
    saved, run = load_saved_model(checkpoint), _run_of(checkpoint)
    with TemporaryDirectory() as folder:
        directory = save_model_directory(saved, Path(folder, "model"))
        if run is not None:
            grids = sorted((run.path / "grids").glob("*.png"))
            for source, name in ((grids[-1:], GRID), ([run.path / REPORT], REPORT)):
                if source and source[0].is_file():
                    shutil.copyfile(source[0], directory / name)
        card = model_card(saved, repo, license, run, (directory / GRID).exists())
        (directory / "README.md").write_text(card, encoding="utf-8")
        return upload(directory, repo, private=private, message=f"A {saved.kind}", token=None)


def _run_of(checkpoint: str | Path) -> RunRecord | None:
    """Reads the finished run whose `model/` this is; None for another model or checkpoint."""
    directory = find_model(checkpoint).parent
    finished = is_run(directory) and (directory / "result.json").is_file()
    return read_run(directory) if finished else None


def model_card(
    saved: SavedModel, repo: str, license: str, run: RunRecord | None, has_grid: bool
) -> str:
    """Returns the card: what the model is, how to use it, its numbers, its settings."""
    from huggingface_hub import ModelCardData

    task = {"generator": "unconditional-image-generation"}.get(
        saved.kind, "image-feature-extraction"
    )
    data = ModelCardData(
        license=license, library_name="taming", pipeline_tag=task, tags=["vqgan", saved.kind]
    )
    parts = [f"---\n{data.to_yaml()}\n---\n\n# {repo.rpartition('/')[2]}\n\n{KINDS[saved.kind]}"]
    if has_grid:
        what = "Samples" if saved.kind == "generator" else "Images, each with its reconstruction"
        parts.append(f"![{what}]({GRID})")
    use = USES[saved.kind].format(name=f"hf:{repo}")
    parts.append(
        f"## Use\n\n```python\nimport taming\n\n{use}\n```\n\n"
        f"`hf:{repo}@COMMIT` stays the same model for ever; the commits are in the history."
    )
    parts.append(f"## Model\n\n{_markdown(_shape(saved))}")
    if run is not None:
        parts += _about(run)
    return "\n\n".join(parts) + "\n"


def _shape(saved: SavedModel) -> Table:
    vqgan = saved.parts.get("tokenizer", saved)
    found = {name: vqgan.config.get(name) for name in ("resolution", "image_channels")}
    quantizer = vqgan.config.get("quantizer", {})
    found["codes"] = ", ".join(f"{name} {quantizer[name]}" for name in CODES if name in quantizer)
    found["classes"] = ", ".join(saved.config.get("conditioning", {}).get("class_names") or [])
    found["parameters"] = f"{sum(map(_num_parameters, (saved, *saved.parts.values()))):,}"
    return Table(("", ""), [[name, shown(value)] for name, value in found.items() if value])


def _num_parameters(saved: SavedModel) -> int:
    return sum(t.numel() for t in saved.state.values() if t.is_floating_point())


def _about(run: RunRecord) -> Iterator[str]:
    """Yields the sections on the training, the evaluations and the settings."""
    yield (
        f"## Training\n\n{_markdown(overview([run], [{}]))}\n\n"
        "`val/…` is measured on images of the run's own data that were held out; numbers of other "
        "data, sizes or crops are not comparable."
    )
    if run.evaluations:
        yield "## Evaluations\n\nNumbers of different contracts are not comparable."
        yield from map(_markdown, evaluations(run))
    if run.config:
        settings = [[name, str(value)] for name, value in leaves(run.config) if value is not None]
        yield (
            "## Settings\n\n<details><summary>all of the run's configuration</summary>\n\n"
            f"{_markdown(Table(('', ''), settings))}\n\n</details>"
        )


def _markdown(part: Part) -> str:
    """Returns a table or text of the report as Markdown."""
    if isinstance(part, Text):
        return " ".join(map(_cell, part.text.splitlines()))
    assert isinstance(part, Table)
    header, *rows = [[_cell(text) for text in row] for row in (part.header, *part.rows)]
    title = f"**{part.title}**" if part.title else ""
    side = "" if part.side is None else _markdown(part.side)
    return "\n\n".join(filter(None, (title, markdown_table(header, rows), side)))


def _cell(text: str) -> str:
    """Returns a text for a table; of a path only its name, for it says where a user works."""
    if Path(text).is_absolute():
        text = Path(text).name
    return text.replace("|", "\\|").replace("\n", " ")
