"""CompVis' VQGAN as its own program trained it, from the package `taming-transformers-rom1504`.

Its LightningModule, losses and networks do all of the work, unchanged; here is only what its
trainer (PyTorch Lightning 1.0) did around `training_step`, once for each optimizer: switch off the
gradients of all weights but this optimizer's, clear them, `training_step`, backward, Adam. What it
logs is computed and not kept.

The downloads of VGG's and LPIPS' weights must not happen: they stay random.
"""

import types
from typing import Any

import torch
import torchvision
from compvis_package import (  # type: ignore[import-not-found]  # beside this file
    compvis_module,
    compvis_versions,
)
from serve import autocast  # type: ignore[import-not-found]  # the file that runs this one

START = 1  # the discriminator's first step


def build(settings: dict[str, Any], measurement: str, images: torch.Tensor) -> Any:
    """What is timed, and facts about it; see `serve.py`."""
    if measurement not in ("step", "step_before_start", "encode", "decode"):
        return None
    training = measurement.startswith("step")
    model = _model(settings, training).to(images.device)
    parts = {"autoencoder": [p for n, p in model.named_parameters() if not n.startswith("loss.")]}
    if training:
        parts["discriminator"] = list(model.loss.discriminator.parameters())
        parts["perceptual"] = list(model.loss.perceptual_loss.parameters())
        call = _training_step(model, settings, images, measurement)
    else:
        call = _inference(model.eval(), settings, images, measurement)
    facts = {
        "versions": compvis_versions(),
        "parameters": {name: sum(p.numel() for p in part) for name, part in parts.items()},
    }
    return call, facts


def _model(settings: dict[str, Any], training: bool) -> Any:
    vqgan: Any = compvis_module("models.vqgan")
    lpips: Any = compvis_module("modules.losses.lpips")
    lpips.models = types.SimpleNamespace(
        vgg16=lambda pretrained: torchvision.models.vgg16(weights=None)
    )
    lpips.LPIPS.load_from_pretrained = lambda self: None

    class Model(vqgan.VQModel):  # type: ignore[misc, name-defined, unused-ignore]
        """Without a trainer: the step is set, and what is logged goes nowhere."""

        global_step = 0

        def log(self, *args: Any, **kwargs: Any) -> None:
            pass

        def log_dict(self, *args: Any, **kwargs: Any) -> None:
            pass

    loss: dict[str, Any] = {"target": "taming.modules.losses.DummyLoss"}
    if training:
        loss = {
            "target": "taming.modules.losses.vqperceptual.VQLPIPSWithDiscriminator",
            "params": {
                "disc_start": START,
                "disc_weight": 0.8,
                "disc_num_layers": settings["discriminator_layers"],
                "disc_ndf": settings["discriminator_channels"],
            },
        }
    return Model(
        {
            "double_z": False,
            "z_channels": settings["latent_channels"],
            "resolution": settings["resolution"],
            "in_channels": 3,
            "out_ch": 3,
            "ch": settings["base_channels"],
            "ch_mult": settings["channel_multipliers"],
            "num_res_blocks": settings["num_residual_blocks"],
            "attn_resolutions": settings["attention_resolutions"],
            "dropout": 0.0,
        },
        loss,
        settings["codebook_size"],
        settings["codebook_dim"],
    )


def _training_step(
    model: Any, settings: dict[str, Any], images: torch.Tensor, measurement: str
) -> Any:
    model.train()  # its LPIPS too, whose dropout is therefore on, as it was in its training
    model.global_step = START if measurement == "step" else START - 1
    model.learning_rate = 4.5e-6 * len(images)
    optimizers, _ = model.configure_optimizers()
    weights = [[p for g in optimizer.param_groups for p in g["params"]] for optimizer in optimizers]
    batch = {"image": images.permute(0, 2, 3, 1)}  # its data sets give channels last

    def step() -> torch.Tensor:
        for index, optimizer in enumerate(optimizers):
            for other, group in enumerate(weights):
                for weight in group:
                    weight.requires_grad = other == index
            with autocast(settings):
                loss = model.training_step(batch, 0, index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss

    return step


def _inference(model: Any, settings: dict[str, Any], images: torch.Tensor, measurement: str) -> Any:

    @torch.inference_mode()
    def encode() -> torch.Tensor:
        with autocast(settings):
            return model.encode(images)[2][2]

    indices = encode()
    side = settings["resolution"] // 2 ** (len(settings["channel_multipliers"]) - 1)
    shape = (len(images), side, side, settings["codebook_dim"])

    @torch.inference_mode()
    def decode() -> torch.Tensor:
        with autocast(settings):
            return model.decode(model.quantize.get_codebook_entry(indices, shape))

    return encode if measurement == "encode" else decode
