"""LlamaGen's tokenizer: our model reproduces theirs, and every weight is used or dropped."""

from pathlib import Path

import foreign_keys
import pytest
import reference_check
import torch
from foreign_keys import Shapes
from reference_check import check, reference

from taming.interop import SOURCES, Imported
from taming.runtime.errors import UserError
from taming.tokenizer import VQGAN

convert = SOURCES["llamagen_tokenizer"].convert


def test_reference_of_llamagen(shared: Path) -> None:
    checkpoint = shared / "reference" / "llamagen" / "tokenizer" / "vq_ds.pt"
    imported, expected = reference("llamagen_tokenizer", checkpoint, "args.json")
    vqgan = VQGAN.from_saved(imported.model)
    with torch.no_grad():
        check("latents", vqgan.encode_latents(expected["images"]), expected["latents"])
        check("indices", vqgan.encode(expected["images"]), expected["indices"])
        reconstructions = vqgan(expected["images"]).reconstructions
        check("reconstructions", reconstructions, expected["reconstructions"])
        check("decoded", vqgan.decode(expected["indices"]), expected["reconstructions"])
    assert imported.notes == [
        "used 203 weights",
        "dropped quantize.codebook_used: a record of the last codes of their training",
    ]


SIZES = {"VQ-8": [1, 2, 2, 4], "VQ-16": [1, 1, 2, 2, 4]}
NUM_PARAMETERS = {"VQ-8": 70_109_835, "VQ-16": 71_883_403}


def on_meta(shapes: Shapes, size: str, **entries: object) -> Imported:
    return reference_check.on_meta("llamagen_tokenizer", shapes, size, "model", **entries)


@pytest.mark.parametrize("size", SIZES)
def test_published_sizes_fit_by_name_and_shape(size: str) -> None:
    shapes = foreign_keys.llamagen_tokenizer(SIZES[size])
    imported = on_meta(shapes, size)
    with torch.device("meta"):
        vqgan = VQGAN.from_saved(imported.model)
    assert imported.notes[0] == f"used {len(shapes) - 1} weights"  # all but codebook_used
    counters = {"quantizer.batches_unused", "quantizer.started"} & set(imported.model.state)
    num_fused = sum(".k." in name or ".v." in name for name in shapes)  # into the weight of q
    assert len(imported.model.state) - len(counters) == len(shapes) - 1 - num_fused
    assert vqgan.downsample_factor == int(size.removeprefix("VQ-"))
    total = sum(torch.Size(shape).numel() for name, shape in shapes.items() if "used" not in name)
    assert sum(p.numel() for p in vqgan.parameters()) == total == NUM_PARAMETERS[size]
    assert imported.model.config["quantizer"] == {
        "kind": "vector",
        "codebook_size": 16384,
        "codebook_dim": 8,
        "commitment_weight": 0.25,
        "cosine": True,
    }


def test_a_training_checkpoint_gives_ema_weights_and_discriminator() -> None:
    shapes = foreign_keys.llamagen_tokenizer(SIZES["VQ-16"])
    with torch.device("meta"):
        average = {name: torch.empty(shape, dtype=torch.half) for name, shape in shapes.items()}
        scores = {
            name: torch.empty(shape)
            for name, shape in foreign_keys.patch_discriminator(num_layers=3).items()
        }
    imported = on_meta({"other": (1,)}, "VQ-16", ema=average, discriminator=scores, steps=7)
    assert imported.model.parts["discriminator"].config["num_layers"] == 3
    assert imported.notes[2:] == [
        "ignored entries: model, steps",
        f"discriminator: used {len(scores)} weights",
    ]
    assert imported.model.state["quantizer.codebook"].dtype == torch.float32
    other = {"blocks.0.weight": torch.zeros(1)}
    imported = on_meta(shapes, "VQ-16", discriminator=other)
    assert imported.model.parts == {}
    assert any("not a patch discriminator" in note for note in imported.notes)


def test_unsupported_arguments_are_refused() -> None:
    weights = {"model": {"weight": torch.zeros(1)}}
    config = {"encoder_ch_mult": [1, 1], "decoder_ch_mult": [1, 2]}
    with pytest.raises(UserError, match=r"encoder_ch_mult=\[1, 1\] differs from decoder_"):
        convert(weights, config)
    with pytest.raises(UserError, match=r"vq_model=VQ-32 is unknown. Choose one of VQ-8, VQ-16"):
        convert(weights, {"vq_model": "VQ-32"})
