"""`report`: writes one HTML file about a run, or about several runs side by side."""

import hydra
from omegaconf import DictConfig

from taming.cli.command import CONFIGS, command, job

__all__ = ["main"]


@command
@hydra.main(config_path=CONFIGS, config_name="report", version_base="1.3")
@job
def main(config: DictConfig) -> None:
    """Writes the report on the runs."""
    from functools import partial
    from pathlib import Path

    from taming.cli.build import resolved
    from taming.cli.data import open_data_of_run
    from taming.report.write import write_report
    from taming.runtime.devices import find_device
    from taming.runtime.errors import UserError

    plain = resolved(config)
    runs = plain["runs"] if isinstance(plain["runs"], list) else [plain["runs"]]
    if not runs:
        raise UserError("runs is empty: give a run directory, or several as [RUN,RUN].")
    output = config.output or (Path(runs[0], "report.html") if len(runs) == 1 else "report.html")
    open_data, device = partial(open_data_of_run, config), find_device(config.device)
    print(f"wrote {write_report(runs, output, open_data=open_data, device=device)}")
