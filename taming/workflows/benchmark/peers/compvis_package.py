"""CompVis' package `taming-transformers-rom1504`, made importable beside today's libraries.

Two things that have gone since are put in place of what it imports: a function that Lightning has
moved, and one that transformers has removed.
"""

import importlib
import sys
import types
from importlib.metadata import version
from typing import Any

import torch

VERSIONS = ("taming-transformers-rom1504", "pytorch-lightning")


def compvis_module(name: str) -> Any:
    """A module of the package, by its name there without `taming.`.

    Its package has our package's name: imported by a string, it is no import of ours.
    """
    import pytorch_lightning  # type: ignore[import-not-found, unused-ignore]

    moved = types.ModuleType("pytorch_lightning.utilities.distributed")
    moved.rank_zero_only = pytorch_lightning.utilities.rank_zero_only  # type: ignore[attr-defined]
    sys.modules[moved.__name__] = moved
    removed = types.ModuleType("transformers")
    removed.top_k_top_p_filtering = top_k_filtering  # type: ignore[attr-defined]
    sys.modules[removed.__name__] = removed  # nothing else of transformers is used
    return importlib.import_module(f"taming.{name}")


def top_k_filtering(logits: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """What transformers 4.3's `top_k_top_p_filtering` did with a `top_p` of 1: -∞ below the k-th.

    Args:
        logits: `(b v)`.
        top_k: how many stay.
        top_p: 1.
    """
    assert top_p == 1
    kth = torch.topk(logits, min(top_k, logits.shape[-1])).values[..., -1, None]
    logits[logits < kth] = -torch.inf
    return logits


def compvis_versions() -> dict[str, str]:
    """Of the package and its Lightning."""
    return {name: version(name) for name in VERSIONS}
