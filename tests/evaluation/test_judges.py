"""Which images are chosen, how judges measure sets of images, and how that is reported."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_fidelity.metric_isc import isc_features_to_metric

from taming.evaluation import FeatureNetwork, in_proportion, protocol_differences, report_text
from taming.evaluation.judges import (
    JudgedImages,
    Judges,
    as_eight_bit,
    compare_features,
    probability_score,
)
from taming.evaluation.protocol import protocol_digest

NAMES = ["dark", "bright"]


def test_images_are_chosen_in_proportion_to_their_classes() -> None:
    labels = [1] * 60 + [0] * 30 + [2] * 10
    numbers = in_proportion(labels, 20, seed=0)
    assert Counter(labels[number] for number in numbers) == {0: 6, 1: 12, 2: 2}
    assert [labels[number] for number in numbers] == sorted(labels[number] for number in numbers)
    assert len(set(numbers)) == 20
    assert numbers == in_proportion(labels, 20, seed=0)
    assert numbers != in_proportion(labels, 20, seed=1)
    assert sorted(in_proportion(labels, 100, seed=0)) == list(range(100))
    assert Counter(in_proportion([None] * 3, 6, seed=0)) == {0: 2, 1: 2, 2: 2}


class Bright(nn.Module):
    """Predicts class 1 where the mean is above 0."""

    num_classes = 2

    def forward(self, images: Tensor) -> Tensor:
        mean = images.mean((1, 2, 3))
        return torch.stack([-mean, mean], 1)


class Mean(FeatureNetwork):
    """One feature, the mean."""

    num_features, description, digest = 1, "mean", "none"

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((1, 2, 3))[:, None]


class Inception(Mean):
    is_inception = True

    def logits(self, features: Tensor) -> Tensor:
        return torch.cat([features, -features], 1)


NOBODY: Any = Judges(None, None, torch.device("cpu"), NAMES)
BOTH: Any = Judges(Bright(), Mean(), torch.device("cpu"), NAMES)  # type: ignore[arg-type]


def judged(
    judges: Judges,
    *batches: list[float],
    labels: list[int] | None = None,
    originals: JudgedImages | None = None,
) -> JudgedImages:
    """Grey images of these levels."""
    result, classes = JudgedImages(judges, originals), iter(labels or ())
    for levels in batches:
        images = torch.tensor(levels)[:, None, None, None].expand(-1, 1, 2, 2)
        result.update(images, torch.tensor([next(classes) for _ in levels]) if labels else None)
    return result.gather()


def test_numbers_of_a_set_of_images() -> None:
    real = judged(BOTH, [-0.5, 0.5], labels=[0, 1])
    samples = judged(BOTH, [-0.4, 0.6, 0.7], [-0.1], labels=[0, 1, 0, 0])
    assert samples.logits is not None
    assert samples.logits.argmax(1).tolist() == [0, 1, 1, 0]
    numbers = samples.numbers(real)
    assert numbers["num_images"] == 4
    assert numbers["agreement"] == pytest.approx(3 / 4)
    low, high = numbers["agreement_interval"]
    assert (low, high) == pytest.approx((0.3006, 0.9544), abs=1e-4)  # Wilson's, of 3 in 4
    values = as_eight_bit(torch.tensor([-0.4, 0.6, 0.7, -0.1])).double()
    reference = as_eight_bit(torch.tensor([-0.5, 0.5])).double()
    expected = (reference.mean() - values.mean()) ** 2 + (reference.std() - values.std()) ** 2
    assert numbers["frechet_distance"] == pytest.approx(expected.item(), rel=1e-4)
    assert numbers["by_class"] == [
        {"class": "dark", "num_images": 3, "agreement": pytest.approx(2 / 3), "instead": "bright"},
        {"class": "bright", "num_images": 1, "agreement": 1.0, "instead": None},
    ]
    assert real.numbers()["agreement"] == 1.0
    alone = judged(NOBODY, [0.0], labels=[0])
    assert alone.numbers(alone) == {"num_images": 1}
    broken = judged(BOTH, [0.1, torch.nan, torch.inf], labels=[0, 1, 1])
    assert broken.numbers(broken) == {"num_images": 3, "num_not_finite": 2}


def test_reconstructions_are_compared_with_other_images_than_their_own() -> None:
    images = [-0.5, -0.25, 0.0, 0.25, 0.5]
    real, same_images = judged(BOTH, images), judged(BOTH, images)
    reconstructions = judged(BOTH, images, originals=real)
    # without the images' own reconstructions, all three terms are means of the same kernels
    numbers = reconstructions.numbers(real)
    assert numbers["kernel_distance"] == pytest.approx(0, abs=1e-12)
    assert numbers["frechet_distance_interval"] == pytest.approx((0, 0), abs=1e-6)
    assert numbers["kernel_distance_deviation"] is None
    assert reconstructions.numbers(same_images)["kernel_distance"] < -0.1


def test_digest_depends_on_the_pixels_and_not_on_their_order() -> None:
    def digest(*levels: float) -> str:
        return judged(NOBODY, list(levels)).digest

    assert digest(0.1, 0.2) == digest(0.2, 0.1) == digest(0.1001, 0.2)
    assert len({digest(0.1), digest(0.1, 0.1), digest(0.1, 0.2)}) == 3


def test_protocol_compares_the_pixels_of_a_reference_and_not_its_path() -> None:
    one = {"reference": "a", "reference_digest": "1", "classifier_training": {"num_steps": 2}}
    moved = one | {"reference": "b"}
    other = moved | {"reference_digest": "2", "classifier_training": {"num_steps": 3}}
    assert protocol_digest(moved) == protocol_digest(one) != protocol_digest(other)
    assert protocol_differences(one, moved) == []
    assert protocol_differences(one, other) == [
        "reference b, not a",
        "reference_digest 2, not 1",
        "classifier_training.num_steps 3, not 2",
    ]


def test_only_inceptions_distance_is_called_fid() -> None:
    features = torch.randn(20, 1, generator=torch.Generator().manual_seed(0))
    other = compare_features(features, features + 1, Mean(), paired=False)
    inception = compare_features(features, features + 1, Inception(), paired=False)
    assert {"frechet_distance", "kernel_distance"} <= other.keys()
    assert {"fid", "kid", "inception_score"} <= inception.keys()
    assert "frechet_distance" not in inception
    assert inception["fid"] == other["frechet_distance"] == pytest.approx(1, rel=1e-5)


def test_score_equals_torch_fidelitys() -> None:
    logits = 3 * torch.randn(200, 12, generator=torch.Generator().manual_seed(0))
    expected = isc_features_to_metric(logits, splits=1, shuffle=False)["inception_score_mean"]
    assert probability_score(logits, num_splits=1) == pytest.approx(expected, rel=1e-3)
    sure = 100 * torch.eye(4).repeat(5, 1)
    assert probability_score(sure, num_splits=1) == pytest.approx(4)
    assert probability_score(torch.zeros(20, 4)) == pytest.approx(1)


def test_report_has_a_row_for_each_set_and_guidance_scale() -> None:
    by_class = [
        {"class": "dark", "num_images": 3, "agreement": 2 / 3, "instead": "bright"},
        {"class": "bright", "num_images": 0, "agreement": None, "instead": None},
    ]
    samples = {"num_images": 3, "agreement": 2 / 3, "frechet_distance": 1.25, "by_class": by_class,
               "frechet_distance_interval": [1.0, 1.5]}  # fmt: skip
    text = report_text(
        {
            "likelihood": {"num_tokens": 6400, "nats_per_token": 1.0, "bits_per_token": 1.442695,
                           "perplexity": 2.7183, "bits_per_token_uniform": 4.0,
                           "bits_per_token_frequencies": 3.25},
            "contract": {"num_reference": 8, "resolution": [16, 24], "lpips": None},
            "validation_images": {"num_images": 8, "agreement": 0.9, "by_class": by_class},
            "reconstructions": {"num_images": 8, "agreement": 0.8, "frechet_distance": 0.5,
                                "psnr": 25.0, "ssim": 0.9, "codebook_usage": 1.0,
                                "codebook_perplexity": 7.0},
            "training_images": {"num_images": 3, "frechet_distance": 0.125},
            "frechet_features": "a network",
            "samples": [{"guidance_scale": scale, **samples} for scale in (1.0, 2.5)],
        }
    )  # fmt: skip
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    for row in (
        ["tokens of the validation images", "6,400", "1.0000", "1.4427", "2.72"],
        ["samples, guidance 1 (off)", "3", "66.7%", "1.25 (1 to 1.5)"],
        ["samples, guidance 2.5", "3", "66.7%", "1.25 (1 to 1.5)"],
        ["reconstructions of the validation images", "8", "80.0%", "0.5"],
        ["training images", "3", "", "0.125"],
        ["validation images", "8", "90.0%", ""],
        ["dark", "66.7% of 3", "66.7% of 3", "bright", "66.7% of 3", "bright"],
        ["bright", "– of 0", "– of 0", "", "– of 0", ""],
        ["resolution", "16×24"],
        ["lpips", "none"],
    ):
        assert row in rows, text
    assert "features of a network, so it is not FID" in text
    assert "4.0000 bits if all codes are equally probable, 3.2500 with the frequencies" in text
