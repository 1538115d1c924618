"""Every command in the README and in the pages of docs/ works, in their order, made small."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_commands import (
    TINY_EVALUATION,
    TINY_TRANSFORMER,
    TINY_VQGAN,
    Run,
    write_compvis_checkpoint,
)
from tiny_images import write_images, write_pairs
from torchvision.models import squeezenet1_1

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [
    README,
    *(ROOT / "docs" / f"{n}.md" for n in ("training", "report", "data", "settings", "sampling")),
    *(ROOT / "docs" / f"{n}.md" for n in ("evaluation", "imports", "speed")),
]
# run by .ci/run, tests/benchmarks or other tests of commands, not ours, or with weights to download
ELSEWHERE = {
    "make demo",
    "make test",
    "source .venv/bin/activate",
    "curl -L -o squeezenet.pth https://download.pytorch.org/models/squeezenet1_1-b8a52dc0.pth",
    "python scripts/train_vqgan.py data.path=my_images trainer=ddp",
    "python scripts/train_vqgan.py data.path=my_images run_dir=outputs/my_vqgan resume=auto",
    "torchrun --nproc-per-node=4 scripts/sample.py checkpoint=outputs/my_transformer "
    "num_images=50000 batch_size=64",
    "python scripts/evaluate.py checkpoint=outputs/my_vqgan data.path=my_images lpips=vgg",
    "python scripts/evaluate.py samples=outputs/my_samples/samples.npz data.path=my_images "
    "frechet.backbone=inception frechet.weights=weights-inception-2015-12-05-6726825d.pth "
    "reference=VIRTUAL_imagenet256_labeled.npz",
    "python -m benchmarks.autoencoder",
    "python -m benchmarks.transformer",
}


def commands() -> list[str]:
    text = "".join(page.read_text() for page in PAGES)
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in dict.fromkeys(lines) if line and line not in ELSEWHERE]


def test_readme_commands(run: Run, images: Path, tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        write_images(tmp_path / "my images, size=64" / name, 8)
    torch.save(squeezenet1_1(weights=None).state_dict(), tmp_path / "squeezenet.pth")
    write_compvis_checkpoint(tmp_path)
    write_pairs(tmp_path / "my_scenes", 8)
    names = [path.relative_to(images).as_posix() for path in images.rglob("*.png")]
    rows = ["file_name,label", *(f"{name},{i % 2}" for i, name in enumerate(names))]
    (images / "labels.csv").write_text("\n".join(rows))
    rows = ["file_name,video", *(f"{name},{i // 2}" for i, name in enumerate(names))]
    (images / "metadata.csv").write_text("\n".join(rows))
    (tmp_path / "my_numbers").mkdir()
    for number in range(8):
        np.save(tmp_path / "my_numbers" / f"{number}.npy", np.full((32, 32, 4), 257 * number))
    finished_commands = set()
    for command in commands():
        python, script, *arguments = shlex.split(command)
        assert python == "python", command
        name = script.removeprefix("scripts/").removesuffix(".py")
        assert (ROOT / script).is_file(), command
        if name == "sample":
            arguments.append("num_images=4")
        elif name == "encode_dataset":
            arguments += ["data.loader.num_workers=0", "data.val_fraction=0.25"]
        elif name in ("import_checkpoint", "compare", "report", "make_shards"):
            pass  # of the tiny checkpoint, of the tiny runs, of the tiny images
        elif name == "evaluate":
            arguments += TINY_EVALUATION
        elif name == "reconstruct":
            arguments.append("max_images=2")
        elif any(a.startswith("resume=") for a in arguments):
            arguments.append("trainer.max_steps=4")
        else:
            tiny = TINY_VQGAN if name == "train_vqgan" else TINY_TRANSFORMER
            if "experiment=flowers64" in arguments:  # its quantizer has levels
                tiny = tuple(a for a in tiny if "codebook_size" not in a)
            arguments += [*tiny, "data.val_fraction=0.25", f"run_dir=runs/{len(finished_commands)}"]
            arguments += [a for a in shlex.split(command) if a.startswith("run_dir=")]
            if name == "train_vqgan":
                # 32 pixels: SqueezeNet, which the features loss uses, needs 17
                arguments.append("data.resolution=32")
                if not any("perceptual" in a for a in arguments):
                    arguments += ["perceptual.pretrained=false"]  # no download in a test
        outcome = run(name, *arguments)
        assert outcome.status == 0, f"{command}\n{outcome.err}"
        finished_commands.add(command)
    assert len(finished_commands) >= 10
    assert (tmp_path / "outputs" / "my_samples" / "samples.png").is_file()

    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, torch.Tensor] = {}
    exec(example, names)  # the README's own text
    assert names["reconstructions"].shape == names["images"].shape
    assert names["samples"].shape == (16, 3, 32, 32)


def test_settings_in_the_tables_exist() -> None:
    table = (ROOT / "docs" / "settings.md").read_text()
    names = re.findall(r"`([a-z_]+(?:\.[a-z_]+)+(?<!\.yaml))`", table)
    assert len(names) > 15
    configs = "\n".join(p.read_text() for p in (ROOT / "configs").rglob("*.yaml"))
    for name in names:
        assert f"{name.rsplit('.', 1)[-1]}:" in configs, name


def test_pictures_exist() -> None:
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README.read_text())
    assert len(pictures) == 3
    for picture in pictures:
        assert (ROOT / picture).is_file(), picture


def test_site_builds_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    home = (tmp_path / "index.html").read_text()
    assert 'src="digits.png"' in home and 'href="settings/"' in home
    assert len(README.read_text().splitlines()) <= 120
