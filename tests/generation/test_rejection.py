"""Rejection sampling with a classifier whose every number is known: brightness."""

import pytest
import torch
from torch import Tensor, nn

from taming.conditioning import ClassLabel, Conditioning, Unconditional
from taming.errors import UserError
from taming.generation import ImageGenerator, SamplingOptions, sample_best
from taming.transformer import GPT, GPTConfig

LABELS = torch.tensor([0, 1, 1, 0, 1, 0, 0])
SEED = SamplingOptions(seed=3)


class GreyTokenizer(nn.Module):
    """Shows code i of 8 as a pixel of grey, from black to white."""

    codebook_size = 8
    label_maps = False

    def decode(self, indices: Tensor) -> Tensor:
        return (indices / 3.5 - 1)[:, None]


class Brightness(nn.Module):
    """Class 0 is dark, class 1 bright: p(bright) is the sigmoid of the mean."""

    def forward(self, images: Tensor) -> Tensor:
        assert not self.training
        brightness = images.mean((1, 2, 3))
        return torch.stack([-brightness / 2, brightness / 2], dim=1)


def make(conditioning: Conditioning | None = None) -> ImageGenerator:
    torch.manual_seed(0)
    conditioning = conditioning or ClassLabel(2)
    transformer = GPT(
        GPTConfig(
            codebook_size=8,
            num_prefix_ids=conditioning.num_prefix_ids,
            context_length=6,
            num_layers=1,
            num_heads=2,
            embed_dim=16,
        )
    )
    return ImageGenerator(GreyTokenizer(), transformer, conditioning, (2, 3)).eval()  # type: ignore[arg-type]


def asked_for(images: Tensor, labels: Tensor) -> Tensor:
    """How probable the asked-for class is, worked out apart."""
    return torch.sigmoid(images.mean((1, 2, 3)) * (2 * labels - 1))


def test_the_most_probable_of_all_candidates_is_kept() -> None:
    model = make()
    best = sample_best(model, Brightness(), 7, LABELS, 5, options=SEED)
    candidates = torch.stack(
        [model.sample(7, LABELS, seed=3, first_image=c * 2**32) for c in range(5)]
    )  # (candidates n c H W)
    assert len(candidates[:, 0].unique(dim=0)) == 5  # each has a random stream of its own
    probabilities = torch.stack([asked_for(images, LABELS) for images in candidates])
    greatest, numbers = probabilities.max(0)
    torch.testing.assert_close(best.probabilities, greatest)
    assert torch.equal(best.candidates, numbers)
    assert torch.equal(best.images, candidates[numbers, torch.arange(7)])


def test_the_batch_makes_no_difference() -> None:
    model = make()
    whole = sample_best(model, Brightness(), 7, LABELS, 3, options=SEED)
    for batch_size in (1, 3):
        options = SamplingOptions(seed=3, batch_size=batch_size)
        parts = sample_best(model, Brightness(), 7, LABELS, 3, options=options)
        assert torch.equal(parts.images, whole.images)
        assert torch.equal(parts.candidates, whole.candidates)
    later = sample_best(model, Brightness(), 3, LABELS[4:], 3, options=SEED, first_image=4)
    assert torch.equal(later.images, whole.images[4:])


def test_more_candidates_only_add() -> None:
    model = make()
    one, three, nine = (
        sample_best(model, Brightness(), 7, LABELS, number, options=SEED) for number in (1, 3, 9)
    )
    assert torch.equal(one.images, model.sample(7, LABELS, seed=3))
    assert not one.candidates.any()
    assert (three.probabilities >= one.probabilities).all()
    assert (nine.probabilities >= three.probabilities).all()
    # an untrained model draws both classes alike: chance puts a candidate on either side of 1/2
    assert nine.probabilities.min() > 0.5 > one.probabilities.min()
    same = nine.candidates < 3
    assert torch.equal(nine.images[same], three.images[same])


def test_of_equals_the_first_is_kept_and_settings_are_passed_on() -> None:
    model = make()
    flat = sample_best(
        model, lambda images: torch.zeros(len(images), 2), 7, LABELS, 4, options=SEED
    )
    assert torch.equal(flat.images, model.sample(7, LABELS, seed=3))
    assert flat.probabilities.tolist() == [0.5] * 7
    greedy = sample_best(
        model, Brightness(), 7, LABELS, 2, options=SamplingOptions(seed=3, greedy=True)
    )
    assert torch.equal(greedy.images, model.sample(7, LABELS, greedy=True))


def test_a_classifier_in_training_mode_is_used_in_evaluation_mode() -> None:
    judge = Brightness().train()
    sample_best(make(), judge, 2, LABELS[:2], 2)  # its forward asserts it
    assert judge.training


def test_without_a_seed_pytorch_global_state_decides() -> None:
    model = make()
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(sample_best(model, Brightness(), 7, LABELS, 2).images)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_what_cannot_be_done_is_said() -> None:
    model, judge = make(), Brightness()
    with pytest.raises(UserError, match="not trained on classes"):
        sample_best(make(Unconditional()), judge, 2, LABELS[:2], 2)
    with pytest.raises(UserError, match="num_candidates 0"):
        sample_best(model, judge, 2, LABELS[:2], 0)
    with pytest.raises(UserError, match=r"\(7,\).*2 integer class labels"):
        sample_best(model, judge, 2, LABELS, 2)
    with pytest.raises(UserError, match="class label 2 does not exist"):
        sample_best(model, judge, 2, LABELS[:2] + 2, 2)
    with pytest.raises(UserError, match=r"gives \(2, 3\) for 2 images.*has 2 classes"):
        sample_best(model, lambda images: torch.zeros(2, 3), 2, LABELS[:2], 2)
    with pytest.raises(UserError, match="not numbers"):
        sample_best(model, lambda images: torch.full((2, 2), torch.nan), 2, LABELS[:2], 2)
