"""A setting of the wrong type: which one, and what it must be, before anything starts."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from omegaconf import OmegaConf
from tiny_commands import TINY_TRANSFORMER, TINY_VQGAN, Run, fails_before_writing

from taming.cli.build import build_all
from taming.cli.setting_types import check_types
from taming.runtime.errors import UserError

STAGE_1 = ("data.path=.", *TINY_VQGAN, "perceptual=none", "run_dir=out")
STAGE_2 = ("data.path=.", "vqgan=.", *TINY_TRANSFORMER, "run_dir=out")


WRONG: dict[str, dict[str, str]] = {
    "train_vqgan": {
        "adversary.start=soon": "a valid",
        "adversary.weight=-1": "greater than or equal to 0, not -1",
        "callbacks.average.decay=slow": 'a valid number, not "slow"',
        "data.batch_size=null": "a valid integer, not null",
        "data.loader.num_workers=null": "not null",
        "data.resolution=large": "a valid integer",
        "data.transform.crop_scale=[0,1]": "greater than 0, not [0, 1]",
        "data.val_fraction=1": "less than 1, not 1",
        "data.source.reader.background=[0,0,256]": "less than or equal to 255, not",
        "export=bset": "'best' or 'last', not \"bset\"",
        "finetune.mode=encoder": "'whole', 'decoder' or 'new_codebook', not \"encoder\"",
        "model.base_channels=null": "a valid integer, not null",
        "model.channel_multipliers=[1,null]": "a valid integer, not [1, null]",
        "trainer.max_steps=0": "greater than or equal to 1, not 0",
        "training.compile=1": "a valid boolean or 'auto', not 1",
        "training.optimizer.betas=0.9": "a valid array, not 0.9",
        "training.optimizer.final_fraction=-2": "greater than or equal to 0, not -2",
        "training.optimizer.learning_rate=0": "greater than 0, not 0",
        "training.reconstruction=l3": 'not "l3"',
    },
    "train_transformer": {
        "callbacks.grids.num_images=null": "a valid integer, not null",
        "condition_cell=small": "a valid integer",
        "condition_dropout=null": "a valid number, not null",
        "data.resolution=large": "a valid integer",
        "model.num_layers=null": "a valid integer, not null",
        "tokens.batch_size=many": 'a valid integer, not "many"',
        "tokens.num_views=null": "a valid integer, not null",
        "trainer.max_steps=1e3": "a valid integer, not 1000.0",
    },
    "sample": {  # a reference is named after what the user sets
        "num_images=0": "greater than or equal to 1, not 0",
        "top_k=few": 'a valid integer, not "few"',
    },
}


@pytest.mark.parametrize("name", WRONG)
def test_all_wrong_settings_are_named_at_once(run: Run, name: str) -> None:
    training_overrides = {"train_vqgan": STAGE_1, "train_transformer": STAGE_2}
    overrides = training_overrides.get(name, ("checkpoint=.", "output_dir=out"))
    outcome = run(name, *overrides, *WRONG[name])
    fails_before_writing(outcome)
    for override, should_be in WRONG[name].items():
        start = f"{override.partition('=')[0]} should be "
        (sentence,) = (
            part for part in re.split(r"\. |error: ", outcome.err) if part.startswith(start)
        )
        assert should_be in sentence


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
        ({"thing": {0: 8, 4: 4}}, None),  # as for Lightning's GradientAccumulationScheduler
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
