"""CompVis' stage 2: our models reproduce theirs, and every weight is used or dropped."""

from pathlib import Path
from typing import Any

import foreign_keys
import pytest
import torch
import torch.nn.functional as F
from foreign_keys import Shapes
from omegaconf import OmegaConf
from reference_check import check, compvis_content, on_meta, reference

from taming.generation import ImageGenerator
from taming.interop import SOURCES, Imported
from taming.interop.compvis_transformer import PERMUTERS
from taming.runtime.errors import UserError
from taming.tokenizer import VQGAN
from taming.transformer import GPT
from taming.transformer.orders import order_cells, to_indices

convert = SOURCES["compvis_transformer"].convert
Weights = dict[str, torch.Tensor]
ENTRIES = (
    "ignored entries: epoch, global_step, pytorch-lightning_version, callbacks, optimizer_states, "
    "lr_schedulers"
)
OBJECTS = "ignored objects: pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint"
MASKS = "dropped transformer.blocks.*.attn.mask ({}): the causal mask, which this program computes"
CLASSES = (
    "the config does not state the number of classes, so all 64 ids are classes; set num_classes=…"
)


def import_reference(shared: Path, name: str) -> tuple[Imported, Weights]:
    folder = shared / "reference" / "compvis" / f"transformer_{name}"
    return reference("compvis_transformer", folder / "last.ckpt")


