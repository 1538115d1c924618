"""LlamaGen's GPT: our model reproduces theirs, and every weight is used or dropped."""

from pathlib import Path
from typing import Any

import foreign_keys
import pytest
import reference_check
import torch
from foreign_keys import Shapes
from reference_check import check, read_config, reference

from taming.generation import ImageGenerator
from taming.interop import SOURCES, Imported
from taming.runtime.errors import UserError
from taming.serialization import read_foreign_checkpoint, save_model_directory
from taming.transformer import GPT
from taming.transformer.orders import to_indices

convert = SOURCES["llamagen_gpt"].convert


def import_reference(shared: Path, **settings: Any) -> tuple[Imported, dict[str, torch.Tensor]]:
    checkpoint = shared / "reference" / "llamagen" / "gpt" / "c2i.pt"
    return reference("llamagen_gpt", checkpoint, "args.json", **settings)


def test_reference_of_llamagen_gpt(shared: Path) -> None:
    imported, expected = import_reference(shared)
    generator = ImageGenerator.from_saved(imported.model)
    labels = expected["labels"]
    check("logits", generator.logits(expected["tokens"], labels), expected["logits"])
    check("logits without class", generator.logits(expected["tokens"]), expected["null_logits"])
    greedy = generator.sample_tokens(3, labels, greedy=True)
    check("greedy tokens", greedy, expected["greedy_tokens"])
    guided = generator.sample_tokens(3, labels, greedy=True, guidance_scale=2.0)
    check("greedy tokens, guidance 2", guided, expected["greedy_tokens_cfg2"])
    assert not torch.equal(guided, greedy)
    assert imported.notes == [
        "used 18 weights",
        "the grid is 8 × 8 because block_size is 64",
        "the generator gives tokens only; give tokenizer=DIR for images",
    ]
    with pytest.raises(UserError, match=r"no tokenizer.*tokenizer=DIR"):
        generator.sample(3, labels)


def test_with_the_tokenizer_it_gives_images(shared: Path, tmp_path: Path) -> None:
    checkpoint = shared / "reference" / "llamagen" / "tokenizer" / "vq_ds.pt"
    tokenizer, _ = reference("llamagen_tokenizer", checkpoint, "args.json")
    save_model_directory(tokenizer.model, tmp_path / "tokenizer")
    imported, expected = import_reference(shared, tokenizer=tmp_path / "tokenizer")
    generator = ImageGenerator.from_saved(imported.model)
    assert generator.tokenizer is not None
    images = generator.sample(3, expected["labels"], greedy=True)
    decoded = generator.tokenizer.decode(to_indices(expected["greedy_tokens"], (8, 8)))
    assert images.shape == (3, 3, 16, 16)  # this tokenizer halves once
    torch.testing.assert_close(images, decoded.clamp(-1, 1), rtol=0, atol=1e-5)
    assert not any("tokens only" in note for note in imported.notes)

    config = read_config(checkpoint.with_name("args.json")) | {"codebook_size": 64}
    content, _ = read_foreign_checkpoint(checkpoint)
    content["model"]["quantize.embedding.weight"] = torch.zeros(64, 8)
    other = SOURCES["llamagen_tokenizer"].convert(content, config)
    save_model_directory(other.model, tmp_path / "other")
    with pytest.raises(UserError, match="has 64 codes, but the transformer has 128"):
        import_reference(shared, tokenizer=tmp_path / "other")
    with pytest.raises(UserError, match="nowhere does not exist"):
        import_reference(shared, tokenizer=tmp_path / "nowhere")


SIZES = {  # layers, width, width inside the feed-forward networks
    "GPT-B": (12, 768, 2048),
    "GPT-L": (24, 1024, 2816),
    "GPT-XL": (36, 1280, 3584),
    "GPT-XXL": (48, 1536, 4096),
    "GPT-3B": (24, 3200, 8704),
}
MILLIONS = {"GPT-B": 111, "GPT-L": 343, "GPT-XL": 775, "GPT-XXL": 1411, "GPT-3B": 3097}


def on_meta(shapes: Shapes, config: str | dict[str, Any], **entries: object) -> Imported:
    return reference_check.on_meta("llamagen_gpt", shapes, config, "model", **entries)


@pytest.mark.parametrize("size", SIZES)
def test_published_sizes_fit_by_name_and_shape(size: str) -> None:
    shapes = foreign_keys.llamagen_gpt(*SIZES[size])
    imported = on_meta(shapes, size)
    with torch.device("meta"):  # strict: every weight of ours exists, in its shape
        gpt = GPT.from_saved(imported.model.parts["transformer"])
    assert imported.notes[0] == f"used {len(shapes)} weights"
    num_parameters = sum(p.numel() for p in gpt.parameters())
    assert num_parameters == sum(torch.Size(shape).numel() for shape in shapes.values())
    assert round(num_parameters / 1e6) == MILLIONS[size]
    assert imported.model.config["grid_size"] == [16, 16]
    of_384_pixels = on_meta(shapes, f"{size}-384")
    assert of_384_pixels.model.config["grid_size"] == [24, 24]
    assert "the grid is 24 × 24 because block_size is 576" in of_384_pixels.notes


