"""A setting of the wrong type: which one, and what it must be, before anything starts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from tiny_commands import TINY_TRANSFORMER, TINY_VQGAN, Run, fails_before_writing

from taming.cli.app import config_directory
from taming.cli.setting_types import check_types
from taming.errors import UserError

# nothing is read: neither of the paths exists
STAGE_1 = ("data.path=nowhere", *TINY_VQGAN, "perceptual=none", "run_dir=out")
STAGE_2 = ("data.path=nowhere", "vqgan=nowhere", *TINY_TRANSFORMER, "run_dir=out")


@pytest.mark.parametrize(
    ("override", "must_be"),
    [
        ("trainer.max_steps=null", "a whole number, not null"),
        ("trainer.max_steps=1e3", "a whole number, not 1000.0"),
        ("trainer.val_every=often", "a whole number or null, not often"),
        ("trainer.save_every=often", "a whole number or null, not often"),
        ("trainer.log_every=null", "a whole number, not null"),
        ("trainer.accumulate=true", "a whole number, not true"),
        ("trainer.gradient_clip=much", "a number or null, not much"),
        ("training.ema_decay=slow", "a number or null, not slow"),
        ("training.compile=1", "true or false, not 1"),
        ("training.optimizer.learning_rate=null", "a number, not null"),
        ("training.optimizer.betas=0.9", "a list of 2 numbers, not 0.9"),
        ("data.batch_size=null", "a whole number, not null"),
        ("data.resolution=large", "a whole number"),
        ("data.path=2024", "a path, not 2024"),
        ("data.num_workers=null", "not null"),
    ],
)
def test_both_stages(run: Run, override: str, must_be: str) -> None:
    name = override.partition("=")[0]
    for stage, overrides in (("train_vqgan", STAGE_1), ("train_transformer", STAGE_2)):
        fails_before_writing(run(stage, *overrides, override), f"{name} must be", must_be)


def test_settings_of_one_stage(run: Run) -> None:
    for override in ("model.base_channels=null", "adversary.weight=null", "adversary.start=soon",
        "training.health.patience=null", "model.channel_multipliers=[1,null]"):  # fmt: skip
        name, _, value = override.partition("=")
        fails_before_writing(
            run("train_vqgan", *STAGE_1, override),
            f"{name} must be a",
            "not [1, None]" if "[" in value else f"not {value}",
        )
    for override in ("condition_dropout=null", "tokens.num_views=null", "tokens.batch_size=many",
        "condition_cell=small", "model.num_layers=null", "training.num_samples=null"):  # fmt: skip
        name, _, value = override.partition("=")
        fails_before_writing(
            run("train_transformer", *STAGE_2, override), f"{name} must be a", f"not {value}"
        )


def test_a_reference_is_named_after_what_the_user_sets(run: Run) -> None:
    outcome = run("sample", "checkpoint=nowhere", "top_k=few", "output_dir=out")
    fails_before_writing(outcome, "error: top_k must be a whole number or null, not few")


def test_several_are_told_at_once(run: Run) -> None:
    outcome = run("train_vqgan", *STAGE_1, "trainer.max_steps=null", "data.batch_size=null")
    fails_before_writing(outcome, "trainer.max_steps must be", "data.batch_size must be")


class Target:
    def __init__(
        self,
        number: float,
        word: Literal["a", "b"] | int = "a",
        path: str | Path | None = None,
        sizes: Sequence[int] = (),
        thing: object = None,
    ) -> None: ...


def test_what_fits_an_annotation() -> None:
    def check(**values: Any) -> None:
        check_types(OmegaConf.create({"_target_": f"{__name__}.Target", **values}))

    check(number=1, word="c", path=None, sizes=[1, 2], thing={"a": None})  # c: for the target
    check(number=1.5, word=3, path="x", unknown=None, sizes=[])
    for wrong, message in (
        ({"number": True}, "number must be a number, not true"),
        ({"number": "1"}, "number must be a number, not 1"),
        ({"word": None}, "word must be a or b or a whole number, not null"),
        ({"path": 7}, "path must be a path or null, not 7"),
        ({"sizes": [1, 2.5]}, "sizes must be a list of whole numbers, not [1, 2.5]"),
    ):
        with pytest.raises(UserError) as raised:
            check(**{"number": 1, **wrong})
        assert str(raised.value) == f"{message}."


@pytest.mark.parametrize(
    "name", ["train_vqgan", "train_transformer", "sample", "reconstruct", "evaluate", "demo"]
)
def test_the_defaults_have_their_types(name: str) -> None:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        config = compose(name)
    # open until the tokenizer is known, or nothing is built without it
    left_open = ("data.resolution", "data.channels", "frechet.weights")
    try:
        check_types(config)
    except UserError as error:
        parts = str(error).removesuffix(".").split(". ")
        assert all(part.startswith(left_open) for part in parts), error
