"""`compare`: tabulates the runs of a sweep, or several evaluations."""

import hydra
from omegaconf import DictConfig

from taming.cli.command import CONFIGS, command, job

__all__ = ["main"]


@command
@hydra.main(config_path=CONFIGS, config_name="compare", version_base="1.3")
@job
def main(config: DictConfig) -> None:
    """Writes a table of the runs' numbers, and their last grids as one picture."""
    from taming.cli.build import resolved
    from taming.report.comparison import write_comparison
    from taming.runtime.errors import UserError

    if not isinstance(config.runs, str):
        raise UserError("runs must be one folder that holds a sweep. Use report for several runs.")
    text, notes = write_comparison(config.runs, resolved(config)["columns"])
    print(text)
    for note in notes:
        print(f"wrote {note}")
