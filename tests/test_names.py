"""No name is a lone participle or pronoun: `sampled_tokens`, not `chosen`."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(
    path
    for folder in ("taming", "scripts", "benchmarks", "tests", "docs")
    for path in (ROOT / folder).rglob("*.py")
)
PARTICIPLES = """
asked begun chosen dealt drawn fetched found given gone heard held kept known left made said seen
sent shown spent spoken taken told wanted written
"""
PRONOUNS = "its less more others something theirs them these they those ways"
WORDS = {*PARTICIPLES.split(), *PRONOUNS.split()}
ALLOWED = {  # "left" is a direction here, next to "top"
    ("taming/data/transforms.py", "left"),
    ("taming/evaluation/tiling.py", "left"),
    ("taming/generation/inputs.py", "left"),
    ("taming/generation/sample.py", "left"),
    ("taming/pictures.py", "left"),
    ("tests/generation/test_sampling.py", "left"),
    ("tests/test_pictures.py", "left"),
}


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the line and the name of each variable, argument, function, class and attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def opaque_names(source: str) -> list[tuple[int, str]]:
    return [(line, name) for line, name in names(ast.parse(source)) if name.strip("_") in WORDS]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("chosen = 1", ["chosen"]),
        ("for found in []: pass", ["found"]),
        ("def taken(given, *, kept=0): pass", ["taken", "given", "kept"]),
        ("self._told = 1", ["_told"]),
        ("chosen_codes = found_path = given()", []),
    ],
)
def test_finds_opaque_names(source: str, expected: list[str]) -> None:
    assert sorted(name for _, name in opaque_names(source)) == sorted(expected)


def test_names_are_nouns_and_verbs() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in FILES
        for line, name in opaque_names(path.read_text(encoding="utf-8"))
        if (str(path.relative_to(ROOT)), name) not in ALLOWED
    ]
    assert wrong == []
