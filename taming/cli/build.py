"""Builds what a configuration describes."""

from typing import Any

import hydra
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf

from taming.runtime.errors import UserError

__all__ = ["build", "build_all", "resolved"]


def build(config: DictConfig | None, /, **arguments: Any) -> Any:
    """Builds the `_target_` of a configuration from plain Python values; None if it has none.

    Raises:
        UserError: if the target cannot be imported or refuses its arguments.
    """
    if config is None or config.get("_target_") is None:
        return None
    try:
        return hydra.utils.instantiate(config, **arguments, _convert_="all")
    except InstantiationException as error:
        # slow to import
        from lightning.pytorch.utilities.exceptions import MisconfigurationException

        cause = error.__cause__
        if isinstance(cause, UserError):
            raise cause from None
        if isinstance(cause, ImportError):  # Hydra's own, in several lines
            cause = cause.__cause__ or cause
        elif not isinstance(cause, TypeError | ValueError | MisconfigurationException):
            raise
        reason = " ".join(str(cause).split())
        raise UserError(f"configuration of {config._target_}: {reason}.") from error


def build_all(config: DictConfig | None) -> list[Any]:
    """Builds the entries of a group such as `callbacks`, except those that are null."""
    parts = []
    for name, entry in (config or {}).items():
        if entry is not None and not (isinstance(entry, DictConfig) and "_target_" in entry):
            key = config._get_full_key(name)  # type: ignore[union-attr]
            raise UserError(f"{key} needs a _target_: give {key}._target_=MODULE.CLASS, or null.")
        parts.append(build(entry))
    return [part for part in parts if part is not None]


def resolved(config: DictConfig) -> dict[str, Any]:
    """Returns the configuration as a plain dictionary, with its interpolations resolved."""
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(name): value for name, value in plain.items()}
