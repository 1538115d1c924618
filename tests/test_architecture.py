"""The rules about which room may import which, checked on the source."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "taming"
STEPS = (
    {"runtime"},
    {"serialization", "attention", "positions"},
    {"autoencoder", "quantizers", "discriminators", "losses"},
    {"tokenizer", "transformer", "conditioning"},
    {"pictures"},
    {"generation", "interop", "evaluation"},
    {"training", "report"},
    {"studio"},
    {"cli"},
)
STEP = {room: number for number, rooms in enumerate(STEPS) for room in rooms}
SAME_STEP = {  # imports within one step that are allowed
    ("discriminators", "autoencoder"),
    ("evaluation", "generation"),
    ("report", "training"),
}


class Import(NamedTuple):
    file: Path
    module: str
    at_top: bool  # outside all functions

    @property
    def room(self) -> str:
        return room_of(self.file)


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(file: Path) -> Iterator[Import]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    in_functions = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        modules = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            module = str(node.module)
            modules = [f"taming.{n.name}" for n in node.names] if module == "taming" else [module]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        yield from (Import(file, module, node not in in_functions) for module in modules)


def file_of(module: str) -> Path | None:
    """Returns the file of a module of ours."""
    path = PACKAGE.parent / module.replace(".", "/")
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None)


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
IMPORTS = [entry for file in FILES for entry in imports_of(file)]
OURS = [entry for entry in IMPORTS if entry.module.startswith("taming.")]


def test_the_parser_sees_the_package() -> None:
    modules = {entry.module for entry in IMPORTS}
    assert {"taming.runtime.errors", "torch", "lightning"} <= modules
    assert len(FILES) > 50


def test_every_room_has_its_step() -> None:
    assert {room_of(file) for file in FILES} - set(STEP) == {"data"}


def test_imports_between_rooms_go_one_way() -> None:
    wrong = []
    for entry in OURS:
        room, imported = entry.room, entry.module.split(".")[1]
        if room == "data":
            allowed = imported in ("data", "runtime")  # models and data do not know each other
        elif imported == "data":
            allowed = STEP[room] >= STEP["generation"]
        else:
            allowed = room == imported or STEP[imported] < STEP[room]
        if not allowed and (room, imported) not in SAME_STEP:
            wrong.append(f"{entry.file} imports {entry.module}")
    assert wrong == []


def test_no_module_imports_itself_through_others() -> None:
    graph = TopologicalSorter[Path]()
    for entry in OURS:
        imported = file_of(entry.module)
        if imported is not None and imported != entry.file:
            graph.add(entry.file, imported)
    graph.prepare()  # raises CycleError


@pytest.mark.parametrize(
    ("library", "rooms"),
    [
        ("hydra", {"cli"}),
        ("omegaconf", {"cli"}),
        ("lightning", {"cli", "training", "data"}),
        (
            "pydantic",
            {"serialization", "cli", "conditioning", "generation", "report", "transformer"},
        ),
        ("wandb", {"training"}),
        ("lpips", {"losses"}),
        ("gradio", {"studio"}),
    ],
)
def test_libraries_stay_in_their_rooms(library: str, rooms: set[str]) -> None:
    assert {entry.room for entry in IMPORTS if entry.module.split(".")[0] == library} <= rooms


@pytest.mark.parametrize("library", ["wandb", "tensorboard", "lpips", "huggingface_hub", "sklearn"])
def test_heavy_libraries_are_imported_only_when_used(library: str) -> None:
    assert [e.file for e in IMPORTS if e.at_top and e.module.split(".")[0] == library] == []


def test_importing_taming_is_light() -> None:
    program = (
        "import sys, taming\n"
        "heavy = {'lightning', 'hydra', 'omegaconf', 'wandb', 'lpips', 'torchvision',\n"
        " 'torch.utils.benchmark'}\n"
        "print(sorted((heavy | {'torch'}) & set(sys.modules)))\n"
        "taming.VQGAN, taming.ImageGenerator\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "import taming.cli.sample, taming.cli.import_checkpoint\n"
        "print(sorted((heavy | {'torchmetrics'}) & set(sys.modules) - {'hydra', 'omegaconf'}))\n"
    )
    output = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert output.split() == ["[]", "[]", "[]"]
