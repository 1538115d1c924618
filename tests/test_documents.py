"""The paths and the names in docs/architecture.md and tests/README.md exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
TESTS = (ROOT / "tests" / "README.md").read_text("utf-8")
OTHER_NAMES = {
    "Trainer.fit",
    "_target_",
    "configure_optimizers",
    "higher_is_better",
}  # of libraries


def quoted(text: str) -> list[str]:
    """Returns what is in backticks, without the code blocks."""
    return re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def definitions(path: Path) -> set[str]:
    """Returns the names that a module defines; methods also as `Class.method`."""
    names: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef):
                    names |= {item.name, f"{node.name}.{item.name}"}
                elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    names.add(item.target.id)
    return names


def test_every_path_in_the_architecture_page_exists() -> None:
    paths = [t for t in quoted(ARCHITECTURE) if re.match(r"(taming|configs|scripts|tests)/", t)]
    assert len(paths) > 40
    assert [p for p in paths if "NAME" not in p and not (ROOT / p).exists()] == []


def test_every_name_in_the_architecture_page_is_in_its_file() -> None:
    modules = (ROOT / "taming").rglob("*.py")
    defined = {path.relative_to(ROOT).as_posix(): definitions(path) for path in modules}
    rows = re.findall(r"^\| (`taming.*?) \| (`.*?) \|", ARCHITECTURE, re.MULTILINE)
    assert len(rows) > 25
    for row in rows:
        paths, names = map(quoted, row)
        assert set(names) <= set().union(*(defined[path] for path in paths)), row
    name = re.compile(r"[A-Z]\w+(\.\w+)?|[a-z]*_\w+")
    names = {text for text in quoted(ARCHITECTURE) if name.fullmatch(text)}
    assert names - set().union(*defined.values()) - OTHER_NAMES == set()


def test_the_diagram_shows_every_room() -> None:
    rooms = {path.parent.name for path in (ROOT / "taming").glob("*/__init__.py")}
    diagram = ARCHITECTURE.split("```mermaid")[2].split("```")[0]
    assert {room for room in rooms if not re.search(rf"\b{room}\b", diagram)} == set()


@pytest.mark.parametrize("row", re.findall(r"^\| `.*", TESTS, re.MULTILINE))
def test_every_helper_of_the_tests_exists(row: str) -> None:
    paths, text = row.strip("| ").split(" | ", 1)
    sources = "".join((ROOT / "tests" / path).read_text("utf-8") for path in quoted(paths))
    names = [name for name in quoted(text) if name.isidentifier()]
    assert [name for name in names if not re.search(rf"\b{name}\b", sources)] == []
