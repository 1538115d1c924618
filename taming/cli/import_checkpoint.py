"""`import_checkpoint`: converts a checkpoint of another program to a model directory."""

from collections.abc import Mapping
from typing import Any

import hydra
from omegaconf import DictConfig

from taming.cli.command import CONFIGS, command, job

__all__ = ["main"]


@command
@hydra.main(config_path=CONFIGS, config_name="import_checkpoint", version_base="1.3")
@job
def main(config: DictConfig) -> None:
    """Writes a foreign checkpoint as a model directory, and prints what became of its weights."""
    from pathlib import Path

    from taming.cli.build import resolved
    from taming.interop import import_checkpoint
    from taming.runtime.errors import UserError, writing
    from taming.serialization import save_model_directory

    plain = resolved(config)
    checkpoint, output = (Path(str(plain[name])).expanduser() for name in ("checkpoint", "output"))
    settings = {
        name: plain[name] for name in ("num_classes", "tokenizer") if plain[name] is not None
    }
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise UserError(f"output={output} exists and is not empty. Give a new directory.")
    model_config = _read_config(str(plain["config"]))
    imported = import_checkpoint(plain["source"], checkpoint, model_config, **settings)
    with writing(output):
        save_model_directory(imported.model, output)
    print(f"read {checkpoint}")
    for note in imported.notes:
        print(f"  {note}")
    for path in (output, *(output / name for name in imported.model.parts)):
        print(f"wrote {path}")


def _read_config(config: str) -> Mapping[str, Any] | str:
    """Reads the other program's arguments from YAML or JSON, or returns a published size's name."""
    from pathlib import Path

    from taming.cli.saved_config import load_resolved_config
    from taming.runtime.errors import MissingPathError

    path = Path(config).expanduser()
    if not path.is_file():
        if path.suffix in (".yaml", ".yml", ".json") or len(path.parts) > 1:
            raise MissingPathError(f"config={path} does not exist (looked from {Path.cwd()}).")
        return config
    return load_resolved_config(path)  # JSON is YAML
