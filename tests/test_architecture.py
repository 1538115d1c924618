"""The rules of which part may import which, read from the source."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
STEP = {part: number for number, parts in enumerate(STEPS) for part in parts}
SIBLINGS = {
    ("discriminators", "autoencoder"),
    ("evaluation", "generation"),
    ("report", "training"),
}  # within one step, besides itself

Import = tuple[str, str, bool]  # file, imported module, at module level


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    name = str(path.relative_to(PACKAGE))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            module = node.module or ""
            names = [f"{module}.{a.name}" for a in node.names] if module == "taming" else [module]
            yield from ((name, found, id(node) not in inner) for found in names)
        elif isinstance(node, ast.Import):
            yield from ((name, alias.name, id(node) not in inner) for alias in node.names)


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
IMPORTS = [(part_of(path), found) for path in FILES for found in imports(path)]


def test_the_parser_sees_the_package() -> None:
    assert {"taming.runtime.errors", "torch", "lightning"} <= {
        module for _, (_, module, _) in IMPORTS
    }
    assert len(FILES) > 50


def test_every_part_has_its_place() -> None:
    assert {part_of(path) for path in FILES} - set(STEP) == {"data"}


def test_imports_run_one_way() -> None:
    wrong = []
    for part, (file, module, _) in IMPORTS:
        if not module.startswith("taming."):
            continue
        other = module.split(".")[1]
        if other == part:
            continue
        if part == "data":
            allowed = other == "runtime"  # models and data know nothing of each other
        elif other == "data":
            allowed = STEP[part] >= STEP["generation"]
        else:
            allowed = STEP[other] < STEP[part] or (part, other) in SIBLINGS
        if not allowed:
            wrong.append(f"{file} imports {module}")
    assert wrong == []


@pytest.mark.parametrize(
    ("library", "users"),
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
def test_libraries_stay_in_their_parts(library: str, users: set[str]) -> None:
    found = {part for part, (_, module, _) in IMPORTS if module.split(".")[0] == library}
    assert found <= users


@pytest.mark.parametrize("library", ["wandb", "tensorboard", "lpips", "huggingface_hub", "sklearn"])
def test_heavy_libraries_are_imported_when_they_are_used(library: str) -> None:
    early = [f for _, (f, module, top) in IMPORTS if top and module.split(".")[0] == library]
    assert early == []


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
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["[]", "[]", "[]"]
