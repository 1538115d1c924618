"""Painting any region of images: kept codes, kept pixels, seams, growth."""

import pytest
import torch
from every_kind import sampling
from tiny_models import tiny_generator, tiny_vqgan

from taming.conditioning import ClassLabel
from taming.generation import ImageGenerator
from taming.runtime.errors import UserError
from taming.transformer.orders import to_tokens

SIZE = (24, 32)  # pixels; cells of 4×4
GRID = (6, 8)
LABELS = torch.tensor([0, 1, 2])


@pytest.fixture(scope="module")
def model() -> ImageGenerator:
    tokenizer = tiny_vqgan(resolution=SIZE, channel_multipliers=(1, 1, 2))
    return tiny_generator(ClassLabel(3, 0.1), GRID, tokenizer=tokenizer, order="any")


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.rand(3, 3, *SIZE, generator=torch.Generator().manual_seed(0)) * 2 - 1


def test_200_random_masks_keep_all_other_codes(model: ImageGenerator, images: torch.Tensor) -> None:
    generator = torch.Generator().manual_seed(1)
    assert model.tokenizer is not None
    codes = to_tokens(model.tokenizer.encode(images))
    for number in range(200):
        mask = torch.rand(3, *SIZE, generator=generator) < generator_share(number)
        cells = to_tokens(mask.unfold(1, 4, 4).unfold(2, 4, 4).flatten(3).any(3))
        known_tokens = model.known_tokens(images, mask)
        assert torch.equal(known_tokens >= 0, ~cells) and torch.equal(
            known_tokens[~cells], codes[~cells]
        )
        if number % 10 == 0:
            options = sampling(seed=number, num_steps=[None, 4][number % 20 == 0])
            tokens = model.sample_tokens(3, LABELS, given_tokens=known_tokens, options=options)
            assert torch.equal(tokens[~cells], codes[~cells]) and (tokens >= 0).all()


def generator_share(number: int) -> float:
    return (number + 1) / 2000  # 16 pixels a cell: nearly none, up to four in five cells


def test_given_pixels_return_away_from_the_painted_cells(
    model: ImageGenerator, images: torch.Tensor
) -> None:
    mask = torch.zeros(SIZE, dtype=torch.bool)
    mask[9:12, 13] = True  # in the cell of rows 8 to 11, columns 12 to 15
    painted = model.inpaint(images, mask, LABELS, seed=0)
    decoded = model.inpaint(images, mask, LABELS, seed=0, paste=False)
    assert torch.equal(painted[:, :, 8:12, 12:16], decoded[:, :, 8:12, 12:16])
    far = torch.ones(SIZE, dtype=torch.bool)
    far[4:16, 8:20] = False  # the seam is as wide as a cell
    assert torch.equal(painted[..., far], images[..., far])
    assert not torch.equal(decoded[..., far], images[..., far])
    seam = (painted - images)[:, :, 10, 16:20].abs() / (decoded - images)[:, :, 10, 16:20].abs()
    assert (seam.diff(dim=-1) < 1e-5).all() and (seam[..., 0] > 0).all() and (seam <= 1).all()
    everything = model.inpaint(images, torch.ones(SIZE, dtype=torch.bool), LABELS, seed=0)
    torch.testing.assert_close(everything, model.sample(3, LABELS, seed=0))


def test_each_image_has_its_own_mask(model: ImageGenerator, images: torch.Tensor) -> None:
    masks = torch.zeros(3, *SIZE, dtype=torch.bool)
    masks[0, :4, :4] = masks[1, 12:, :] = masks[2, :, 16:] = True
    painted = model.inpaint(images, masks, LABELS, options=sampling(seed=0, batch_size=2))
    for i in range(3):
        one = slice(i, i + 1)
        alone = model.inpaint(images[one], masks[i], LABELS[one], seed=0, first_image=i)
        torch.testing.assert_close(painted[one], alone)


def test_an_image_grows_in_all_directions(model: ImageGenerator, images: torch.Tensor) -> None:
    padded = torch.nn.functional.pad(images, (12, 8, 4, 16))
    mask = torch.ones(padded.shape[2:], dtype=torch.bool)
    mask[4:-16, 12:-8] = False
    grown = model.inpaint(padded, mask, LABELS, seed=0)
    assert grown.shape == padded.shape
    assert torch.equal(grown[:, :, 8:-20, 16:-12], images[:, :, 4:-4, 4:-4])


def test_what_cannot_be_painted_is_refused(images: torch.Tensor, model: ImageGenerator) -> None:
    mask = torch.zeros(SIZE, dtype=torch.bool)
    raster = tiny_generator(ClassLabel(3, 0.1), GRID, tokenizer=model.tokenizer)
    with pytest.raises(UserError, match=r"in raster order.*train a transformer with order=random"):
        raster.inpaint(images, mask, LABELS)
    with pytest.raises(UserError, match=r"mask is torch.float32 of shape \(3, 24, 32\)"):
        model.inpaint(images, mask.float(), LABELS)
    with pytest.raises(UserError, match=r"boolean mask of 24×32 pixels"):
        model.inpaint(images, mask[:4], LABELS)
