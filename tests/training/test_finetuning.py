from typing import Any

import pytest
import torch
from tiny_models import changed, weights
from tiny_training import backward, tiny_adversary, tiny_vqgan, vqgan_training, without_trainer
from torch.nn.utils import parameters_to_vector

from taming.runtime.errors import UserError
from taming.serialization import SavedModel
from taming.tokenizer import VQGAN
from taming.training import finetuned_adversary, finetuned_vqgan

NEW = {"kind": "vector", "codebook_size": 5, "codebook_dim": 4}


def configured(**changes: object) -> VQGAN:
    return VQGAN(**{**tiny_vqgan().config, "quantizer": NEW, **changes})


def finetuned(saved: SavedModel, mode: Any, **changes: object) -> VQGAN:
    return finetuned_vqgan(saved, mode, configured(**changes))


@pytest.mark.parametrize("mode", ["whole", "decoder"])
def test_the_model_starts_as_the_saved_one(mode: str) -> None:
    first = tiny_vqgan()
    second = finetuned(first.to_saved(), mode)
    assert second.training
    images = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(second(images).reconstructions, first(images).reconstructions)


def test_a_new_codebook_keeps_the_other_weights() -> None:
    first = tiny_vqgan()
    second = finetuned(first.to_saved(), "new_codebook")
    assert second.codebook_size == 5
    images = torch.rand(2, 3, 16, 16)
    latents = first.encode_latents(images)
    torch.testing.assert_close(second.encode_latents(images), latents)
    torch.testing.assert_close(second.decode_quantized(latents), first.decode_quantized(latents))


def test_codes_of_another_width_need_new_convolutions_around_them() -> None:
    first = tiny_vqgan()
    quantizer = {"kind": "vector", "codebook_size": 5, "codebook_dim": 2}
    second = finetuned(first.to_saved(), "new_codebook", quantizer=quantizer)
    images = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(second.encoder(images), first.encoder(images))
    assert second(images).reconstructions.shape == images.shape


def test_attention_stays_in_its_level_at_another_resolution() -> None:
    first = configured(attention_resolutions=[8])
    second = finetuned(first.to_saved(), "whole", resolution=(32, 24))
    assert second.resolution == (32, 24)
    assert second.grid_size == (16, 12)
    assert second.config["attention_resolutions"] == [16]
    images = torch.rand(2, 3, 32, 24)
    torch.testing.assert_close(second(images).reconstructions, first(images).reconstructions)


def test_only_the_decoder_learns() -> None:
    module = without_trainer(vqgan_training(trained="decoder"))
    optimizer = module.configure_optimizers()["optimizer"]
    images = torch.rand(4, 3, 16, 16)
    tokens = module.vqgan.encode(images)
    before = weights(module.vqgan)
    backward(module, {"images": images})
    optimizer.step()
    parts = {name.split(".")[0] for name in changed(module.vqgan, before)}
    assert parts == {"decoder", "post_quantizer"}
    assert torch.equal(module.vqgan.encode(images), tokens)


def test_the_discriminator_keeps_its_weights(caplog: pytest.LogCaptureFixture) -> None:
    module = vqgan_training(tiny_adversary())
    saved = module.to_saved(module.state_dict())
    fresh = tiny_adversary()
    finetuned_adversary(saved, fresh)
    networks = fresh.discriminator, module.adversary.discriminator
    torch.testing.assert_close(*(parameters_to_vector(one.parameters()) for one in networks))
    saved.parts["discriminator"].config["num_layers"] = 5
    finetuned_adversary(saved, tiny_adversary())
    assert "another shape" in caplog.text
    assert caplog.text.strip().endswith("add adversary.discriminator.num_layers=5")
    finetuned_adversary(saved, None)


def test_training_settings_of_the_quantizer_are_the_new_ones() -> None:
    first = tiny_vqgan()
    quantizer = {**NEW, "commitment_weight": 0.5, "revive_after": 7, "cosine": True}
    second = finetuned(first.to_saved(), "whole", quantizer=quantizer)
    assert second.codebook_size == first.codebook_size  # what makes its codes is the old one's
    assert "cosine" not in second.config["quantizer"]
    assert second.config["quantizer"]["commitment_weight"] == 0.5
    assert second.config["quantizer"]["revive_after"] == 7


def test_images_of_another_kind_are_refused() -> None:
    pictures = tiny_vqgan().to_saved()
    with pytest.raises(UserError, match=r"has image_channels=3, but the new images need 1"):
        finetuned(pictures, "whole", image_channels=1)
    with pytest.raises(UserError, match="has label_maps=False, but the new images need True"):
        finetuned(pictures, "whole", label_maps=True)
    maps = SavedModel("vqgan", {**pictures.config, "label_maps": True}, pictures.state)
    assert finetuned(maps, "whole", label_maps=True).label_maps
    older = {name: value for name, value in pictures.config.items() if name != "label_maps"}
    saved = SavedModel("vqgan", older, pictures.state)  # it does not say which it is
    assert [finetuned(saved, "whole", label_maps=x).label_maps for x in (0, 1)] == [0, 1]
