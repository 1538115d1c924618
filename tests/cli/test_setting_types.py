"""A setting of the wrong type: which one, and what it must be, before anything starts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from tiny_commands import TINY_TRANSFORMER, TINY_VQGAN, Run, fails_before_writing

from taming.cli.app import build_all, config_directory
from taming.cli.setting_types import check_types
from taming.errors import UserError

STAGE_1 = ("data.path=.", *TINY_VQGAN, "perceptual=none", "run_dir=out")
STAGE_2 = ("data.path=.", "vqgan=.", *TINY_TRANSFORMER, "run_dir=out")


@pytest.mark.parametrize(
    ("override", "should_be"),
    [
        ("trainer.max_steps=null", "a valid integer, not null"),
        ("trainer.max_steps=1e3", "a valid integer, not 1000.0"),
        ("callbacks.average.decay=slow", 'a valid number, not "slow"'),
        ("training.compile=1", "a valid boolean, not 1"),
        ("training.optimizer.learning_rate=null", "a valid number, not null"),
        ("training.optimizer.betas=0.9", "a valid array, not 0.9"),
        ("data.batch_size=null", "a valid integer, not null"),
        ("data.resolution=large", "a valid integer"),
        ("data.loader.num_workers=null", "not null"),
        ("data.val_fraction=1", "less than 1, not 1"),
        ("data.transform.crop_scale=[0,1]", "greater than 0, not [0, 1]"),
    ],
)
def test_both_stages(run: Run, override: str, should_be: str) -> None:
    name = override.partition("=")[0]
    for stage, overrides in (("train_vqgan", STAGE_1), ("train_transformer", STAGE_2)):
        outcome = run(stage, *overrides, override)
        fails_before_writing(outcome, f"{name} should be", should_be)


@pytest.mark.parametrize(
    ("stage", "overrides"),
    [
        ("train_vqgan", ["model.base_channels=null"]),
        ("train_vqgan", ["adversary.weight=null", "adversary.start=soon"]),
        ("train_vqgan", ["model.channel_multipliers=[1,null]", "data.batch_size=null"]),
        ("train_transformer", ["condition_dropout=null", "model.num_layers=null"]),
        ("train_transformer", ["tokens.num_views=null", "tokens.batch_size=many"]),
        ("train_transformer", ["condition_cell=small", "callbacks.grids.num_images=null"]),
        ("sample", ["top_k=few"]),  # a reference is named after what the user sets
    ],
)
def test_settings_of_one_command(run: Run, stage: str, overrides: list[str]) -> None:
    """All that are wrong are told at once."""
    others = {"train_vqgan": STAGE_1, "train_transformer": STAGE_2}
    given = others.get(stage, ("checkpoint=.", "output_dir=out"))
    names = [override.partition("=")[0] for override in overrides]
    outcome = run(stage, *given, *overrides)
    fails_before_writing(outcome, *(f"{name} should be a valid" for name in names))


class Target:
    def __init__(
        self,
        number: float,
        word: Literal["a", "b"] | int = "a",
        path: str | Path | None = None,
        sizes: Sequence[int] = (),
        thing: object = None,
        network: torch.nn.Module | None = None,
    ) -> None: ...


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"number": 1, "word": "b", "path": None, "sizes": [1, 2], "thing": {"a": None}}, None),
        ({"number": 1.5, "word": 3, "path": "x", "unknown": None, "sizes": []}, None),
        ({"network": 3}, None),  # objects are the target's business
        ({"number": True}, "number should be a valid number, not true"),
        ({"number": "1"}, 'number should be a valid number, not "1"'),
        ({"word": "c"}, "word should be 'a' or 'b' or a valid integer, not \"c\""),
        ({"path": 7}, "path should be a valid string, not 7: write 'path=\"7\"'"),
        ({"sizes": [1, 2.5]}, "sizes should be a valid integer, not [1, 2.5]"),
        ({"sizes": "${other}", "other": 3}, "other should be a valid array, not 3"),
    ],
)
def test_what_fits_an_annotation(values: dict[str, Any], message: str | None) -> None:
    config = OmegaConf.create({"_target_": f"{__name__}.Target", **values})
    if message is None:
        check_types(config)
        return
    with pytest.raises(UserError) as raised:
        check_types(config)
    assert str(raised.value) == f"{message}."


def test_a_group_of_targets_is_built_whole_or_refused() -> None:
    target = {"_target_": f"{__name__}.Target", "number": 1}
    assert len(build_all(OmegaConf.create({"one": target, "two": None, "three": target}))) == 2
    assert build_all(None) == []
    config = OmegaConf.create({"callbacks": {"one": target, "foo": 1}})
    with pytest.raises(UserError, match=r"callbacks.foo needs a _target_"):
        build_all(config.callbacks)


@pytest.mark.parametrize(
    "name", ["train_vqgan", "train_transformer", "sample", "reconstruct", "evaluate", "demo"]
)
def test_the_defaults_have_their_types(name: str) -> None:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        config = compose(name)
    # open until the tokenizer is known, or nothing is built without it
    left_open = ("data.resolution", "data.channels", "frechet.weights", "trainer.precision")
    try:
        check_types(config)
    except UserError as error:
        parts = str(error).removesuffix(".").split(". ")
        assert all(part.startswith(left_open) for part in parts), error
