"""Numbers from nearest neighbours against prdc and scipy, on the same features."""

import numpy as np
import pytest
from prdc import compute_prdc
from random_features import features
from scipy.spatial.distance import cdist

from taming.evaluation.neighbours import fidelity_and_diversity, memorisation, nearest


def test_fidelity_and_diversity_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taming.evaluation.neighbours.BLOCK", 37)
    samples, reference = features(150, 8, 0, shift=0.4), features(190, 8, 1)
    expected = compute_prdc(reference.double().numpy(), samples.double().numpy(), nearest_k=5)
    numbers = fidelity_and_diversity(samples, reference)
    for name in ("precision", "recall", "density", "coverage"):
        assert 0 < expected[name] < 2
        assert numbers[name] == pytest.approx(expected[name], rel=1e-3), name
    mean_distance = cdist(samples.numpy(), samples.numpy()).sum() / (150 * 149)
    assert numbers["diversity"] == pytest.approx(mean_distance, rel=1e-3)
    same = fidelity_and_diversity(reference, reference)
    assert same["precision"] == same["recall"] == same["coverage"] == 1
    assert fidelity_and_diversity(samples[:5], reference) == {}  # too few neighbours


def test_copies_of_training_images_are_found() -> None:
    training, held_out = features(300, 8, 0), features(100, 8, 1)
    new = memorisation(features(100, 8, 2), held_out, training)
    copies = memorisation(training[:100] + 1e-3, held_out, training)
    assert new["close_to_training"] < 0.2 and copies["close_to_training"] == 1
    assert copies["training_distance"] < 0.1 * copies["training_distance_of_held_out"]
    distances, rows = nearest(held_out, training)
    expected = cdist(held_out.numpy(), training.numpy())
    np.testing.assert_allclose(distances.numpy(), expected.min(1), rtol=1e-3)
    np.testing.assert_array_equal(rows.numpy(), expected.argmin(1))
