"""Rejection sampling with a classifier of known numbers: brightness."""

from typing import Any

import pytest
import torch
from every_kind import GreyTokenizer, sampling, tiny
from torch import Tensor, nn

from taming.conditioning import ClassLabel, Conditioning, Unconditional
from taming.generation import BestSamples, ImageGenerator, sample_best
from taming.runtime.errors import UserError

LABELS = torch.tensor([0, 1, 1, 0, 1, 0, 0])


class Brightness(nn.Module):
    """Class 0 is dark, class 1 bright: p(bright) is the sigmoid of the mean."""

    def forward(self, images: Tensor) -> Tensor:
        assert not self.training
        brightness = images.mean((1, 2, 3))
        return torch.stack([-brightness / 2, brightness / 2], dim=1)


def make(conditioning: Conditioning | None = None) -> ImageGenerator:
    return tiny(conditioning or ClassLabel(2), (2, 3), GreyTokenizer(), num_layers=1)


def best_of(
    model: ImageGenerator,
    num_candidates: int,
    labels: Tensor = LABELS,
    classifier: Any = None,
    first_image: int = 0,
    **settings: Any,
) -> BestSamples:
    return sample_best(
        model, classifier or Brightness(), len(labels), labels, num_candidates,
        first_image=first_image, options=sampling(**{"seed": 3, **settings}),
    )  # fmt: skip


def requested_probability(images: Tensor, labels: Tensor) -> Tensor:
    """The probability of the requested class, computed independently."""
    return torch.sigmoid(images.mean((1, 2, 3)) * (2 * labels - 1))


def test_the_most_probable_of_all_candidates_is_kept() -> None:
    model = make()
    best = best_of(model, 5)
    candidates = torch.stack(
        [model.sample(7, LABELS, seed=3, first_image=c * 2**32) for c in range(5)]
    )  # (candidates n c H W)
    assert len(candidates[:, 0].unique(dim=0)) == 5  # each has a random stream of its own
    probabilities = torch.stack([requested_probability(images, LABELS) for images in candidates])
    greatest, numbers = probabilities.max(0)
    torch.testing.assert_close(best.probabilities, greatest)
    assert torch.equal(best.images, candidates[numbers, torch.arange(7)])


def test_the_batch_makes_no_difference() -> None:
    model = make()
    whole = best_of(model, 3)
    for batch_size in (1, 3):
        parts = best_of(model, 3, batch_size=batch_size)
        assert torch.equal(parts.images, whole.images)
    later = best_of(model, 3, LABELS[4:], first_image=4)
    assert torch.equal(later.images, whole.images[4:])


def test_more_candidates_only_add() -> None:
    model = make()
    one, three, nine = (best_of(model, number) for number in (1, 3, 9))
    assert torch.equal(one.images, model.sample(7, LABELS, seed=3))
    assert (three.probabilities >= one.probabilities).all()
    assert (nine.probabilities >= three.probabilities).all()
    # an untrained model draws both classes alike: chance puts a candidate on either side of 1/2
    assert nine.probabilities.min() > 0.5 > one.probabilities.min()
    same = nine.probabilities == three.probabilities  # none of the later six is better
    assert 0 < same.sum() < 7
    assert torch.equal(nine.images[same], three.images[same])


def test_the_first_of_equal_candidates_wins_and_settings_pass_on() -> None:
    model = make()
    flat = best_of(model, 4, classifier=lambda images: torch.zeros(len(images), 2))
    assert torch.equal(flat.images, model.sample(7, LABELS, seed=3))
    assert flat.probabilities.tolist() == [0.5] * 7
    greedy = best_of(model, 2, greedy=True)
    assert torch.equal(greedy.images, model.sample(7, LABELS, greedy=True))


def test_a_classifier_in_training_mode_is_used_in_evaluation_mode() -> None:
    judge = Brightness().train()
    best_of(make(), 2, classifier=judge)  # its forward asserts it
    assert judge.training


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": make(Unconditional())}, "has no classes"),
        ({"labels": LABELS + 1}, "class label 2"),
        ({"classifier": lambda images: torch.zeros(2, 3)}, r"\(2, 3\) for 7 images.* 2 classes"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        best_of(**{"model": make(), "num_candidates": 2, **arguments})
