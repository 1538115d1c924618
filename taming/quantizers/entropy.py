"""A penalty that makes latents sure of their code and the codes equally used."""

import torch

from taming.quantizers.ranks import mean_over_ranks

__all__ = ["entropy_penalty"]


def entropy_penalty(distances: torch.Tensor, temperature: float) -> torch.Tensor:
    """E[H(p)] − H(E[p]) of the soft assignments p = softmax(−distances / temperature).

    Chang et al. 2022, "MaskGIT" (its code) and Yu et al. 2023, "Language Model Beats Diffusion:
    Tokenizer is Key to Visual Generation", eq. 6. Between −log v (each latent sure, all codes
    equally used) and 0 (all latents have the same assignment), in nats.

    The mean assignment E[p] is that of all ranks' latents, so that several processes compute what
    one would with the whole batch (ranks with equally many latents).

    Args:
        distances: `(n v)` squared distances; a constant per latent may be left out.
        temperature: positive, in the distances' unit; small: close to the hard assignment.
    """
    log_assignment = (-distances / temperature).log_softmax(1)
    assignment = log_assignment.exp()
    per_latent = -(assignment * log_assignment).sum(1).mean()
    mean = mean_over_ranks(assignment.mean(0))
    return per_latent + torch.special.xlogy(mean, mean.clamp(min=1e-20)).sum()