TINY: dict[str, Any] = {"dim": 32, "n_layer": 2, "n_head": 2, "multiple_of": 32, "num_classes": 4,
    "vocab_size": 16, "block_size": 4}  # fmt: skip
TINY_SHAPES = foreign_keys.llamagen_gpt(2, 32, 96, vocab=16, classes=4)


def test_a_missing_misshapen_or_unexpected_key_is_named() -> None:
    assert on_meta(TINY_SHAPES, TINY).notes[0] == f"used {len(TINY_SHAPES)} weights"
    for name, shape in TINY_SHAPES.items():
        with pytest.raises(UserError, match=f"the shape of {name} is"):
            on_meta({**TINY_SHAPES, name: (*shape[:-1], shape[-1] + 1)}, TINY)
        fewer = {other: size for other, size in TINY_SHAPES.items() if other != name}
        with pytest.raises(UserError, match=f"do not match the config: {name} is missing"):
            on_meta(fewer, TINY)
    with pytest.raises(UserError, match=r"unexpected in the file: layers\.2\.ffn_norm\.weight"):
        on_meta({**TINY_SHAPES, "layers.2.ffn_norm.weight": (32,)}, TINY)


def test_positions_in_the_file_are_dropped() -> None:
    notes = on_meta({**TINY_SHAPES, "freqs_cis": (5, 8, 2)}, TINY, optimizer={}, steps=3).notes
    assert notes[1].startswith("dropped freqs_cis: ")
    assert "ignored entries: optimizer, steps" in notes


def test_no_class_has_a_row_only_with_label_dropout() -> None:
    config = {**TINY, "class_dropout_prob": 0.0}
    table = "cls_embedding.embedding_table.weight"
    weights = {name: torch.ones(shape) for name, shape in TINY_SHAPES.items()}
    weights[table] = torch.ones(4, 32)
    imported = convert({"model": weights}, config)
    prefix = imported.model.parts["transformer"].state["prefix_embedding.weight"]
    assert prefix.sum(1).tolist() == [32, 32, 32, 32, 0]
    generator = ImageGenerator.from_saved(imported.model)
    with pytest.raises(UserError, match="Give a class label"):
        generator.sample_tokens(1)
    with pytest.raises(UserError, match=rf"{table} is \(5, 32\) instead of \(4, 32\)"):
        on_meta(TINY_SHAPES, config)


def test_arguments_are_converted() -> None:
    config = {**TINY, "resid_dropout_p": 0.2, "token_dropout_p": 0.3, "cls_dropout": 1, "steps": 2}
    imported = on_meta(TINY_SHAPES, config)
    transformer = imported.model.parts["transformer"].config
    assert (transformer["dropout"], transformer["embedding_dropout"]) == (0.2, 0.3)
    assert transformer["attention_dropout"] == 0.0  # their default
    assert imported.model.config["conditioning"]["dropout"] == 0.1  # their default
    assert any(note == "ignored arguments: cls_dropout, steps" for note in imported.notes)


def test_the_arguments_of_their_scripts() -> None:
    shapes = foreign_keys.llamagen_gpt(*SIZES["GPT-B"])
    script = {"gpt_model": "GPT-B", "gpt_type": "c2i", "image_size": 384}
    imported = on_meta(shapes, script)
    assert imported.model.config["grid_size"] == [24, 24]
    assert not any("ignored" in note for note in imported.notes)
    for script, side in (({"downsample_size": 8}, 32), ({"downsample_size": 16}, 16), ({}, 16)):
        imported = on_meta(shapes, {"gpt_model": "GPT-B", **script})
        assert imported.model.config["grid_size"] == [side, side]  # resolution 256 is their default
    with pytest.raises(UserError, match=r"gpt_model=GPT-C is unknown. Choose one of GPT-B, GPT-L"):
        on_meta(shapes, {"gpt_model": "GPT-C"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_kv_head": 1}, "do not match"),
        ({"rope_base": 500}, "rope_base=500 is not supported; it must be 10000"),
        ({"block_size": 6}, "block_size=6 is not a square grid"),
        ({"n_head": 5}, "cannot be split into 5|multiple of"),
        ({"class_dropout_prob": None}, "dropout"),
        ({"gpt_model": ["GPT-B"]}, "config is wrong"),
    ],
)
def test_wrong_arguments_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        shapes = dict(TINY_SHAPES)
        if "n_kv_head" in changes:  # theirs is smaller then
            shapes["layers.0.attention.wqkv.weight"] = (64, 32)
        on_meta(shapes, {**TINY, **changes})


def test_text_conditional_checkpoints_are_refused() -> None:
    with pytest.raises(UserError, match=r"text-conditional .* language model"):
        on_meta({"cls_embedding.cap_proj.fc1.weight": (8, 8)}, TINY)
