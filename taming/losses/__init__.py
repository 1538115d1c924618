"""Loss functions: tensors in, tensors out."""

from taming.losses.adaptive import adaptive_weight
from taming.losses.adversarial import hinge_discriminator_loss, hinge_generator_loss
from taming.losses.backbone import Backbone
from taming.losses.frozen import FrozenNetwork
from taming.losses.perceptual import FeatureLoss, LPIPSLoss
from taming.losses.reconstruction import l1_loss, l2_loss

__all__ = [
    "Backbone",
    "FeatureLoss",
    "FrozenNetwork",
    "LPIPSLoss",
    "adaptive_weight",
    "hinge_discriminator_loss",
    "hinge_generator_loss",
    "l1_loss",
    "l2_loss",
]
