"""Entropy penalty for confident assignments and evenly used codes."""

from collections.abc import Iterable

import torch
from torch import Tensor

from taming.runtime.process_group import mean_over_ranks

__all__ = ["entropy_penalty"]


def entropy_penalty(distances: Iterable[Tensor], temperature: float, *, over_ranks: bool) -> Tensor:
    """Computes E[H(p)] − H(E[p]) of the soft assignments p = softmax(−distances / temperature).

    Chang et al. 2022, "MaskGIT" (its code) and Yu et al. 2023, "Language Model Beats Diffusion:
    Tokenizer is Key to Visual Generation", equation 6. In nats, it lies between −log v (confident
    latents use all codes equally) and 0 (all latents have the same assignment).

    Args:
        distances: chunks of squared distances `(n v)`, up to a constant per latent.
        temperature: positive, in the unit of the distances. A small one approaches the hard
            assignment.
        over_ranks: average E[p] over the latents of all ranks, so that several processes compute
            what one would with the whole batch. All ranks must call it, with equally many latents.
    """
    entropies, assignments = [], []  # sums over the latents of each chunk
    num_latents = 0
    for chunk in distances:
        log_assignment = (-chunk / temperature).log_softmax(1)  # (n v)
        assignment = log_assignment.exp()
        entropies.append(-(assignment * log_assignment).sum())
        assignments.append(assignment.sum(0))
        num_latents += chunk.shape[0]  # an exported graph would bake len() in
    per_latent = torch.stack(entropies).sum() / num_latents
    mean = torch.stack(assignments).sum(0) / num_latents  # (v)
    if over_ranks:
        mean = mean_over_ranks(mean)
    return per_latent + torch.special.xlogy(mean, mean.clamp(min=1e-20)).sum()
