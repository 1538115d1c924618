"""What `--help` shows: the settings of a command, described by the comments of the YAML files."""

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from taming.cli.mistakes import config_directory
from taming.runtime.nested import leaves

__all__ = ["overview"]

SETTING = re.compile(r"( *)([\w.]+): *([^#]*?) *(?:# (.*))?")
NAME_WIDTH, WIDTH = 38, 110


def overview(*, _root_: DictConfig) -> str:
    """Returns the text of `--help` for the composed configuration, as a `string.Template`.

    It shows the first comment of the command's file, the options of each group, and each setting
    that has a comment: all of the command's own file, and the first level of the chosen options.
    """
    configs = config_directory()
    main = configs / f"{_root_.hydra.job.config_name}.yaml"
    choices = {
        group: option
        for group, option in reversed(_root_.hydra.runtime.choices.items())
        if "/" not in group and isinstance(option, str | None)
    }
    values = dict(leaves(OmegaConf.to_container(_root_), lists=False))
    lines = [*_introduction(main), ""]
    if choices:
        lines.append("Options (name=option):")
    for group, option in choices.items():
        options = sorted(path.stem for path in (configs / group).glob("*.yaml"))
        lines += _entry(f"{group}={_text(option)}", f"one of {', '.join(options)}")
    described: set[str] = set()
    for group, option in {"": None, **choices}.items():
        path = configs / group / f"{option}.yaml" if group else main
        comments = {n: c for n, c in _described(path, group) if n in values.keys() - described}
        described |= comments.keys()
        entries = [
            line
            for name, comment in comments.items()
            for line in _entry(f"{name}={_text(values[name])}", comment)
        ]
        title = f"Settings of {group}={option}:" if group else "Settings (name=value):"
        lines += ["", title, *entries] if entries else []
    return "\n".join(lines).replace("$", "$$")


def _introduction(path: Path) -> Iterator[str]:
    """Yields the comment at the beginning of a file."""
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            return
        yield line[1:].removeprefix(" ")


def _described(path: Path, group: str) -> Iterator[tuple[str, str]]:
    """Yields the full name and the comment of each setting that has both a value and a comment.

    The settings of files that the file includes, such as `sampling`, follow its own.
    """
    text = path.read_text("utf-8") if path.is_file() else ""
    package = re.match(r"# @package ([\w.]+)", text)
    if group and package and package[1] == "_global_":  # its settings are described in other files
        return
    parents = [(-1, package[1] if group and package else group)]  # indents and names
    for line in text.splitlines():
        if not (setting := SETTING.fullmatch(line)) or setting[2] == "_target_":
            continue
        indent = len(setting[1])
        while parents[-1][0] >= indent:
            parents.pop()
        name = f"{parents[-1][1]}.{setting[2]}".removeprefix(".")
        if not setting[3]:
            parents.append((indent, name))
        elif setting[4] and (not group or indent == 0):
            yield name, setting[4]
    for included in (yaml.safe_load(text) or {}).get("defaults", []):
        if isinstance(included, str) and included not in ("base", "_self_"):
            yield from _described(path.with_stem(included), group)


def _entry(setting: str, comment: str) -> list[str]:
    """Lays out a setting and its comment in two columns."""
    indent = " " * (NAME_WIDTH + 4)
    lines = textwrap.wrap(comment, WIDTH, initial_indent=indent, subsequent_indent=indent)
    if len(setting) > NAME_WIDTH:
        return [f"  {setting}", *lines]
    return [f"  {setting:<{NAME_WIDTH}}  {lines[0].lstrip()}", *lines[1:]]


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return re.sub(r"\$\{[^}]*\}", "…", text)
