"""CompVis' stage 1: our model reproduces theirs, and every weight is used or dropped."""

from pathlib import Path
from typing import Any

import foreign_keys
import pytest
import torch
from foreign_keys import Shapes
from reference_check import check, compvis_content, on_meta, reference

from taming.discriminators import PatchDiscriminator
from taming.interop import SOURCES, Imported
from taming.losses import (
    adaptive_weight,
    hinge_discriminator_loss,
    hinge_generator_loss,
    vanilla_discriminator_loss,
)
from taming.runtime.errors import UserError
from taming.tokenizer import VQGAN

convert = SOURCES["compvis_vqgan"].convert


def import_reference(shared: Path, name: str) -> tuple[Imported, dict[str, torch.Tensor]]:
    return reference("compvis_vqgan", shared / "reference" / "compvis" / name / "last.ckpt")


@pytest.mark.parametrize("name", ["vqgan", "vqgan_gumbel"])
def test_reference_of_compvis(shared: Path, name: str) -> None:
    imported, expected = import_reference(shared, name)
    assert imported.notes == [
        f"used {205 + (name == 'vqgan_gumbel') * 2} weights",
        "dropped loss.perceptual_loss.* (33): LPIPS has its own weights file",
        "ignored entries: epoch, global_step, pytorch-lightning_version, callbacks, "
        "optimizer_states, lr_schedulers",
        "ignored objects: pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint",
    ]
    vqgan = VQGAN.from_saved(imported.model)
    discriminator = PatchDiscriminator.from_saved(imported.model.parts["discriminator"])
    images = expected["images"]
    latents = vqgan.encode_latents(images)
    output = vqgan.quantizer(latents)
    check("latents", latents, expected["latents"])
    check("indices", vqgan.encode(images), expected["indices"])
    check("quantized", output.quantized, expected["quantized"])
    check("decoded indices", vqgan.decode(expected["indices"]), expected["reconstructions"])
    reconstructions = vqgan.decode_quantized(output.quantized.detach())
    check("reconstructions", reconstructions, expected["reconstructions"])
    if name == "vqgan_gumbel":
        rows = latents.permute(0, 2, 3, 1).flatten(0, 2)
        logits = vqgan.quantizer.code_logits(rows).reshape(*expected["indices"].shape, -1)
        check("codebook logits", logits.movedim(-1, 1), expected["codebook_logits"])
    else:
        loss = torch.stack(list(output.losses.values())).sum()
        check("quantizer loss", loss[None], expected["quantizer_loss_beta0.25"])
        check("quantizer loss, legacy", loss[None], expected["quantizer_loss_legacy_beta0.25"])
    real, fake = discriminator(images), discriminator(reconstructions)
    check("scores of images", real, expected["scores_real_eval"])
    check("scores of reconstructions", fake, expected["scores_fake_eval"])
    check("hinge loss", hinge_discriminator_loss(real, fake)[None], expected["hinge_d_loss"])
    vanilla = vanilla_discriminator_loss(real, fake)
    check("vanilla loss", vanilla[None], expected["vanilla_d_loss"])
    losses = ((images - reconstructions).abs().mean(), hinge_generator_loss(fake))
    gradients = [
        torch.autograd.grad(loss, vqgan.last_layer, retain_graph=True)[0] for loss in losses
    ]
    weight = adaptive_weight(*gradients)
    check("adaptive weight", weight[None], expected["adaptive_weight_l1_unscaled"])


GUMBEL: Shapes = {
    "quantize.proj.weight": (8192, 256, 1, 1),
    "quantize.proj.bias": (8192,),
    "quantize.embed.weight": (8192, 256),
}
# published name: levels' multipliers, levels with attention, discriminator's layers, quantizer
SIZES: dict[str, tuple[list[int], list[int], int, Shapes]] = {
    "f16-1024": ([1, 1, 2, 2, 4], [4], 3, {"quantize.embedding.weight": (1024, 256)}),
    "f16-16384": ([1, 1, 2, 2, 4], [4], 2, {"quantize.embedding.weight": (16384, 256)}),
    "f8-gumbel-8192": ([1, 1, 2, 4], [3], 3, GUMBEL),
}
NUM_PARAMETERS = {  # without quantizer; of the discriminator
    "f16-1024": (71_879_555, 2_765_633),
    "f16-16384": (71_879_555, 663_361),
    "f8-gumbel-8192": (64_793_475, 2_765_633),
}


@pytest.mark.parametrize("size", SIZES)
def test_published_sizes_fit_by_name_and_shape(size: str) -> None:
    shapes = foreign_keys.compvis_vqgan(*SIZES[size])
    imported = on_meta("compvis_vqgan", shapes, size)
    discriminator = imported.model.parts["discriminator"]
    with torch.device("meta"):  # strict: every weight of ours exists, in its shape
        vqgan = VQGAN.from_saved(imported.model)
        patch = PatchDiscriminator.from_saved(discriminator)
    dropped = sum(name.startswith("loss.perceptual_loss.") for name in shapes)
    assert imported.notes[0] == f"used {len(shapes) - dropped} weights"
    assert imported.notes[1].startswith(f"dropped loss.perceptual_loss.* ({dropped})")
    counters = {"quantizer.batches_unused", "quantizer.started"} & set(imported.model.state)
    num_ours = len(imported.model.state) - len(counters) + len(discriminator.state)
    num_fused = sum(".k." in name or ".v." in name for name in shapes)  # into the weight of q
    assert num_ours == len(shapes) - dropped - num_fused
    counts = (
        sum(p.numel() for n, p in vqgan.named_parameters() if not n.startswith("quantizer.")),
        sum(p.numel() for p in patch.parameters()),
    )
    assert counts == NUM_PARAMETERS[size]


