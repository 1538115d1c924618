"""Evaluating, as a user runs it, with small models."""

import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from PIL import Image
from tiny_commands import TINY_EVALUATION, Outcome, Run, UntrainedLPIPS, fails, fails_before_writing
from tiny_images import write_images, write_maps
from tiny_inception import TinyInception
from tiny_models import tiny_generator

import taming
from taming.conditioning import (
    ClassLabel,
    Conditioning,
    ImageCondition,
    Unconditional,
)
from taming.data.readers import one_hot
from taming.evaluation import ImageClassifier
from taming.evaluation.distances import kernel_distance
from taming.generation import Guidance, ImageGenerator, SamplingOptions, speed
from taming.tokenizer import CellClasses
from taming.transformer.orders import to_tokens

SMALL = (*TINY_EVALUATION, "num_samples=6", "output_dir=out")


@pytest.fixture
def evaluate(run: Run, images: Path) -> Run:
    def call(*overrides: str) -> Outcome:
        return run("evaluate", f"data.path={images}", *SMALL, *overrides)

    return call


def untrained(
    vqgan_run: Path,
    conditioning: Conditioning,
    cells: CellClasses | taming.VQGAN | None = None,
    grid_size: tuple[int, int] = (2, 2),
) -> ImageGenerator:
    """A generator in the directory `generator`."""
    tokenizer = taming.VQGAN.from_pretrained(vqgan_run)
    generator = tiny_generator(conditioning, grid_size, cells, tokenizer)
    generator.save_pretrained("generator")
    return generator


def as_image(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.asarray(Image.open(path)).copy()).permute(2, 0, 1)[None] / 127.5 - 1


def good(outcome: Outcome) -> dict[str, Any]:
    assert outcome.status == 0, outcome.err
    return json.loads(Path("out/metrics.json").read_text())


