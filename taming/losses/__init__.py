"""Loss functions: tensors in, tensors out."""

from taming.losses.adversarial import (
    ADVERSARIAL_LOSSES,
    AdversarialLoss,
    LeCAM,
    adaptive_weight,
    hinge_discriminator_loss,
    hinge_generator_loss,
    non_saturating_generator_loss,
    vanilla_discriminator_loss,
)
from taming.losses.backbone import (
    Backbone,
    FrozenNetwork,
    Normalize,
    fitting,
    load_weights,
    read_weights,
)
from taming.losses.perceptual import FeatureLoss, LPIPSLoss
from taming.losses.reconstruction import RECONSTRUCTION_LOSSES, cross_entropy_loss

__all__ = [
    "ADVERSARIAL_LOSSES",
    "RECONSTRUCTION_LOSSES",
    "AdversarialLoss",
    "Backbone",
    "FeatureLoss",
    "FrozenNetwork",
    "LPIPSLoss",
    "LeCAM",
    "Normalize",
    "adaptive_weight",
    "cross_entropy_loss",
    "fitting",
    "hinge_discriminator_loss",
    "hinge_generator_loss",
    "load_weights",
    "non_saturating_generator_loss",
    "read_weights",
    "vanilla_discriminator_loss",
]
