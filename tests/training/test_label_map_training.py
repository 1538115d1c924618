import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_training import (
    FakeData,
    Gradients,
    Items,
    run_training,
    tiny_adversary,
    tiny_vqgan,
    trainer_config,
)

from taming.errors import UserError
from taming.training import OptimizerConfig, VQGANTraining
from taming.vqgan import VQGAN

COLORS = [[250, 0, 0], [0, 250, 0], [0, 0, 250]]


def label_map_training(
    num_classes: int = 3, label_maps: bool = True, **changes: Any
) -> VQGANTraining:
    vqgan = VQGAN(
        quantizer={"kind": "vector", "codebook_size": 16, "codebook_dim": 4},
        image_channels=num_classes,
        resolution=[8, 16],
        base_channels=8,
        channel_multipliers=[1, 2],
        num_residual_blocks=1,
        attention_resolutions=[],
        latent_channels=8,
        label_maps=label_maps,
    )
    settings: dict[str, Any] = {
        "perceptual": None,
        "adversary": None,
        "optimizer": OptimizerConfig(learning_rate=1e-2),
        "max_steps": 60,
        "ema_decay": None,
        "reconstruction": "cross_entropy",
    }
    return VQGANTraining(vqgan, **{**settings, **changes})


def halves() -> torch.Tensor:
    """`(12 3 8 16)` of 0 and 1: one class above another, at several heights."""
    maps = torch.zeros(12, 3, 8, 16)
    for index in range(12):
        border = 2 * (index % 2) + 2
        maps[index, index % 3, :border] = 1
        maps[index, (index + 1) % 3, border:] = 1
    return maps


def test_it_learns_label_maps_and_reports_what_fits_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = FakeData(Items(images=halves()), Items(images=halves()[:5]), batch_size=6)
    config = trainer_config(max_steps=60, val_every=60, monitor="val/reconstruction_loss")
    module = label_map_training(palette=COLORS)
    result, recorder = run_training(tmp_path, module, data, config)
    metrics = result.metrics
    assert sorted(metrics) == sorted(module.val_modes)
    assert not {"val/psnr", "val/ssim"} & metrics.keys()
    (_, first), *_ = recorder.column("train/pixel_loss")
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


def test_its_gradient_is_that_of_the_cross_entropy() -> None:
    torch.manual_seed(0)
    module = label_map_training(reconstruction_weight=2.0).train()
    module.manual_backward = lambda loss: module.backward(loss)  # type: ignore[method-assign]
    images = halves()[:4]
    module.vqgan(images)  # its codebook is initialised by the first batch
    output = module.vqgan(images)
    picked = (output.reconstructions.log_softmax(1) * images).sum(1)
    loss = -2.0 * picked.mean() + sum(output.quantizer.losses.values())
    names, parameters = zip(*module.vqgan.named_parameters(), strict=True)
    expected = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
    module.backward_losses({"images": images})
    for name, parameter in module.vqgan.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"perceptual": Gradients()}, "set perceptual=none and adversary=none"),
        ({"adversary": tiny_adversary()}, "set perceptual=none and adversary=none"),
        ({"num_classes": 1}, "have 1 channel: use data=label_maps"),
        ({"num_classes": 4, "palette": COLORS}, "3 colours for 4 classes"),
        ({"num_classes": 4, "reconstruction": "l1"}, "4 channels, are label maps.*cross_entropy"),
        ({"num_classes": 3, "reconstruction": "l1"}, "3 channels, are label maps.*cross_entropy"),
        ({"label_maps": False}, "model's images are pictures"),
    ],
)
def test_what_does_not_go_with_label_maps(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        label_map_training(**changes)


def test_pictures_keep_their_metrics() -> None:
    module = VQGANTraining(
        tiny_vqgan(), None, None, optimizer=OptimizerConfig(learning_rate=1e-3), max_steps=1
    )
    assert module.palette is None
    assert type(module.validation.images[0]).__name__ == "ReconstructionMetrics"
