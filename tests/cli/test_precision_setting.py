"""`trainer.precision`: which values there are, and which are refused."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from omegaconf import OmegaConf
from tiny_commands import composed

from taming.cli.mistakes import config_directory
from taming.cli.setting_types import check_types
from taming.cli.training import TYPES, build_trainer
from taming.runtime.errors import UserError
from taming.training.execution import Precision

ROOT = Path(__file__).resolve().parents[2]
SHARDED = "trainer.strategy={_target_: taming.training.strategies.ShardedStrategy}"


# Lightning converts the sums of metrics to the first two as well: 5 nats became 5.81, or NaN
@pytest.mark.parametrize(
    "value", ["bf16-true", "16-true", "transformer-engine", "double", "bf16", 16, 32, None]
)
def test_other_precisions_are_refused_with_the_accepted_ones(value: Any) -> None:
    config = OmegaConf.create({"trainer": {"precision": value}})
    accepted = "'auto', '32-true', 'bf16-mixed', '16-mixed' or '64-true'"
    with pytest.raises(UserError, match=rf"^trainer\.precision should be {accepted}, not .*\.$"):
        check_types(config, TYPES)


@pytest.mark.parametrize("value", get_args(Precision))
def test_every_precision_is_accepted(value: str) -> None:
    check_types(OmegaConf.create({"trainer": {"precision": value}}), TYPES)


def test_precisions_are_documented() -> None:
    documented = set(get_args(Precision))
    (row,) = re.findall(
        r"^\|.*`trainer\.precision` \|.*", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE
    )
    assert set(re.findall(r"`(\w+-\w+|auto)`", row)) == documented
    settings = (Path(config_directory()) / "trainer" / "auto.yaml").read_text()
    (line,) = re.findall(r"^precision: (auto # .*); auto: ", settings, re.MULTILINE)
    assert set(re.split(" # |, ", line)) == documented


def test_fsdp_refuses_float64() -> None:
    settings = ("data.path=x", "vqgan=x", "trainer=cpu", SHARDED, "trainer.max_steps=1")
    with pytest.raises(UserError, match=r"64-true cannot train with FSDP\. Use .*32-true"):
        build_trainer(composed("train_transformer", *settings, "trainer.precision=64-true"))
