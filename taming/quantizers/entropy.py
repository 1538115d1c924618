"""Entropy penalty: confident assignments and evenly used codes."""

from collections.abc import Iterable

import torch

from taming.runtime.process_group import mean_over_ranks

__all__ = ["entropy_penalty"]


def entropy_penalty(
    distances: Iterable[torch.Tensor], temperature: float, *, over_ranks: bool
) -> torch.Tensor:
    """Computes E[H(p)] − H(E[p]) of the soft assignments p = softmax(−distances / temperature).

    Chang et al. 2022, "MaskGIT" (its code) and Yu et al. 2023, "Language Model Beats Diffusion:
    Tokenizer is Key to Visual Generation", eq. 6. Between −log v (each latent sure, all codes
    equally used) and 0 (all latents have the same assignment), in nats.

    Args:
        distances: `(n v)` squared distances, in one chunk or several of some latents each; a
            constant per latent may be left out.
        temperature: positive, in the distances' unit; small: close to the hard assignment.
        over_ranks: take the mean assignment E[p] over all ranks' latents, so that several processes
            compute what one would with the whole batch (ranks with equally many latents). Every
            rank must call it then, so training only.
    """
    entropies, assignments = [], []  # of each chunk, summed over its latents
    num_latents = 0
    for chunk in distances:
        log_assignment = (-chunk / temperature).log_softmax(1)
        assignment = log_assignment.exp()
        entropies.append(-(assignment * log_assignment).sum())
        assignments.append(assignment.sum(0))
        num_latents += chunk.shape[0]  # len() would fix the number in an exported graph
    per_latent = torch.stack(entropies).sum() / num_latents
    mean = torch.stack(assignments).sum(0) / num_latents
    if over_ranks:
        mean = mean_over_ranks(mean)
    return per_latent + torch.special.xlogy(mean, mean.clamp(min=1e-20)).sum()
