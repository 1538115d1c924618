"""A feature network with the methods of Inception and a few random weights."""

import torch
import torch.nn.functional as F
from torch import Tensor

from taming.evaluation.features import INCEPTION_WEIGHTS, TENSORFLOW_RESIZE, FeatureNetwork


class TinyInception(FeatureNetwork):
    """Twelve features of 4×4 pixels, eight spatial ones, and six classes."""

    num_features, description, digest = 12, "tiny", "0" * 64
    resize, weights = TENSORFLOW_RESIZE, INCEPTION_WEIGHTS
    is_inception = True

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.weight = torch.randn(48, 20, generator=random) / 4
        self.classes = torch.randn(12, 6, generator=random)

    def forward(self, images: Tensor) -> Tensor:
        return self.with_spatial(images)[0]

    def with_spatial(self, images: Tensor) -> tuple[Tensor, Tensor]:
        pixels = F.adaptive_avg_pool2d(images, 4).flatten(1)
        outputs = (pixels @ self.weight).relu()
        return outputs[:, :12], outputs[:, 12:]

    def logits(self, features: Tensor) -> Tensor:
        return features @ self.classes
