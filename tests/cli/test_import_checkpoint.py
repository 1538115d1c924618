"""The command that imports: what it writes, what it says, and its errors."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_commands import Outcome, Run, fails, succeeds, write_compvis_checkpoint

import taming
from taming.discriminators import PatchDiscriminator
from taming.serialization import load_model_directory

COMMAND = {
    "source": "compvis_vqgan",
    "checkpoint": "last.ckpt",
    "config": "project.yaml",
    "output": "imported",
}


def call(run: Run, **changes: object) -> Outcome:
    arguments = {**COMMAND, **changes}
    return run("import_checkpoint", *(f"{name}={value}" for name, value in arguments.items()))


def test_a_checkpoint_becomes_a_model_directory(run: Run, tmp_path: Path) -> None:
    original = write_compvis_checkpoint(tmp_path)
    outcome = succeeds(call(run))
    num_used = len(torch.load(tmp_path / "last.ckpt", weights_only=False)["state_dict"]) - 1
    lines = outcome.out.splitlines()
    assert lines[:4] == [
        "read last.ckpt",
        f"  used {num_used} weights",
        "  dropped loss.perceptual_loss.lin0.model.1.weight: LPIPS has its own weights file",
        "  ignored entries: callbacks, epoch",
    ]
    assert lines[4].startswith("  ignored objects: pathlib.")
    assert lines[5:] == ["wrote imported"]
    imported = taming.VQGAN.from_pretrained(tmp_path / "imported")
    images = torch.rand(2, 3, 16, 16) * 2 - 1
    assert torch.equal(imported.encode(images), original.encode(images))
    with torch.no_grad():
        assert torch.equal(imported(images).reconstructions, original(images).reconstructions)


def test_a_reference_end_to_end(run: Run, shared: Path, tmp_path: Path) -> None:
    folder = shared / "reference" / "compvis" / "vqgan"
    outcome = succeeds(call(run, checkpoint=folder / "last.ckpt", config=folder / "project.yaml"))
    assert "wrote imported/discriminator" in outcome.out
    expected = load_file(folder / "expected.safetensors")
    vqgan = taming.VQGAN.from_pretrained(tmp_path / "imported")
    assert torch.equal(vqgan.encode(expected["images"]), expected["indices"])
    saved = load_model_directory(tmp_path / "imported" / "discriminator")
    scores = PatchDiscriminator.from_saved(saved)(expected["images"])
    torch.testing.assert_close(scores, expected["scores_real_eval"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["class", "depth"])
def test_a_reference_of_both_stages_end_to_end(
    run: Run, shared: Path, tmp_path: Path, name: str
) -> None:
    folder = shared / "reference" / "compvis" / f"transformer_{name}"
    files = {"checkpoint": folder / "last.ckpt", "config": folder / "project.yaml"}
    settings = {"num_classes": 10} if name == "class" else {}
    outcome = succeeds(call(run, source="compvis_transformer", **files, **settings))
    for part in ("tokenizer", "transformer"):
        assert f"wrote imported/{part}" in outcome.out
    assert ("wrote imported/condition_tokenizer" in outcome.out) == (name == "depth")
    expected = load_file(folder / "expected.safetensors")
    generator = taming.ImageGenerator.from_pretrained(tmp_path / "imported")
    condition = expected["prefix"][:, 0] if name == "class" else expected["condition_images"]
    images = generator.sample(2, condition, greedy=True)
    clamped = expected["greedy_images"].clamp(-1, 1)
    torch.testing.assert_close(images, clamped, rtol=0, atol=1e-4)


def test_a_reference_of_llamagen_end_to_end(run: Run, shared: Path, tmp_path: Path) -> None:
    folder = shared / "reference" / "llamagen"
    tokenizer = {"checkpoint": folder / "tokenizer" / "vq_ds.pt", "output": "vq"}
    config = folder / "tokenizer" / "args.json"
    succeeds(call(run, source="llamagen_tokenizer", config=config, **tokenizer))
    gpt = {"source": "llamagen_gpt", "checkpoint": folder / "gpt" / "c2i.pt"}
    config = folder / "gpt" / "args.json"
    outcome = succeeds(call(run, **gpt, config=config, tokenizer="vq"))
    assert "wrote imported/tokenizer" in outcome.out
    expected = load_file(folder / "gpt" / "expected.safetensors")
    generator = taming.ImageGenerator.from_pretrained(tmp_path / "imported")
    tokens = generator.sample_tokens(3, expected["labels"], greedy=True, guidance_scale=2.0)
    assert torch.equal(tokens, expected["greedy_tokens_cfg2"])
    assert generator.sample(1, expected["labels"][:1]).shape == (1, 3, 16, 16)
    outcome = call(run, **gpt, config="GPT-B", output="other")
    fails(outcome, "c2i.pt was not imported", "is (11, 64) instead of (1001, 768)")
    fails(call(run, **gpt, config=config, output="other", tokenizer="none"), "none does not exist")
    assert not (tmp_path / "other").exists()


def test_settings_are_for_their_source(run: Run, tmp_path: Path) -> None:
    write_compvis_checkpoint(tmp_path)
    fails(call(run, tokenizer="vq"), "tokenizer is a setting of llamagen_gpt, not of compvis_vqgan")
    outcome = call(run, num_classes=3, source="llamagen_gpt")
    fails(outcome, "num_classes is a setting of compvis_transformer, not of llamagen_gpt")
    outcome = call(run, source="compvis_transformer")
    fails(outcome, "the config describes VQModel, but this source imports Net2NetTransformer")


def test_errors_before_the_checkpoint_is_read(run: Run, tmp_path: Path) -> None:
    write_compvis_checkpoint(tmp_path)
    fails(run("import_checkpoint"), "checkpoint, config, output, source")
    fails(call(run, source="compvis"), "source='compvis' is unknown", "compvis_vqgan, compvis_tr")
    fails(call(run, checkpoint="nowhere.ckpt"), "nowhere.ckpt does not exist")
    fails(call(run, config="nowhere.yaml"), "config=nowhere.yaml does not exist")
    fails(call(run, config="f16-2048"), "neither a file nor a published model", "f16-1024")
    (tmp_path / "list.yaml").write_text("- 1\n")
    fails(call(run, config="list.yaml"), "list.yaml is not a configuration file")
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    fails(call(run, config="broken.yaml"), "broken.yaml cannot be read: while parsing")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo.png").touch()
    for output in ("full", "last.ckpt"):
        fails(call(run, output=output), f"output={output} exists and is not empty")


def test_what_is_no_checkpoint(run: Run, tmp_path: Path) -> None:
    write_compvis_checkpoint(tmp_path)
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    fails(call(run, checkpoint="photo.png"), "photo.png cannot be read as a PyTorch checkpoint")
    fails(call(run, source="llamagen_tokenizer", config="VQ-8"), "last.ckpt was not imported")
    assert not (tmp_path / "imported").exists()
    succeeds(call(run))  # the same command with the right file
    fails(call(run), "output=imported exists")


def test_an_imported_model_is_fine_tuned(run: Run, images: Path, tmp_path: Path) -> None:
    original = write_compvis_checkpoint(tmp_path)
    call(run)
    outcome = run(
        "train_vqgan", f"data.path={images}", "size=tiny", "trainer.max_steps=2",
        "data.val_fraction=0.25",
        "perceptual=none", "logger=csv", "finetune.checkpoint=imported", "finetune.mode=decoder",
        "run_dir=tuned", "report=false",
    )  # fmt: skip
    assert "has no discriminator. Training a new one" in succeeds(outcome).err
    tuned = taming.VQGAN.from_pretrained(tmp_path / "tuned")
    pictures = torch.rand(2, 3, 32, 32) * 2 - 1
    assert torch.equal(tuned.encode(pictures), original.encode(pictures))
    assert not torch.equal(tuned.last_layer, original.last_layer)
