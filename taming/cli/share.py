"""`share`: a model to the Hugging Face hub."""

import re

from omegaconf import DictConfig

from taming.cli.app import RESOLVED_FILE, load_saved_config, resolved
from taming.cli.mistakes import leaves
from taming.cli.setting_types import check_types
from taming.errors import UserError
from taming.workflows.share import run_directory, share_model

__all__ = ["main"]

TYPES = {"repo": str, "license": str, "private": bool | None}


def main(config: DictConfig) -> None:
    """Uploads a model with a card written from its run, and says how it is loaded."""
    plain = resolved(config)
    check_types(config, TYPES)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", config.repo):
        raise UserError(f"repo={config.repo}: give the repository as owner/name.")
    run_dir = run_directory(config.checkpoint)
    settings = {}
    if run_dir is not None and (run_dir / RESOLVED_FILE).is_file():
        settings = dict(leaves(resolved(load_saved_config(run_dir / RESOLVED_FILE))))
    name = share_model(
        config.checkpoint,
        config.repo,
        license=str(plain["license"]),
        private=config.private,
        settings=settings,
    )
    print(f"uploaded; everywhere a model is asked for, this is it:\n  {name}")
