"""The report, of runs that are written and not trained; and at the end of a training."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_commands import TINY_TRANSFORMER, TINY_VQGAN, Run, composed, fails, succeeds
from tiny_models import tiny_generator, tiny_vqgan

from taming.cli.saved_config import write_config
from taming.conditioning import ClassLabel

SECTIONS_1 = ["overview", "health", "curves", "reconstructions", "codebook", "codes-of-images"]
SECTIONS_2 = [*SECTIONS_1, "samples", "attention", "surprise", "neighbours"]
METRICS = "step,train/loss,val/loss,val/gap\n2,2.0,,\n4,1.5,1.75,0.25\n"


@pytest.fixture
def vqgan(images: Path, folder_overrides: tuple[str, ...]) -> Path:
    return write_run("vqgan", "train_vqgan", *folder_overrides, *TINY_VQGAN)


def write_run(name: str, command: str, *overrides: str) -> Path:
    """A run directory as a training leaves it, with a model that nobody trained."""
    config = composed(command, *overrides, f"run_dir={name}")
    write_config(config)
    Path(name, "metrics.csv").write_text(METRICS)
    tokenizer = tiny_vqgan(resolution=16)
    if command == "train_vqgan":
        tokenizer.save_pretrained(Path(name, "model"))
    else:
        conditioning = ClassLabel(2, class_names=["cats", "dogs"])
        generator = tiny_generator(conditioning, (8, 8), tokenizer=tokenizer)
        generator.save_pretrained(Path(name, "model"))
    return Path(name)


def sections(page: Path) -> list[str]:
    text = page.read_text()
    assert len(text) < 15e6
    # nothing is fetched: Plotly's own program mentions addresses, the rest has none
    rest = text.replace(max(re.findall(r"<script>(.*?)</script>", text, re.DOTALL), key=len), "")
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", rest) and "http" not in rest
    return re.findall(r'<section id="(.*?)">', text)


def test_a_stage_1_run(run: Run, vqgan: Path) -> None:
    outcome = succeeds(run("report", "runs=vqgan"))
    assert "wrote vqgan/report.html" in outcome.out
    page = Path("vqgan/report.html")
    assert sections(page) == [*SECTIONS_1[:3], "reconstructions", "codebook", "codes-of-images",
                              "configuration"]  # fmt: skip
    assert "12 images to train and 4 to validate" in page.read_text()
    assert Path("vqgan/curves.png").is_file()


def test_a_run_with_a_setting_of_the_wrong_type(run: Run, vqgan: Path) -> None:
    config = vqgan / "config.yaml"
    config.write_text(config.read_text().replace("val_fraction: ", "val_fraction: x"))
    succeeds(run("report", "runs=vqgan"))
    assert "val_fraction should be a valid number" in (vqgan / "report.html").read_text()


def test_a_comparison_of_generators_one_without_its_data(
    run: Run, vqgan: Path, folder_overrides: tuple[str, ...]
) -> None:
    settings = ("vqgan=vqgan", *folder_overrides, *TINY_TRANSFORMER, "data.channels=3")
    write_run("a", "train_transformer", *settings)
    lost = write_run("b", "train_transformer", *settings, "seed=3")
    config = lost / "config.yaml"
    config.write_text(config.read_text().replace("my_images", "lost"))
    outcome = succeeds(run("report", "runs=[a,b]", "output=both.html"))
    assert "wrote both.html" in outcome.out
    text = Path("both.html").read_text()
    assert sorted(sections(Path("both.html"))) == sorted([*SECTIONS_2, "configuration"])
    assert "the data could not be opened" in text and "lost does not exist" in text
    for title, count in {
        "reconstructions": 1,
        "neighbours": 1,
        "samples": 2,
        "attention": 2,
    }.items():
        section = text.split(f'<section id="{title}">')[1].split("</section>")[0]
        assert section.count("<h3>") == count, title
    differing = text.split("different settings")[1].split("</table>")[0]
    assert "<th>seed</th>" in differing and "run_dir" not in differing


def test_a_run_that_has_no_model_yet(run: Run, vqgan: Path) -> None:
    (vqgan / "model").rename("elsewhere")
    succeeds(run("report", "runs=vqgan", "output=out/page.html"))
    assert sections(Path("out/page.html")) == ["overview", "health", "curves", "configuration"]
    assert "The report shows no pictures of the model" in Path("out/page.html").read_text()


def test_data_of_a_stranger_are_not_opened(run: Run, vqgan: Path) -> None:
    config = vqgan / "config.yaml"
    config.write_text(config.read_text().replace("taming.data.ImageFiles", "os.system"))
    succeeds(run("report", "runs=vqgan"))
    text = Path("vqgan/report.html").read_text()
    assert "contains data.source._target_=os.system, which does not belong to this version" in text


def test_a_report_is_not_written_through_a_link(run: Run, vqgan: Path) -> None:
    Path("precious").write_text("precious")
    for name in ("report.html", "curves.png"):
        (vqgan / name).unlink(missing_ok=True)
        (vqgan / name).symlink_to(Path("precious").absolute())
    succeeds(run("report", "runs=vqgan"))
    assert Path("precious").read_text() == "precious"
    assert (vqgan / "curves.png").is_file() and sections(vqgan / "report.html")


def test_what_is_no_run_is_refused(run: Run, images: Path) -> None:
    fails(run("report", "runs=nowhere"), "runs=nowhere does not exist")
    fails(run("report", "runs=my_images"), "my_images is not a run directory")
    fails(run("report", "runs=[my_images,none]"), "my_images is not a run directory")
    fails(run("report", "runs=[]"), "runs is empty")


def test_a_training_ends_with_a_report(
    run: Run, images: Path, folder_overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (*folder_overrides, *TINY_VQGAN, "perceptual=none", "report=true")
    outcome = succeeds(run("train_vqgan", *settings, "run_dir=vqgan"))
    assert "report.html, checkpoints/last.ckpt" in outcome.out
    assert "reconstructions" in sections(Path("vqgan/report.html"))

    def broken(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr("taming.report.write.write_report", broken)
    outcome = succeeds(run("train_vqgan", "resume=vqgan", "trainer.max_steps=3"))
    assert "was not written (OutOfMemoryError: no room)" in outcome.err
    assert Path("vqgan/model/config.json").is_file()
