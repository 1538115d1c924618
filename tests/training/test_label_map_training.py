import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_training import (
    Gradients,
    TinyData,
    backward,
    optimizer_config,
    run_training,
    tiny_adversary,
    without_trainer,
)

from taming.runtime.errors import UserError
from taming.tokenizer import VQGAN
from taming.training import ReconstructionGrids, VQGANTraining

COLORS = [[250, 0, 0], [0, 250, 0], [0, 0, 250]]


def label_map_training(**changes: Any) -> VQGANTraining:
    vqgan = VQGAN(
        quantizer={"kind": "vector", "codebook_size": 16, "codebook_dim": 4},
        image_channels=3,
        resolution=[8, 16],
        base_channels=8,
        channel_multipliers=[1, 2],
        num_residual_blocks=1,
        attention_resolutions=[],
        latent_channels=8,
        label_maps=True,
    )
    settings = {"perceptual": None, "adversary": None, "reconstruction": "cross_entropy", **changes}
    settings.setdefault("optimizer", optimizer_config(warmup_steps=0, schedule="constant"))
    return VQGANTraining(vqgan, **settings)


def halves() -> torch.Tensor:
    """`(17 3 8 16)` of 0 and 1: one class above another, at several heights."""
    maps = torch.zeros(17, 3, 8, 16)
    for index in range(17):
        border = 2 * (index % 2) + 2
        maps[index, index % 3, :border] = 1
        maps[index, (index + 1) % 3, border:] = 1
    return maps


def test_training_on_label_maps_and_its_metrics(tmp_path: Path) -> None:
    data = TinyData(6, images=halves())
    data.palette = COLORS
    changes = {"max_steps": 60, "val_check_interval": 60, "ema_decay": None}
    run = run_training(tmp_path, label_map_training(), data, **changes)
    metrics = run.result.metrics
    assert metrics.keys() == run.module.val_modes.keys()
    assert not {"val/psnr", "val/ssim"} & metrics.keys()
    (_, first), *_ = run.recorder.column("train/pixel_loss")
    assert first == pytest.approx(math.log(3), rel=0.3)  # knows nothing at the start
    assert metrics["val/pixel_loss"] < 0.2
    assert metrics["val/pixel_accuracy"] > 0.95
    assert 0.8 < metrics["val/mean_iou"] <= metrics["val/pixel_accuracy"]
    (path,) = (tmp_path / "grids").iterdir()
    colors = np.unique(np.asarray(Image.open(path)).reshape(-1, 3), axis=0).tolist()
    assert sorted(colors) == sorted([*COLORS, [255, 255, 255]])  # and the paper
    model = VQGAN.from_pretrained(tmp_path / "model")
    classes = model.decode(model.encode(halves())).argmax(1)
    assert (classes == halves().argmax(1)).float().mean() > 0.95


def test_a_grid_has_images_left_and_reconstructions_right() -> None:
    module = without_trainer(label_map_training())
    module.trainer.datamodule = SimpleNamespace(palette=COLORS)
    maps = torch.eye(3)[:2, :, None, None].expand(-1, -1, 48, 48)  # all class 0, all class 1
    picture = ReconstructionGrids("").picture(module, 30 * maps.flip(0), {"images": maps})
    colors = [picture.getpixel((20 + 50 * column, 20)) for column in range(4)]
    red, green, _ = map(tuple, COLORS)
    assert colors == [red, green, green, red]
    module.trainer.datamodule = SimpleNamespace()  # the user's own, without a palette
    assert ReconstructionGrids("").picture(module, maps, {"images": maps}).size == picture.size


def test_its_gradient_is_that_of_the_cross_entropy() -> None:
    module = without_trainer(label_map_training(reconstruction_weight=2.0))
    images = halves()[:4]
    module.vqgan(images)  # its codebook is initialised by the first batch
    output = module.vqgan(images)
    picked = (output.reconstructions.log_softmax(1) * images).sum(1)
    loss = -2.0 * picked.mean() + sum(output.quantizer.losses.values())
    names, parameters = zip(*module.vqgan.named_parameters(), strict=True)
    expected = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
    backward(module, {"images": images})
    for name, parameter in module.vqgan.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("changes", [{"perceptual": Gradients()}, {"adversary": tiny_adversary()}])
def test_label_maps_refuse_other_losses(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="needs perceptual=none, adversary=none"):
        label_map_training(**changes)
