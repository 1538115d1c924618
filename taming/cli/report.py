"""`report`: one HTML file about a run, or about several side by side."""

from functools import partial
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from taming.cli.app import (
    RESOLVED_FILE,
    check_origin,
    find_device,
    load_resolved_config,
    resolved,
)
from taming.cli.data import build_data, set_up
from taming.data.module import ImageDataModule
from taming.report.write import write_report
from taming.runtime.errors import UserError

__all__ = ["main", "open_data"]


def main(config: DictConfig) -> None:
    """Writes the report on the runs."""
    plain = resolved(config)
    runs = plain["runs"] if isinstance(plain["runs"], list) else [plain["runs"]]
    if not runs:
        raise UserError("runs is empty: give a run directory, or several as [RUN,RUN].")
    output = plain["output"] or (Path(runs[0], "report.html") if len(runs) == 1 else "report.html")
    device = find_device(plain["device"])
    written = write_report(runs, output, open_data=partial(open_data, config), device=device)
    print(f"wrote {written}")


def open_data(given: DictConfig, run: Path) -> ImageDataModule:
    """Opens the data of a run again, as its configuration describes them; `given` is the command's.

    Raises:
        UserError: if they are no longer there, or the configuration cannot be used.
    """
    path = run / RESOLVED_FILE
    saved = load_resolved_config(path)
    built = OmegaConf.create({name: saved.get(name) for name in ("data", "seed")})
    check_origin(built, given, path)
    data = build_data(built)
    set_up(data)
    return data
