"""`share`: a model to the Hugging Face hub."""

import re

from omegaconf import DictConfig

from taming.cli.setting_types import check_types
from taming.report.share import share_model
from taming.runtime.errors import UserError

__all__ = ["main"]

TYPES = {"repo": str, "license": str, "private": bool | None}


def main(config: DictConfig) -> None:
    """Uploads a model with a card written from its run, and says how it is loaded."""
    check_types(config, TYPES)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", config.repo):
        raise UserError(f"repo={config.repo}: give the repository as owner/name.")
    name = share_model(
        config.checkpoint, config.repo, license=config.license, private=config.private
    )
    print(f"uploaded; everywhere a model is asked for, this is it:\n  {name}")
