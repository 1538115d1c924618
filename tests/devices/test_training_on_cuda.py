"""A training step on a pretended GPU waits for nothing; see fake_cuda.py."""

from typing import Any

import pytest
import torch
from fake_cuda import fake_cuda, to_cuda, without_backward

from taming.conditioning import CellClasses, ClassLabel, Conditioning, ImageCondition
from taming.discriminators import PatchDiscriminator
from taming.training import Adversary, OptimizerConfig, TransformerTraining, VQGANTraining
from taming.training.module import TrainingModule
from taming.transformer import GPT, GPTConfig
from taming.vqgan import VQGAN

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*CUDA is not available",  # of autocast
)

OPTIMIZER = OptimizerConfig(learning_rate=1e-3)
GRID = (4, 4)


def tokenizer(**quantizer: Any) -> VQGAN:
    return VQGAN(
        quantizer={"kind": "vector", "codebook_size": 8, "codebook_dim": 4, **quantizer},
        resolution=16,
        base_channels=4,
        channel_multipliers=[1, 1, 2],
        num_residual_blocks=1,
        attention_resolutions=[],
        latent_channels=4,
    )


def stage_1() -> VQGANTraining:
    adversary = Adversary(
        PatchDiscriminator(base_channels=4, num_layers=1, norm="batch"),
        optimizer=OPTIMIZER,
        start=0,
        warmup=0,
        ramp=2,
        weight=0.8,
        adaptive=True,
        max_steps=100,
        lecam_weight=0.1,
        augmentation=["color", "translation", "cutout"],
    )
    quantizer = {"cosine": True, "revive_after": 20}
    return VQGANTraining(
        tokenizer(**quantizer),
        None,
        adversary,
        optimizer=OPTIMIZER,
        max_steps=99,
    )


def stage_2(conditioning: Conditioning) -> TransformerTraining:
    return TransformerTraining(
        GPT(
            GPTConfig(
                codebook_size=8,
                **conditioning.transformer_config(GRID),
                num_layers=1,
                num_heads=2,
                embed_dim=8,
                dropout=0.1,
            )
        ),
        tokenizer(),
        conditioning,
        GRID,
        CellClasses(5, 4, 16) if conditioning.takes_images else None,
        optimizer=OPTIMIZER,
        max_steps=99,
        ema_decay=0.9,
        pkeep=0.9,
    )


def steps_wait_for(
    module: TrainingModule, batch: dict[str, torch.Tensor], patch: pytest.MonkeyPatch, watch: Any
) -> list[str]:
    """What the steps but the first wait for or bring from the CPU; of them the last is watched."""
    stand_ins = without_backward(module.parameters)
    patch.setattr(torch.Tensor, "backward", stand_ins["backward"])
    patch.setattr(torch.autograd, "grad", stand_ins["grad"])
    optimizers = module.configure_optimizers()
    patch.setattr(module, "manual_backward", lambda loss: module.backward(loss))
    patch.setattr(module, "optimizers", lambda: optimizers)
    module.train()
    module.step = 9  # the next but one looks for unused codes
    for _ in range(2):
        watch.forget()
        module.training_step(batch, 0)
    assert module.step == 11
    return [*watch.waits, *watch.uploads]


def test_stage_1(monkeypatch: pytest.MonkeyPatch) -> None:
    module = stage_1()  # outside: a deep copy of a pretended tensor can crash
    with fake_cuda(bf16=True) as watch:
        to_cuda(module)
        batch = {"images": torch.zeros(4, 3, 16, 16, device="cuda")}
        assert steps_wait_for(module, batch, monkeypatch, watch) == []
        module.on_validation_epoch_start()
        with torch.no_grad():
            output = module.averaged_vqgan.eval()(batch["images"])
            losses = module.reconstruction_losses(output.reconstructions.float(), batch["images"])
            module.validation.update(batch["images"], output, losses)


@pytest.mark.parametrize(
    "conditioning",
    [ClassLabel(3, 0.1), ImageCondition(5, GRID, 0.1), ImageCondition(5, GRID, as_context=True)],
    ids=["class", "image", "context"],
)
def test_stage_2(conditioning: Conditioning, monkeypatch: pytest.MonkeyPatch) -> None:
    module = stage_2(conditioning)
    with fake_cuda(bf16=True) as watch:
        to_cuda(module)
        indices = torch.zeros(4, *GRID, dtype=torch.int64, device="cuda")
        batch = {"indices": indices, "condition_indices": indices, "labels": indices[:, 0, 0]}
        assert steps_wait_for(module, batch, monkeypatch, watch) == []
        module.on_validation_epoch_start()
        watch.forget()
        with torch.no_grad():
            module.validation_step(batch, 1)
        assert watch.waits == []