def test_a_generator_of_classes(
    evaluate: Run,
    transformer_run: Path,
    tmp_path: Path,
    squeezenet: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs = []

    def kernel(*sets: torch.Tensor, paired: bool, **settings: Any) -> Any:
        pairs.append((len(sets[0]), paired))
        return kernel_distance(*sets, paired=paired, **settings)

    monkeypatch.setattr("taming.evaluation.judges.kernel_distance", kernel)
    for seed, name in enumerate(("cats", "dogs")):
        write_images(tmp_path / "my_val" / name, 2, seed=seed + 5)
    arguments = (f"checkpoint={transformer_run}", "data.val_path=my_val",
                 f"frechet.weights={squeezenet}", "frechet.resolution=32")  # fmt: skip
    outcome = evaluate(*arguments)
    metrics = good(outcome)

    # the likelihood is worked out anew, image by image
    generator = taming.ImageGenerator.from_pretrained(transformer_run)
    nats = []
    for label, name in enumerate(("cats", "dogs")):
        for path in sorted((tmp_path / "my_val" / name).iterdir()):
            tokens = to_tokens(generator.tokenizer.encode(as_image(path)))
            logits = generator.logits(tokens, torch.tensor([label]))
            nats.append(F.cross_entropy(logits[0].double(), tokens[0]).item())
    mean = sum(nats) / len(nats)
    assert metrics["likelihood"]["nats_per_token"] == pytest.approx(mean, rel=1e-6)
    assert metrics["likelihood"]["bits_per_token"] == pytest.approx(mean / math.log(2), rel=1e-6)
    assert metrics["likelihood"]["num_tokens"] == len(nats) * generator.num_tokens == 4 * 4
    assert "likelihood_without_condition" not in metrics  # it has not learned to do without

    assert pairs == [(4, True), (6, False), (6, False)]  # reconstructions, samples, training images
    assert metrics["validation_images"]["num_images"] == 4
    assert metrics["training_images"]["num_images"] == 6
    assert metrics["training_images"]["frechet_distance"] > 0
    (samples,) = metrics["samples"]
    assert [row["num_images"] for row in samples["by_class"]] == [3, 3]
    shares = [row["agreement"] for row in samples["by_class"]]
    assert samples["agreement"] == pytest.approx(sum(shares) / 2)
    assert samples["frechet_distance"] > 0
    assert metrics["sampling"]["temperature"] == 1.0
    assert metrics["checkpoint"] == str(transformer_run)
    assert metrics["data"]["resolution"] == 16
    assert metrics["frechet_features"] == "squeezenet1_1, last stage, images at 32×32"
    contract = metrics["contract"]
    assert contract["features"] == metrics["frechet_features"]
    assert contract["features_digest"] == hashlib.sha256(squeezenet.read_bytes()).hexdigest()
    assert contract["num_reference"] == 4 and contract["num_samples"] == 6
    assert contract["classifier_training"]["num_steps"] == 2
    assert contract["subject"] == str(transformer_run)
    assert contract["resolution"] == [16, 16] and contract["crop"] == "center"
    assert metrics["likelihood"]["bits_per_token_uniform"] == 4  # of 16 codes
    assert 0 <= metrics["likelihood"]["bits_per_token_frequencies"] <= 4
    assert 0 <= samples["classification_accuracy"] <= 1
    assert any("Caution: 4 images" in note for note in metrics["notes"])

    # what the classifier says of samples is what it says of those that `sample` draws
    classifier = ImageClassifier.from_pretrained("out/classifier")
    assert classifier.class_names == ("cats", "dogs")
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    named = classifier(generator.sample(6, labels, seed=0)).argmax(1)
    assert samples["agreement"] == pytest.approx((named == labels).double().mean().item())

    for part in ("bits per token", "wrote out/report.md", "classifier=out/classifier", "sample"):
        assert part in outcome.out, outcome.out
    assert Path("out/report.md").read_text() in outcome.out
    with Image.open("out/grid.png") as grid:
        assert grid.width == 3 * (18 * 6 + 2) + 2  # three samples a class, framed, enlarged

    again = good(evaluate(*arguments, "classifier=out/classifier", "batch_size=3"))
    assert again["contract"] == contract  # features of real images now come from the cache
    assert len(list(Path("outputs/features").iterdir())) == 4  # features and thumbnails
    for name in ("frechet_distance", "kernel_distance"):
        assert again["training_images"][name] == pytest.approx(metrics["training_images"][name])
    assert again["samples"][0]["agreement"] == samples["agreement"]
    assert again["samples"][0]["frechet_distance"] == pytest.approx(
        samples["frechet_distance"], rel=1e-3
    )


def test_without_classes_and_at_another_size_than_the_tokenizers(
    evaluate: Run, run: Run, vqgan_run: Path
) -> None:
    untrained(vqgan_run, Unconditional(), grid_size=(2, 3))
    metrics = good(evaluate("checkpoint=generator", "max_images=2"))
    assert metrics["resolution"] == [16, 24]
    assert metrics["likelihood"]["num_tokens"] == 2 * 6
    assert metrics["samples"] == [{"guidance_scale": 1.0, "num_images": 6}]
    assert metrics["contract"]["features"] is None and metrics["contract"]["num_reference"] == 2
    assert any("has no classes" in note for note in metrics["notes"])
    assert any("frechet.weights" in note for note in metrics["notes"])
    assert not Path("out/classifier").exists()
    assert Path("out/grid.png").is_file()
    assert "data.resolution" not in run("sample", "checkpoint=generator", "num_images=2").out


def test_several_guidance_scales(evaluate: Run, vqgan_run: Path) -> None:
    generator = untrained(vqgan_run, ClassLabel(2, 0.3, ("cats", "dogs")))
    metrics = good(
        evaluate("checkpoint=generator", "guidance_scales=[1.0,4.0]", "guidance_schedule=linear")
    )
    assert [row["guidance_scale"] for row in metrics["samples"]] == [1.0, 4.0]
    assert metrics["sampling"]["guidance"]["schedule"] == "linear"
    with_class, without = (metrics[name] for name in ("likelihood", "likelihood_without_condition"))
    assert with_class["num_tokens"] == without["num_tokens"]
    assert with_class["nats_per_token"] != without["nats_per_token"]
    # a grid each, of the same seeds: only the guidance is another
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    options = SamplingOptions(seed=0, guidance=Guidance(4.0, "linear"))
    guided = generator.sample(6, labels, options=options)
    named = ImageClassifier.from_pretrained("out/classifier")(guided).argmax(1)
    agreement = (named == labels).double().mean().item()
    assert metrics["samples"][1]["agreement"] == pytest.approx(agreement)
    grids = {path.name for path in Path("out").glob("grid*.png")}
    assert grids == {"grid_guidance_1.png", "grid_guidance_4.png"}
    metrics = good(evaluate("checkpoint=generator", "guidance_scale=4.0"))  # one scale, one grid
    assert [row["guidance_scale"] for row in metrics["samples"]] == [4.0]
    assert [path.name for path in Path("out").glob("grid*.png")] == ["grid.png"]


def test_scales_that_share_a_compiled_step_are_counted_together(
    evaluate: Run, vqgan_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    untrained(vqgan_run, ClassLabel(2, 0.3, ("cats", "dogs")))
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(speed, "compiles", lambda *sizes: bool(calls.append(sizes)))
    scales = "guidance_scales=[2.0,1.0,4.0]"
    metrics = good(evaluate("checkpoint=generator", scales, "batch_size=3"))
    two, one = ("cpu", 6, 2 * 2 * 4), ("cpu", 3, 2 * 4)  # two batches of four tokens for each scale
    assert calls == [two, one, two]
    assert metrics["sampling"]["compile"] == [False, False, False]


def test_condition_images(run: Run, vqgan_run: Path, tmp_path: Path, squeezenet: Path) -> None:
    write_images(tmp_path / "pairs" / "image", 8)
    ramp = torch.arange(256).reshape(16, 16)
    maps = [ramp.add(index).remainder(3).to(torch.uint8) for index in range(8)]
    write_maps(tmp_path / "pairs" / "label", (classes.numpy() for classes in maps))
    shutil.copytree(tmp_path / "pairs", tmp_path / "val_pairs")
    cells = CellClasses(3, 8, 16)
    conditioning = ImageCondition(3, cells.grid_size, unlabelled=None)
    generator = untrained(vqgan_run, conditioning, cells)
    arguments = ("evaluate", "checkpoint=generator", *SMALL, f"frechet.weights={squeezenet}",
                 "frechet.resolution=32")  # fmt: skip
    paired = ("data=paired", "data.path=pairs", "data.val_path=val_pairs", "data.num_classes=3",
              "data.label_map.unlabelled=null")  # fmt: skip
    outcome = run(*arguments, *paired)
    metrics = good(outcome)
    conditions = one_hot(torch.stack(maps), 3)
    files = sorted((tmp_path / "pairs" / "image").iterdir())
    tokens = to_tokens(generator.tokenizer.encode(torch.cat([as_image(file) for file in files])))
    logits = generator.logits(tokens, conditions)
    nats = F.cross_entropy(logits.double().flatten(0, 1), tokens.flatten()).item()
    assert metrics["likelihood"]["nats_per_token"] == pytest.approx(nats, rel=1e-6)
    assert metrics["samples"][0]["num_images"] == 6  # of eight conditions
    assert metrics["samples"][0]["frechet_distance"] > 0
    assert "agreement" not in metrics["samples"][0]
    next_step = (
        "checkpoint=generator conditions.path=val_pairs conditions.subfolder=label num_images=16"
    )
    assert next_step in outcome.out


def test_a_tokenizer(evaluate: Run, vqgan_run: Path) -> None:
    outcome = evaluate(f"checkpoint={vqgan_run}")
    numbers = good(outcome)
    metrics = json.loads((vqgan_run / "result.json").read_text())["metrics"]
    for name in ("psnr", "ssim", "codebook_usage", "codebook_perplexity"):
        assert numbers["reconstructions"][name] == pytest.approx(metrics[f"val/{name}"], rel=1e-4)
    assert "samples" not in numbers
    assert not Path("out/grid.png").exists()
    assert "reconstruct" in outcome.out
    assert "held out other" not in outcome.err
    outcome = evaluate(f"checkpoint={vqgan_run}", "data.val_fraction=0.5", "output_dir=other")
    assert "held out other images (data.val_fraction=0.25)" in outcome.err


def test_near_duplicates(evaluate: Run, vqgan_run: Path, images: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "my_val" / "cats", 3, seed=7)
    twin = min((images / "cats").iterdir())
    shutil.copy(twin, tmp_path / "my_val" / "cats" / "again.png")
    arguments = f"checkpoint={vqgan_run}", "data.val_path=my_val"
    metrics = good(evaluate(*arguments))
    row = metrics["validation_images"]
    assert (row["num_images"], row["num_near_duplicates"]) == (4, 1)
    assert row["num_training_images_searched"] == 16
    (note,) = [note for note in metrics["notes"] if "near-duplicates" in note]
    twin_name = f"cats/{twin.name}"
    assert "1 of 4 validation images (25.0%) are near-duplicates of the 16 training" in note
    assert f"such as cats/again.png of {twin_name}" in note
    table = Path("out/near_duplicates.csv").read_text().splitlines()
    assert table[1:] == [f"cats/again.png,{twin_name},1.0000,0"]
    assert Path("out/near_duplicates.png").is_file()

    remainder = good(evaluate(*arguments, "near_duplicates=leave_out"))
    row = remainder["validation_images"]
    assert (row["num_images"], row["num_near_duplicates"]) == (3, 1)
    assert remainder["reconstructions"]["num_images"] == remainder["contract"]["num_reference"] == 3
    assert remainder["contract"]["reference_digest"] != metrics["contract"]["reference_digest"]
    assert any("and were left out" in note for note in remainder["notes"])
    ignored = good(evaluate(*arguments, "near_duplicates=ignore"))
    assert "num_near_duplicates" not in ignored["validation_images"]
    assert ignored["contract"]["digest"] == metrics["contract"]["digest"]
    (tmp_path / "my_val" / "cats" / "000.png").unlink()
    (tmp_path / "my_val" / "cats" / "001.png").unlink()
    fails(evaluate(*arguments, "near_duplicates=leave_out"), "1 of 2 validation", "too few remain")


def test_images_that_were_set_aside(evaluate: Run, transformer_run: Path, vqgan_run: Path) -> None:
    fails(evaluate(f"checkpoint={transformer_run}", "part=test"), "The data have no test images")
    on_these = "selected by val/loss on these images"
    metrics = good(evaluate(f"checkpoint={transformer_run}"))
    assert on_these in metrics["notes"][0] and metrics["contract"]["part"] == "validation"
    for run in (transformer_run, vqgan_run):
        settings = OmegaConf.load(run / "config.yaml")
        OmegaConf.update(settings, "data.test_fraction", 0.2)
        OmegaConf.save(settings, run / "config.yaml")
    metrics = good(evaluate(f"checkpoint={transformer_run}", "data.test_fraction=0.2"))
    assert "on the validation images, and not on these" in metrics["notes"][0]
    assert metrics["contract"]["part"] == "test" and "validation_images" not in metrics
    assert metrics["test_images"]["num_images"] == metrics["contract"]["num_reference"] == 3
    report = Path("out/report.md").read_text()
    assert "| reconstructions of the test images" in report and "validation images |" not in report
    metrics = good(
        evaluate(f"checkpoint={transformer_run}", "data.test_fraction=0.2", "part=validation")
    )
    assert on_these in metrics["notes"][0]


def test_lpips_and_a_judge_that_is_the_network_of_the_training(
    evaluate: Run, vqgan_run: Path, squeezenet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taming.losses.LPIPSLoss", UntrainedLPIPS)
    config = OmegaConf.load(vqgan_run / "config.yaml")
    judges = (f"frechet.weights={squeezenet}", "frechet.resolution=32")
    metrics = good(evaluate(f"checkpoint={vqgan_run}", "lpips=vgg", "max_images=3", *judges))
    assert metrics["contract"]["lpips"] == "vgg"
    outcome = evaluate(f"checkpoint={vqgan_run}", "lpips=alex")
    fails(outcome, "LPIPS needs images of 31 pixels or more")
    low, high = metrics["reconstructions"]["lpips_interval"]
    assert 0 < low < metrics["reconstructions"]["lpips"] < high
    assert "please the network" not in " ".join(metrics["notes"])
    OmegaConf.update(config, "perceptual", {"backbone": "squeezenet1_1"})
    OmegaConf.save(config, vqgan_run / "config.yaml")
    for place in ("", "/model", "/checkpoints/last.ckpt"):
        metrics = good(evaluate(f"checkpoint={vqgan_run}{place}", "max_images=3", *judges))
        assert "was trained to please the network that judges here, squeeze" in metrics["notes"][0]
    OmegaConf.update(config, "perceptual", {"backbone": "vgg"})
    OmegaConf.save(config, vqgan_run / "config.yaml")
    metrics = good(evaluate(f"checkpoint={vqgan_run}", "lpips=vgg", "max_images=3", *judges))
    assert "the network that judges here, vgg: its numbers are" in metrics["notes"][0]
    shutil.copytree(vqgan_run / "model", "alone")
    metrics = good(evaluate("checkpoint=alone", "max_images=3", *judges))
    assert "not known whether the tokenizer was trained to please" in metrics["notes"][0]


def test_samples_of_another_program_are_measured_as_the_generators_own(
    evaluate: Run, run: Run, vqgan_run: Path, squeezenet: Path
) -> None:
    untrained(vqgan_run, ClassLabel(2, 0.0, ("cats", "dogs")))
    judged = (f"frechet.weights={squeezenet}", "frechet.resolution=32", "max_training_images=null")
    own = good(evaluate("checkpoint=generator", *judged))
    assert run("sample", "checkpoint=generator", "num_images=6", "classes=[0,0,0,1,1,1]",
               "output_dir=drawn").status == 0  # fmt: skip
    again = (*judged, "classifier=out/classifier")
    metrics = good(evaluate("samples=drawn/samples.npz", *again))
    (own_row,), (row,) = own["samples"], metrics["samples"]
    for name in ("agreement", "frechet_distance", "kernel_distance", "classification_accuracy",
                 "training_distance", "close_to_training"):  # fmt: skip
        assert row[name] == pytest.approx(own_row[name], rel=1e-4, abs=1e-6), name
    assert "likelihood" not in metrics and "reconstructions" not in metrics
    assert metrics["contract"]["digest"] == own["contract"]["digest"]
    # the same pixels as files: the same digest, but no classes that the files would say
    pixels = np.load("drawn/samples.npz")["arr_0"]
    Path("files").mkdir()
    for number, picture in enumerate(pixels):
        Image.fromarray(picture).save(f"files/{number}.png")
    files = good(evaluate("samples=files", *again))
    assert files["contract"]["subject_digest"] == metrics["contract"]["subject_digest"]
    assert files["samples"][0]["frechet_distance"] == pytest.approx(row["frechet_distance"])
    assert "agreement" not in files["samples"][0]
    # other sizes are resized to that of the data
    np.savez_compressed("large.npz", arr_0=pixels.repeat(2, 1).repeat(2, 2))
    large = good(evaluate("samples=large.npz", "data.resolution=16", *again))
    assert large["samples"][0]["num_images"] == 6
    assert large["contract"]["samples_resized_from"] == "32×32"
    assert "samples_resized_from" not in files["contract"]


def test_a_reference_file(evaluate: Run, vqgan_run: Path, squeezenet: Path) -> None:
    untrained(vqgan_run, Unconditional())
    judged = (f"frechet.weights={squeezenet}", "frechet.resolution=32")
    own = good(evaluate("checkpoint=generator", *judged, "write_statistics=ours.npz"))
    outcome = evaluate("checkpoint=generator", *judged, "reference=ours.npz")
    assert "wrote ours.npz" not in outcome.out
    metrics = good(outcome)
    for rows in (metrics["samples"], [metrics["reconstructions"]]):  # to the same images
        assert rows[0]["reference_frechet_distance"] == pytest.approx(
            rows[0]["frechet_distance"], rel=1e-4
        )
    assert metrics["validation_images"]["reference_frechet_distance"] == pytest.approx(0, abs=1e-4)
    assert "Fréchet distance to the reference file" in outcome.out
    assert "does not equal" not in outcome.out + outcome.err
    contract = metrics["contract"]
    digest = hashlib.sha256(Path("ours.npz").read_bytes()).hexdigest()
    assert contract["reference_file_digest"] == digest
    assert contract["reference_file_program"] == "taming"
    assert contract["reference_file_resize"] == contract["features_resize"]
    assert contract["digest"] != own["contract"]["digest"]
    Path("ours.npz").rename("moved.npz")
    moved = good(evaluate("checkpoint=generator", *judged, "reference=moved.npz"))
    assert moved["contract"]["digest"] == contract["digest"]

    np.savez("plain.npz", **{name: np.load("moved.npz")[name] for name in ("mu", "sigma")})
    outcome = evaluate("checkpoint=generator", *judged, "reference=plain.npz")
    metrics = good(outcome)
    assert "note: plain.npz does not say which program wrote it" in outcome.err
    assert any("plain.npz does not say" in note for note in metrics["notes"])
    assert any("50,000 samples" in note for note in metrics["notes"])
    for overrides, parts in (
        ((*judged, "reference=plain.npz", "reference_program=edm"), ["features of Inception"]),
        ((*judged, "reference=plain.npz", "reference_program=none"), ["reference_program"]),
        (("reference=plain.npz",), ["plain.npz", "frechet.weights"]),
        (("reference=none.npz",), ["reference=none.npz does not exist"]),
        (("write_statistics=ours.npz",), ["frechet.weights"]),
        ((*judged, "write_statistics=ours"), [".npz or .pt"]),
    ):
        shutil.rmtree("out", ignore_errors=True)
        fails_before_writing(evaluate("checkpoint=generator", *overrides), *parts)


def test_a_reference_batch_of_adm(
    evaluate: Run, vqgan_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*, backbone: str, weights: str, resolution: int) -> TinyInception:
        return TinyInception()

    monkeypatch.setattr("taming.evaluation.load_feature_network", load)
    untrained(vqgan_run, Unconditional())
    Path("tiny").touch()
    settings = ("checkpoint=generator", "frechet.weights=tiny", "frechet.backbone=inception")
    good(evaluate(*settings, "write_statistics=ours.npz"))
    arrays = dict(np.load("ours.npz"))
    assert arrays["mu_s"].shape == (8,) and arrays["arr_0"].shape == (4, 16, 16, 3)
    network = json.loads(str(arrays.pop("network")))
    assert network["description"] == "tiny"
    np.savez("VIRTUAL_ours.npz", **arrays)  # as ADM's files
    metrics = good(evaluate(*settings, "reference=VIRTUAL_ours.npz"))
    (samples,), held_out = metrics["samples"], metrics["validation_images"]
    assert samples["reference_fid"] == pytest.approx(samples["fid"], rel=1e-3)
    assert samples["reference_sfid"] > 0
    for name in ("reference_fid", "reference_sfid"):
        assert held_out[name] == pytest.approx(0, abs=1e-4 * samples[name])
    assert held_out["adm_precision"] == held_out["adm_recall"] == 1
    assert samples["adm_inception_score"] >= 1
    contract = metrics["contract"]
    assert contract["reference_file_program"] == "adm"
    assert contract["reference_file_images"] == 4
    report = Path("out/report.md").read_text()
    assert "sFID to the reference file" in report and "recall (ADM)" in report
    again = good(evaluate(*settings, "reference=VIRTUAL_ours.npz"))  # with cached features
    for name, number in held_out.items():
        assert again["validation_images"][name] == pytest.approx(number, abs=1e-6), name


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (("samples=none.npz",), ["none.npz", "does not exist"]),
        (("samples=empty.npz",), ["arr_0", "is missing"]),
        (("samples=wrong.npz",), ["arr_0", "float64"]),
        (("samples=text.npz",), ["cannot be read"]),
        (("samples=classes.npz",), ["arr_1", "0 to 1"]),
        ((), ["checkpoint=PATH", "samples=PATH"]),
        (("samples=good.npz", "frechet.weights=none.pth"), ["none.pth", "does not exist"]),
        (("samples=good.npz", "frechet.weights=text.npz", "frechet.backbone=inception"),
         ["text.npz", "damaged"]),
        (("samples=good.npz", "frechet.weights=text.npz", "frechet.backbone=resnet1"),
         ["resnet1", "inception"]),
    ],
)  # fmt: skip
def test_samples_that_cannot_be_measured(
    evaluate: Run, overrides: tuple[str, ...], parts: list[str]
) -> None:
    pixels = np.zeros((2, 16, 16, 3), np.uint8)
    np.savez("good.npz", pixels)
    np.savez("empty.npz", a=pixels)
    np.savez("wrong.npz", pixels / 2)
    np.savez("classes.npz", pixels, np.array([0, 2]))
    Path("text.npz").write_text("nothing")
    fails_before_writing(evaluate(*overrides), *parts)


def test_evaluations_of_different_protocols_are_not_in_one_table(
    evaluate: Run, run: Run, vqgan_run: Path, tmp_path: Path
) -> None:
    for name, count in (("a", 4), ("b", 4), ("c", 2)):
        overrides = (f"checkpoint={vqgan_run}", f"max_images={count}", f"output_dir=all/{name}")
        assert evaluate(*overrides).status == 0
    outcome = run("compare", "runs=all")
    assert outcome.status == 0, outcome.err
    text = Path("all/table.md").read_text()
    first, second = text.split("Not comparable with the first table: ")
    assert "| a " in first and "| b " in first and "| c " not in first
    assert "num_reference 2, not 4" in second and "| c " in second
    assert "psnr" in first


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ("classifier=transformer", ["generator", "classifier"]),
        ("data.resolution=32", ["32×32", "data.resolution=[16,16], or leave it out"]),
        ("num_samples=1", ["num_samples", "2, not 1"]),
        ("guidance_scales=[2.0]", ["dropout"]),
        ("guidance_scales=2.0", ["guidance_scales", "array"]),
        ("classifier_training.num_steps=0", ["num_steps"]),
        ("data.resolution=[16]", ["data.resolution should be a valid integer"]),
        ("frechet.resolution=16", ["frechet.resolution", "32"]),
    ],
)
def test_what_cannot_be_evaluated_is_said_before_anything_is_written(
    evaluate: Run, transformer_run: Path, squeezenet: Path, overrides: str, parts: list[str]
) -> None:
    settings = (f"checkpoint={transformer_run}", f"frechet.weights={squeezenet}", overrides)
    fails_before_writing(evaluate(*settings), *parts)