def content_and_config(shared: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return compvis_content(shared, f"transformer_{name}")


@pytest.mark.parametrize(
    ("name", "notes"),
    [("class", [CLASSES]), ("depth", ["condition stage: used 183 weights"]), ("unconditional", [])],
)
def test_reference_of_compvis_transformer(shared: Path, name: str, notes: list[str]) -> None:
    imported, expected = import_reference(shared, name)
    stage = "first stage: used 183 weights"
    assert imported.notes == ["used 37 weights", MASKS.format(2), ENTRIES, stage, *notes, OBJECTS]
    generator = ImageGenerator.from_saved(imported.model)
    tokens, prefix = expected["tokens"], expected["prefix"]
    condition = prefix[:, 0] if name == "class" else expected.get("condition_images")
    logits = generator.logits(tokens, condition)
    check("logits", logits, expected["logits"])
    check("nll", F.cross_entropy(logits.flatten(0, 1), tokens.flatten())[None], expected["nll"])
    greedy = generator.sample_tokens(2, condition, greedy=True)
    check("greedy tokens", greedy, expected["greedy_tokens"])
    half = tokens[:, : tokens.shape[1] // 2]
    completed = generator.sample_tokens(2, condition, greedy=True, given_tokens=half)
    check("completed tokens", completed, expected["completed_tokens"])
    assert generator.tokenizer is not None
    with torch.no_grad():
        images = generator.tokenizer.decode(to_indices(greedy, generator.grid_size))
    check("greedy images", images, expected["greedy_images"])
    samples = generator.sample(2, condition, greedy=True)
    check("samples, clamped", samples, expected["greedy_images"].clamp(-1, 1))
    if name == "depth":
        saved_model = imported.model.parts["condition_tokenizer"]
        condition_tokens = (
            VQGAN.from_saved(saved_model).encode(expected["condition_images"]).flatten(1)
        )
        check("condition tokens", condition_tokens, prefix)


def test_the_number_of_classes(shared: Path) -> None:
    content, params = content_and_config(shared, "class")
    imported = convert(content, params, num_classes=10)
    assert imported.model.config["conditioning"]["num_classes"] == 10
    prefix = imported.model.parts["transformer"].state["prefix_embedding.weight"]
    table = content["state_dict"]["transformer.tok_emb.weight"]
    assert torch.equal(prefix[:10], table[:10])
    assert prefix[10].abs().sum() == 0  # "no class", which was never trained
    with pytest.raises(UserError, match="Give a class label"):
        ImageGenerator.from_saved(imported.model).sample_tokens(1)
    params["cond_stage_config"] = {
        "target": "taming.modules.util.Labelator", "params": {"n_classes": 12}
    }  # fmt: skip
    stated = convert(content, params)
    assert stated.model.config["conditioning"]["num_classes"] == 12
    for notes in (imported.notes, stated.notes):
        assert not any("number of classes" in note for note in notes)
    with pytest.raises(UserError, match="num_classes=13 is more than the model's 12 classes"):
        convert(content, params, num_classes=13)
    with pytest.raises(UserError, match="num_classes is only for class-conditional models"):
        convert(*content_and_config(shared, "unconditional"), num_classes=3)


def test_the_start_token(shared: Path) -> None:
    content, params = content_and_config(shared, "unconditional")
    row = content["state_dict"]["transformer.tok_emb.weight"][5:6]
    provider = {"target": "taming.modules.util.SOSProvider", "params": {"sos_token": 5}}
    for changes in ({"sos_token": 5}, {"cond_stage_config": provider}):
        imported = convert(content, {**params, **changes})
        prefix = imported.model.parts["transformer"].state["prefix_embedding.weight"]
        assert torch.equal(prefix, row)
    with pytest.raises(UserError, match=r"vocabulary of 64, .* condition ids up to 64"):
        convert(content, {**params, "sos_token": 64})


def test_the_first_stage_as_condition_stage(shared: Path) -> None:
    content, params = content_and_config(shared, "depth")
    state = content["state_dict"]
    first = {name: w for name, w in state.items() if name.startswith("first_stage_model.")}
    state |= {name.replace("first_stage", "cond_stage"): w for name, w in first.items()}
    params["cond_stage_config"] = "__is_first_stage__"
    imported = convert(content, params)
    assert f"dropped cond_stage_model.* ({len(first)}): a copy of the first stage" in imported.notes
    parts = imported.model.parts
    assert parts["tokenizer"].fingerprint() == parts["condition_tokenizer"].fingerprint()


@pytest.mark.parametrize("target", ["VQSegmentationModel", "VQModel"])
def test_a_condition_stage_of_label_maps(shared: Path, target: str) -> None:
    content, params = content_and_config(shared, "depth")
    state = content["state_dict"]
    generator = torch.Generator().manual_seed(0)
    state["cond_stage_model.encoder.conv_in.weight"] = torch.randn(32, 5, 3, 3, generator=generator)
    state["cond_stage_model.decoder.conv_out.weight"] = torch.zeros(5, 32, 3, 3)
    state["cond_stage_model.decoder.conv_out.bias"] = torch.zeros(5)
    state["cond_stage_model.colorize"] = torch.zeros(3, 5, 1, 1)
    condition = params["cond_stage_config"]
    condition["target"] = f"taming.models.vqgan.{target}"
    condition["params"]["image_key"] = "segmentation"
    condition["params"]["ddconfig"] |= {"in_channels": 5, "out_ch": 5}
    imported = convert(content, params)
    saved_model = imported.model.parts["condition_tokenizer"]
    assert (saved_model.config["image_channels"], saved_model.config["label_maps"]) == (5, True)
    assert imported.model.parts["tokenizer"].config.get("label_maps", False) is False
    assert any("dropped colorize" in note for note in imported.notes)
    loaded = ImageGenerator.from_saved(imported.model)
    maps = F.one_hot(torch.randint(5, (2, 32, 32), generator=generator), 5).movedim(-1, 1).float()
    tokens = loaded.sample_tokens(2, maps, greedy=True)
    prefix = loaded.conditioning.prompt(
        VQGAN.from_saved(saved_model).encode(maps).flatten(1), 2
    ).prefix
    first = loaded.transformer(prefix, tokens[:, :0])[:, -1].argmax(1)
    assert torch.equal(tokens[:, 0], first)


def test_a_vocabulary_larger_than_the_codebook_is_cut(shared: Path) -> None:
    content, params = content_and_config(shared, "class")
    state = content["state_dict"]
    for name in ("transformer.tok_emb.weight", "transformer.head.weight"):
        state[name] = torch.cat([state[name], torch.ones(16, 64)])
    params["transformer_config"]["params"]["vocab_size"] = 80
    imported = convert(content, params, num_classes=70)
    assert [note.partition(":")[0] for note in imported.notes if "rows" in note] == [
        "dropped rows 64 to 79 of transformer.head.weight",
        "dropped 10 rows of transformer.tok_emb.weight",
    ]
    state = imported.model.parts["transformer"].state
    assert state["head.weight"].shape == state["token_embedding.weight"].shape == (64, 64)
    assert torch.equal(state["prefix_embedding.weight"][64:70], torch.ones(6, 64))  # classes
    _, expected = import_reference(shared, "class")
    generator = ImageGenerator.from_saved(imported.model)
    logits = generator.logits(expected["tokens"], expected["prefix"][:, 0])
    torch.testing.assert_close(logits, expected["logits"], rtol=0, atol=1e-5)
    params["transformer_config"]["params"]["vocab_size"] = 32
    with pytest.raises(UserError, match="vocabulary of 32, but its first stage has 64 codes"):
        convert(content, params)


def test_masks_and_unmasked_conditions(shared: Path) -> None:
    content, params = content_and_config(shared, "depth")
    transformer = params["transformer_config"]["params"]
    for num_unmasked in (63, 65):
        transformer["n_unmasked"] = num_unmasked
        with pytest.raises(UserError, match=f"n_unmasked={num_unmasked} in the config .* 64 ids"):
            convert(content, params)
    del transformer["n_unmasked"]
    with pytest.raises(UserError, match=r"blocks\.0\.attn\.mask is not the causal mask .* 128"):
        convert(content, params)
    for layer in range(2):
        mask = torch.ones(1, 1, 128, 128).tril()
        content["state_dict"][f"transformer.blocks.{layer}.attn.mask"] = mask
    imported = convert(content, params)
    assert imported.model.parts["transformer"].config["bidirectional_prefix"] is False


TABLES = ("permuter.forward_shuffle_idx", "permuter.backward_shuffle_idx")


@pytest.mark.parametrize("name", PERMUTERS)
def test_each_permuter_becomes_an_order(shared: Path, name: str) -> None:
    """The model is the same in another order: its logits do not change, its pictures do."""
    content, params = content_and_config(shared, "unconditional")
    raster = ImageGenerator.from_saved(convert(content, params).model)
    content, params = content_and_config(shared, "unconditional")
    cells = order_cells(PERMUTERS[name], raster.grid_size)
    content["state_dict"] |= dict(zip(TABLES, (cells, cells.argsort()), strict=True))
    permuter = {"target": f"taming.modules.transformer.permuter.{name}", "params": {}}
    imported = convert(content, {**params, "permuter_config": permuter})
    assert f"dropped permuter.* (2): the order is {PERMUTERS[name]}" in imported.notes
    model = ImageGenerator.from_saved(imported.model)
    tokens = raster.sample_tokens(1, seed=0)
    with torch.no_grad():
        assert torch.equal(model.logits(tokens), raster.logits(tokens))
    grid = model.to_indices(tokens)
    assert torch.equal(grid.flatten(1)[:, cells], tokens)
    assert model.tokenizer is not None
    torch.testing.assert_close(model.decode(tokens), model.tokenizer.decode(grid).clamp(-1, 1))


def test_an_order_that_is_not_known_is_refused(shared: Path) -> None:
    content, params = content_and_config(shared, "unconditional")
    hilbert = {"target": "my_permuters.Hilbert", "params": {}}
    with pytest.raises(UserError, match="order of the permuter Hilbert, which is not supported"):
        convert(content, {**params, "permuter_config": hilbert})
    content["state_dict"] |= dict.fromkeys(TABLES, torch.arange(64).flip(0))
    for config in (params, {**params, "permuter_config": {"target": "permuter.SpiralOut"}}):
        with pytest.raises(
            UserError, match=r"not supported for 8 × 8 codes\. Supported are Identity"
        ):
            convert(content, config)


# (vocabulary, block, layers, width), parameters of their transformer, rows of our condition table
PUBLISHED: dict[str, tuple[tuple[int, int, int, int], int, int]] = {
    "cin_transformer": ((16384, 256, 48, 1536), 1_410_640_896, 1001),
    "drin_transformer": ((1024, 512, 24, 1024), 304_932_864, 1025),
    "sflckr_transformer": ((1024, 512, 24, 1024), 304_932_864, 1025),
}


def autoencoder(prefix: str, codes: int, channels: int = 3) -> Shapes:
    quantizer: Shapes = {"quantize.embedding.weight": (codes, 256)}
    shapes = foreign_keys.compvis_vqgan([1, 1, 2, 2, 4], [4], 3, quantizer)
    shapes |= {
        "encoder.conv_in.weight": (128, channels, 3, 3),
        "decoder.conv_out.weight": (channels, 128, 3, 3),
        "decoder.conv_out.bias": (channels,),
    }
    return {f"{prefix}{n}": shape for n, shape in shapes.items() if not n.startswith("loss.")}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_transformers_fit_by_name_and_shape(name: str) -> None:
    size, num_parameters, num_conditions = PUBLISHED[name]
    codes, _, num_layers, width = size
    shapes = foreign_keys.compvis_gpt(*size) | autoencoder("first_stage_model.", codes)
    if name != "cin_transformer":
        channels = 182 if name == "sflckr_transformer" else 3
        shapes |= autoencoder("cond_stage_model.", 1024, channels)
    imported = on_meta("compvis_transformer", shapes, name)
    with torch.device("meta"):  # strict: every weight of ours exists, in its shape
        gpt = GPT.from_saved(imported.model.parts["transformer"])
        parts = imported.model.parts.items()
        stages = [VQGAN.from_saved(part) for part_name, part in parts if part_name != "transformer"]
    transformer_names = {n for n in shapes if n.startswith("transformer.")}
    first_note = f"used {len(transformer_names) - num_layers} weights"
    assert imported.notes[:2] == [first_note, MASKS.format(num_layers)]
    # conditions have their own table here
    assert sum(p.numel() for p in gpt.parameters()) == num_parameters + num_conditions * width
    assert sum(p.numel() for stage in stages for p in stage.parameters()) == sum(
        torch.Size(shape).numel() for n, shape in shapes.items() if n not in transformer_names
    )
    assert imported.model.config["grid_size"] == [16, 16]


def test_missing_weights_of_the_first_stage_are_named(shared: Path) -> None:
    content, params = content_and_config(shared, "class")
    weights: Weights = content["state_dict"]
    del weights["first_stage_model.encoder.conv_in.bias"]
    with pytest.raises(UserError, match=r"the first stage: .*: encoder\.conv_in\.bias is missing"):
        convert(content, params)
    transformer = {n: weight for n, weight in weights.items() if n.startswith("transformer.")}
    with pytest.raises(UserError, match="the first stage: the file has no weights"):
        convert({"state_dict": transformer}, params)


def gpt(**arguments: Any) -> dict[str, Any]:
    return {"transformer_config": {"params": arguments}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transformer_config": None}, "config is wrong"),
        ({"downsample_cond_size": 8, "cond_stage_config": "__is_first_stage__"}, "downsample_cond"),
        ({"cond_stage_config": {"target": "x.CoordStage"}}, "is CoordStage, an unsupported"),
        ({"cond_stage_config": None}, "is None, an unsupported condition"),
        (gpt(n_embd=32), r"tok_emb\.weight is .* instead of"),
        (gpt(n_heads=2), "their transformer has no arguments n_heads"),
        (gpt(vocab_size="64"), "config is wrong"),
        (gpt(block_size=66), r"attn\.mask is not the causal mask of block_size 66"),
    ],
)
def test_wrong_arguments_are_named(shared: Path, changes: dict[str, Any], message: str) -> None:
    content, params = content_and_config(shared, "class")
    config = OmegaConf.to_container(OmegaConf.merge(params, changes))
    with pytest.raises(UserError, match=message):
        convert(content, config)
