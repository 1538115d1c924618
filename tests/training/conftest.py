from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.profilers import SimpleProfiler
from tiny_training import SETTINGS, Run, run_training, stage


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """Finished runs by stage and settings, each made once: tests change a copy of its directory."""

    @cache
    def run(kind: str, settings: str = "plain") -> Run:
        directory = tmp_path_factory.mktemp("finished") / kind
        settings_of_kind: dict[str, Any] = {}
        if settings == "plain":
            settings_of_kind["profiler"] = SimpleProfiler(dirpath=directory, filename="profile")
            settings_of_kind["loggers"] = [
                TensorBoardLogger(directory, "board", ""),
                CSVLogger(directory, "csv", ""),
            ]
        return run_training(directory, *stage(kind), **SETTINGS[settings], **settings_of_kind)

    return run
