"""`report`: one HTML file about a run, or about several side by side."""

from pathlib import Path

from omegaconf import DictConfig

from taming.cli.app import (
    RESOLVED_FILE,
    find_device,
    foreign_target,
    load_saved_config,
    resolved,
    shell_command,
)
from taming.cli.data import build_data, set_up
from taming.data.module import ImageDataModule
from taming.errors import UserError
from taming.workflows.report import write_report

__all__ = ["main", "open_data"]


def main(config: DictConfig) -> None:
    """Writes the report on the runs."""
    plain = resolved(config)
    runs = plain["runs"] if isinstance(plain["runs"], list) else [plain["runs"]]
    if not runs:
        raise UserError("runs is empty: give a run directory, or several as [RUN,RUN].")
    output = plain["output"] or (Path(runs[0], "report.html") if len(runs) == 1 else "report.html")
    device = find_device(plain["device"])
    print(f"wrote {write_report(runs, output, open_data=open_data, device=device)}")


def open_data(run: Path) -> ImageDataModule:
    """Opens the data of a run again, as its configuration describes them.

    Raises:
        UserError: if they are no longer there, or the configuration cannot be used.
    """
    path = run / RESOLVED_FILE
    config = load_saved_config(path)
    if (stranger := foreign_target(config.data)) is not None:
        raise UserError(f"{path} names data.{stranger}, which is none of this program's.")
    if (command := shell_command(config)) is not None:
        raise UserError(f"{path} has the shell run {command}: it is not run.")
    data = build_data(config)
    set_up(data)
    return data
