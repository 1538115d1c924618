"""Uploads a model to the Hugging Face hub with a model card, sample images and the report."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from taming.evaluation import markdown_table
from taming.report.page import Part, Table, Text
from taming.report.records import RunRecord, is_run, read_run
from taming.report.tables import as_text, evaluations, overview
from taming.runtime.nested import leaves
from taming.serialization import (
    SavedModel,
    find_model,
    load_saved_model,
    save_model_directory,
    upload,
)

__all__ = ["finished_run", "model_card", "share_model"]

GRID, REPORT = "grid.png", "report.html"
QUANTIZER_FIELDS = ("kind", "codebook_size", "codebook_dim", "levels")
DESCRIPTIONS = {
    "vqgan": "A VQGAN tokenizer. Its encoder turns images into grids of codebook indices, and its "
    "decoder turns the indices back into images.",
    "generator": "An image generator. A transformer samples grids of codebook indices, and the "
    "decoder of a VQGAN turns them into images.",
}
PIPELINES = {
    "vqgan": "image-feature-extraction",
    "generator": "unconditional-image-generation",
}
USAGE = {
    "vqgan": "vqgan = taming.VQGAN.from_pretrained({name!r})\n"
    "indices = vqgan.encode(images)  # (b c H W) in [-1, 1] -> (b h w)\n"
    "reconstructions = vqgan.decode(indices)",
    "generator": "generator = taming.ImageGenerator.from_pretrained({name!r})\n"
    "images = generator.sample(16, seed=0)  # (b c H W) in [-1, 1]",
}


def share_model(
    checkpoint: str | Path, repo: str, *, license: str, private: bool | None = None
) -> str:
    """Uploads a model directory and its card; for a finished run also its last grid and report.

    Args:
        checkpoint: anything that `from_pretrained` loads.
        repo: `"owner/name"`.
        license: the hub's identifier of a licence, such as `"cc-by-4.0"`.
        private: see `PretrainedModel.push_to_hub`.

    Returns:
        The name that loads exactly this model: `"hf:owner/name@commit"`.
    """
    saved_model, run = load_saved_model(checkpoint), finished_run(checkpoint)
    with TemporaryDirectory() as folder:
        directory = save_model_directory(saved_model, Path(folder, "model"))
        if run is not None:
            grids = sorted((run.path / "grids").glob("*.png"))
            for source, name in ((grids[-1:], GRID), ([run.path / REPORT], REPORT)):
                if source and source[0].is_file():
                    shutil.copyfile(source[0], directory / name)
        card = model_card(saved_model, repo, license, run, has_grid=(directory / GRID).exists())
        (directory / "README.md").write_text(card, encoding="utf-8")
        message = f"Upload {saved_model.kind}"
        return upload(directory, repo, private=private, message=message, token=None)


def finished_run(checkpoint: str | Path) -> RunRecord | None:
    """Reads the run that wrote this model directory; None for a checkpoint or another model."""
    directory = find_model(checkpoint).parent
    is_finished = is_run(directory) and (directory / "result.json").is_file()
    return read_run(directory) if is_finished else None


def model_card(
    saved_model: SavedModel, repo: str, license: str, run: RunRecord | None, *, has_grid: bool
) -> str:
    """Returns the model card: what the model is, how to load it, its numbers and its settings."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        license=license,
        library_name="taming",
        pipeline_tag=PIPELINES[saved_model.kind],
        tags=["vqgan", saved_model.kind],
    )
    title = f"# {repo.rpartition('/')[2]}\n\n{DESCRIPTIONS[saved_model.kind]}"
    parts = [f"---\n{data.to_yaml()}\n---\n\n{title}"]
    if has_grid:
        is_generator = saved_model.kind == "generator"
        caption = "Samples" if is_generator else "Images and their reconstructions"
        parts.append(f"![{caption}]({GRID})")
    usage = USAGE[saved_model.kind].format(name=f"hf:{repo}")
    parts.append(
        f"## Usage\n\n```python\nimport taming\n\n{usage}\n```\n\n"
        f"Use `hf:{repo}@COMMIT` to pin one version. The history of this repository lists the "
        "commits."
    )
    parts.append(f"## Model\n\n{_markdown(_model_table(saved_model))}")
    if run is not None:
        parts += _run_sections(run)
    return "\n\n".join(parts) + "\n"


def _model_table(saved_model: SavedModel) -> Table:
    vqgan = saved_model.parts.get("tokenizer", saved_model)
    quantizer = vqgan.config.get("quantizer", {})
    codes = [f"{name} {quantizer[name]}" for name in QUANTIZER_FIELDS if name in quantizer]
    models = saved_model, *saved_model.parts.values()
    tensors = (tensor for model in models for tensor in model.state.values())
    fields = {
        "resolution": vqgan.config.get("resolution"),
        "image_channels": vqgan.config.get("image_channels"),
        "codes": ", ".join(codes),
        "classes": ", ".join(saved_model.config.get("conditioning", {}).get("class_names") or []),
        "parameters": sum(t.numel() for t in tensors if t.is_floating_point()),
    }
    return Table(("", ""), [[name, as_text(value)] for name, value in fields.items() if value])


def _run_sections(run: RunRecord) -> Iterator[str]:
    """Yields the sections about the training, its evaluations and its settings."""
    yield (
        f"## Training\n\n{_markdown(overview([run], [{}]))}\n\n"
        "The `val/…` numbers are measured on held-out images of the run's own data. Numbers from "
        "other data, resolutions or crops are not comparable."
    )
    if run.evaluations:
        yield "## Evaluations\n\nNumbers from different protocols are not comparable."
        yield from map(_markdown, evaluations(run))
    if run.config:
        settings = [[name, str(value)] for name, value in leaves(run.config) if value is not None]
        yield (
            "## Settings\n\n<details><summary>The complete configuration</summary>\n\n"
            f"{_markdown(Table(('', ''), settings))}\n\n</details>"
        )


def _markdown(part: Part) -> str:
    """Returns a table or a text of the report as Markdown."""
    if isinstance(part, Text):
        return " ".join(map(_cell, part.text.splitlines()))
    assert isinstance(part, Table)
    header, *rows = [[_cell(text) for text in row] for row in (part.header, *part.rows)]
    title = f"**{part.title}**" if part.title else ""
    side = "" if part.side is None else _markdown(part.side)
    return "\n\n".join(filter(None, (title, markdown_table(header, rows), side)))


def _cell(text: str) -> str:
    """Escapes a table cell, and shortens absolute paths because the card is public."""
    if Path(text).is_absolute():
        text = Path(text).name
    return text.replace("|", "\\|").replace("\n", " ")
