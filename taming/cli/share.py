"""`share`: uploads a model to the Hugging Face hub."""

import hydra
from omegaconf import DictConfig

from taming.cli.command import CONFIGS, command, job

__all__ = ["main"]


@command
@hydra.main(config_path=CONFIGS, config_name="share", version_base="1.3")
@job
def main(config: DictConfig) -> None:
    """Uploads a model with a card written from its run, and prints how to load it."""
    import re

    from taming.cli.setting_types import check_types
    from taming.report.share import share_model
    from taming.runtime.errors import UserError

    check_types(config, {"repo": str, "license": str, "private": bool | None})
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", config.repo):
        raise UserError(f"repo={config.repo}: give the repository as owner/name.")
    name = share_model(
        config.checkpoint, config.repo, license=config.license, private=config.private
    )
    print(f"uploaded. Use this name wherever a model is expected:\n  {name}")
