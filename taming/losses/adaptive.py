"""The weight that balances the adversarial loss against the reconstruction loss."""

import torch

__all__ = ["adaptive_weight"]


def adaptive_weight(
    reconstruction_gradient: torch.Tensor,
    adversarial_gradient: torch.Tensor,
    *,
    epsilon: float = 1e-4,
    maximum: float = 1e4,
) -> torch.Tensor:
    """λ = ‖∇L_rec‖ / (‖∇L_GAN‖ + ε), clamped to [0, maximum] (Esser et al. 2021, eq. 7).

    Args:
        reconstruction_gradient: of the reconstruction loss (perceptual loss included) with respect
            to the decoder's last layer.
        adversarial_gradient: of the generator's adversarial loss with respect to the same.
        epsilon: keeps the quotient finite; the paper's code uses 1e-4.
        maximum: upper bound.

    Returns:
        A scalar without gradient.
    """
    weight = reconstruction_gradient.norm() / (adversarial_gradient.norm() + epsilon)
    return weight.clamp(0.0, maximum).detach()