def test_the_config_tells_models_of_label_maps() -> None:
    shapes = foreign_keys.compvis_vqgan(*SIZES["f16-1024"])
    published = SOURCES["compvis_vqgan"].published["f16-1024"]["params"]
    for config, label_maps in (
        ({"target": "VQModel", "params": published}, False),
        ({"target": "VQSegmentationModel", "params": published}, True),
        ({**published, "image_key": "image"}, False),
        ({**published, "image_key": "segmentation"}, True),
        ({**published, "colorize_nlabels": 3}, True),
        ({**published, "colorize_nlabels": None}, False),
    ):
        imported = on_meta("compvis_vqgan", shapes, config)
        assert imported.model.config["label_maps"] is label_maps


@pytest.mark.parametrize("name", ["vqgan", "vqgan_gumbel"])
def test_used_codes_are_the_codebook(shared: Path, name: str) -> None:
    content, params = compvis_content(shared, name)
    _, expected = import_reference(shared, name)
    used_codes = expected["indices"].unique().flip(0)  # not in the order of the codes
    assert 1 < len(used_codes) < 64
    content["state_dict"]["quantize.used"] = used_codes
    imported = convert(content, params)
    vqgan = VQGAN.from_saved(imported.model)
    indices = vqgan.encode(expected["images"])
    assert vqgan.codebook_size == len(used_codes)
    assert torch.equal(used_codes[indices], expected["indices"])
    decoded = vqgan.decode(indices)
    torch.testing.assert_close(decoded, expected["reconstructions"], rtol=0, atol=1e-4)
    assert any(f"kept the {len(used_codes)} codes of 64" in note for note in imported.notes)
    content["state_dict"]["quantize.used"] = torch.tensor([0, 64])
    with pytest.raises(UserError, match="index 64 is out of bounds"):
        convert(content, params)
    del content["state_dict"]["quantize.used"]
    with pytest.raises(UserError, match=r"quantize\.used is missing in the file"):
        convert(content, {**params, "remap": "used.npy"})


TINY: dict[str, Any] = {
    "ddconfig": {"ch": 32, "out_ch": 3, "in_channels": 3, "ch_mult": [1, 2], "num_res_blocks": 1,
                 "attn_resolutions": [8], "resolution": 16, "z_channels": 8},
    "n_embed": 4,
    "embed_dim": 8,
}  # fmt: skip
NOTHING = {"state_dict": {"weight": torch.zeros(1)}}


def changed(**changes: Any) -> dict[str, Any]:
    return {**TINY, "ddconfig": {**TINY["ddconfig"], **changes}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model": {"target": "x.Net2NetTransformer", "params": TINY}}, "describes Net2Net"),
        ({"n_embed": 4, "embed_dim": 8}, "config lacks 'ddconfig'"),
        ({"model": None}, "config is wrong"),
        (changed(tanh_out=True), "tanh_out=True in the config is not supported"),
        (changed(double_z=True), "do not match the config"),
        (changed(resolution=15), "15×15 is not a multiple"),
    ],
)
def test_wrong_configs_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        convert(NOTHING, config)


def test_mistyped_arguments_are_named() -> None:
    shapes = foreign_keys.compvis_vqgan(*SIZES["f16-1024"])
    published = SOURCES["compvis_vqgan"].published["f16-1024"]["params"]
    config = {**published, "ddconfig": {**published["ddconfig"], "num_res_block": 3, 7: 1}}
    notes = on_meta("compvis_vqgan", shapes, config).notes
    assert notes[-1] == "ignored arguments: <int>, num_res_block"


def test_the_target_or_the_weights_tell_the_quantizer(shared: Path) -> None:
    content, params = compvis_content(shared, "vqgan_gumbel")
    quantizer = convert(content, params).model.config["quantizer"]
    assert (quantizer["kind"], quantizer["kl_weight"]) == ("gumbel", 1e-8)
    vector = {"target": "taming.models.vqgan.VQModel", "params": params}
    with pytest.raises(UserError, match=r"quantize\.embedding\.weight is missing"):
        convert(content, vector)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model": {}, "step": 3}, "no weights under 'state_dict'.*entries: model, step"),
        ({10**5000: 1, "\x1b[2J": 2, "n" * 10**6: 3}, r"<int>, '\\x1b\[2J', n{79}…\.$"),
        ({str(n): n for n in range(99)}, r"entries: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, and 89 more\.$"),
    ],
)
def test_content_without_weights_is_refused(content: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        convert(content, TINY)
