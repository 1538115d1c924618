"""Shares a model on the Hugging Face hub: its directory, a card, pictures, the report."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from taming.serialization import (
    SavedModel,
    find_model,
    load_saved_model,
    save_model_directory,
    upload,
)

__all__ = ["model_card", "run_directory", "share_model"]

GRID, REPORT, RESULT = "grid.png", "report.html", "result.json"
CODES = ("kind", "codebook_size", "codebook_dim", "levels")  # of a quantizer
DATA = ("data.path", "data.val_path", "data.resolution", "data.val_fraction")
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
    checkpoint: str | Path,
    repo: str,
    *,
    license: str,
    private: bool | None = None,
    settings: Mapping[str, Any],
) -> str:
    """Uploads a model directory, its card, the newest grid and the report of its run, if there.

    Args:
        checkpoint: run directory, model directory or `.ckpt` file.
        repo: `"owner/name"`.
        license: the hub's identifier of a licence.
        private: whether a new repository is; None for the owner's default.
        settings: of the run, by their full names; those that are absolute paths are shortened.

    Returns:
        The name to load it by, `"hf:owner/name@commit"`.
    """
    saved, run_dir = load_saved_model(checkpoint), run_directory(checkpoint)
    with TemporaryDirectory() as folder:
        directory = save_model_directory(saved, Path(folder, "model"))
        if run_dir is not None:
            grids = sorted((run_dir / "grids").glob("*.png"))
            for source, name in ((grids[-1:], GRID), ([run_dir / REPORT], REPORT)):
                if source and source[0].is_file():
                    shutil.copyfile(source[0], directory / name)
        card = model_card(saved, repo, license, run_dir, settings, (directory / GRID).exists())
        (directory / "README.md").write_text(card, encoding="utf-8")
        return upload(directory, repo, private=private, message=f"A {saved.kind}", token=None)


def run_directory(checkpoint: str | Path) -> Path | None:
    """Returns the run that a checkpoint or model is of; None for a model alone."""
    path = find_model(checkpoint)  # RUN/model, or RUN/checkpoints/NAME.ckpt
    found = path.parent.parent if path.is_file() else path.parent
    return found if (found / RESULT).is_file() else None


def model_card(
    saved: SavedModel,
    repo: str,
    license: str,
    run_dir: Path | None,
    settings: Mapping[str, Any],
    has_grid: bool,
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
    parts.append(f"## Model\n\n{_table(_shape(saved))}")
    if run_dir is not None:
        result = json.loads((run_dir / RESULT).read_text())
        parts += _training(result, settings)
        parts += [_evaluation(path) for path in sorted(run_dir.rglob("metrics.json"))]
    return "\n\n".join(parts) + "\n"


def _shape(saved: SavedModel) -> dict[str, Any]:
    vqgan = saved.parts.get("tokenizer", saved)
    found = {name: vqgan.config.get(name) for name in ("resolution", "image_channels")}
    quantizer = vqgan.config.get("quantizer", {})
    found["codes"] = ", ".join(f"{name} {quantizer[name]}" for name in CODES if name in quantizer)
    found["classes"] = ", ".join(saved.config.get("conditioning", {}).get("class_names") or [])
    found["parameters"] = f"{sum(map(_num_parameters, (saved, *saved.parts.values()))):,}"
    return {name: value for name, value in found.items() if value}


def _num_parameters(saved: SavedModel) -> int:
    return sum(t.numel() for t in saved.state.values() if t.is_floating_point())


def _training(result: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Returns the sections on the training; results of older versions say less."""
    facts = {"steps": result["exported_step"]}
    facts |= {
        name.replace("_", " "): result[name]
        for name in ("duration_seconds", "images_per_second", "device", "precision")
        if name in result
    }
    facts |= {f"version of {name}": found for name, found in result.get("versions", {}).items()}
    step = result.get("metrics_step") or "unknown"
    metrics = {name: f"{value:.5g}" for name, value in result["metrics"].items()}
    sections = [f"## Training\n\n{_table(facts)}"]
    if metrics:
        sections.append(
            f"## Validation\n\nOn images of the run's own data that were held out, at step {step}; "
            f"numbers of other data, sizes or crops are not comparable.\n\n{_table(metrics)}"
        )
    if settings:
        data = {name: settings[name] for name in DATA if name in settings}
        sections += [
            f"## Data\n\n{_table(data)}",
            "## Settings\n\n<details><summary>all of the run's configuration</summary>\n\n"
            f"{_table(settings)}\n\n</details>",
        ]
    return sections


def _evaluation(path: Path) -> str:
    """Returns the numbers of an evaluation, with the contract that makes them comparable."""
    found = json.loads(path.read_text())
    contract = found.pop("contract", None) or {}
    tables = [_table(dict(_leaves(found)))]
    if contract:
        tables.append(f"measured with this contract:\n\n{_table(dict(_leaves(contract)))}")
    return f"## Evaluation: {path.parent.name}\n\n" + "\n\n".join(tables)


def _leaves(value: Any, name: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list) and any(isinstance(entry, dict | list) for entry in value):
        inner = {str(number): entry for number, entry in enumerate(value)}.items()
    else:
        return [(name, value)]
    return [leaf for key, entry in inner for leaf in _leaves(entry, f"{name}.{key}".strip("."))]


def _table(rows: Mapping[str, Any]) -> str:
    lines = [f"| {name} | {_cell(value)} |" for name, value in rows.items() if value is not None]
    return "\n".join(["| | |", "|---|---|", *lines])


def _cell(value: Any) -> str:
    """Returns a value for a table; of a path only its name, for it says where a user works."""
    if isinstance(value, str) and Path(value).is_absolute():
        value = Path(value).name
    if isinstance(value, float):
        value = f"{value:.5g}"
    return str(value).replace("|", "\\|").replace("\n", " ")
