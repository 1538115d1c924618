"""`import_checkpoint`: a checkpoint of another program to a model directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from taming.cli.app import load_resolved_config, resolved
from taming.interop import import_checkpoint
from taming.runtime.errors import MissingPathError, UserError, writing
from taming.serialization import save_model_directory

__all__ = ["main"]


def main(config: DictConfig) -> None:
    """Writes a foreign checkpoint as a model directory and says what became of its weights."""
    plain = resolved(config)
    checkpoint, output = (Path(str(plain[name])).expanduser() for name in ("checkpoint", "output"))
    settings = {
        name: plain[name] for name in ("num_classes", "tokenizer") if plain[name] is not None
    }
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise UserError(f"output={output} exists and is not empty: give a new directory.")
    their_config = foreign_config(str(plain["config"]))
    imported = import_checkpoint(plain["source"], checkpoint, their_config, **settings)
    with writing(output):
        save_model_directory(imported.model, output)
    print(f"read {checkpoint}")
    for note in imported.notes:
        print(f"  {note}")
    print(f"wrote {output}")
    for name in imported.model.parts:
        print(f"wrote {output / name}")


def foreign_config(config: str) -> Mapping[str, Any] | str:
    """Reads the other program's arguments from YAML or JSON; else it is a published size's name."""
    path = Path(config).expanduser()
    if not path.is_file():
        if path.suffix in (".yaml", ".yml", ".json") or len(path.parts) > 1:
            raise MissingPathError(f"config={path} does not exist (looked from {Path.cwd()}).")
        return config
    return load_resolved_config(path)  # JSON is YAML
