"""Pictures of a generator: samples, attention, surprise and nearest neighbours."""

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from taming.generation import ImageGenerator, attention_maps, token_surprise
from taming.pictures import palette_of, to_uint8
from taming.report.curves import COLORS, figure_json
from taming.report.images import heat, on_image
from taming.report.page import Chart, Finding, Group, Matrix, Part, Picture, Pictures, Table
from taming.report.subject import Images, Subject, evenly_spaced
from taming.report.tokenizer_views import encoded, join
from taming.transformer.orders import to_tokens

__all__ = ["attention", "condition_effect", "draw_samples", "neighbours", "samples_by_class",
    "surprise"]  # fmt: skip

MAX_CLASSES, NUM_SAMPLES, MAX_PER_CLASS = 10, 40, 8
MAX_LAYERS, MAX_HEADS = 4, 8
BATCH_SIZE = 16
COMPARED_SIDE = 32  # pixels per side of the images that are compared
# ratio of the median distances of samples and of held-out images to the nearest training image
COPY_RATIO = 0.5  # below it, samples may be copies
UNLIKE_RATIO = 1.5  # above it, samples do not look like images of the data


def draw_samples(subject: Subject) -> Images:
    """Draws samples of some classes or for the example conditions, always with seed 0."""
    generator = _generator(subject)
    conditioning, labels, conditions, count = generator.conditioning, None, None, NUM_SAMPLES // 2
    if conditioning.takes_images and subject.examples is not None:
        assert subject.examples.conditions is not None
        conditions = subject.examples.conditions[:MAX_PER_CLASS]
        count = len(conditions)
    elif conditioning.num_classes is not None:
        classes = evenly_spaced(conditioning.num_classes, MAX_CLASSES)
        per_class = min(MAX_PER_CLASS, NUM_SAMPLES // len(classes))
        labels = torch.tensor(classes).repeat_interleave(per_class)
        count = len(labels)
    condition = conditions if labels is None else labels
    return Images(generator.sample(count, condition, seed=0).cpu(), labels, conditions)


def samples_by_class(subject: Subject, samples: Images) -> Iterator[Part]:
    """Shows samples by class, or next to their condition images."""
    examples, pixels = subject.examples, subject.pixels(samples.images)
    if samples.conditions is not None and examples is not None:
        generator = _generator(subject)
        encoder = generator.require_condition_tokenizer()
        palette = palette_of(encoder, getattr(generator.conditioning, "palette", None))
        columns = to_uint8(samples.conditions, palette), pixels, subject.pixels(examples.images)
        groups = [Group.of("", *row) for row in zip(*columns, strict=False)]
        yield Pictures(groups, "condition · sample · original image")
        return
    by_class: dict[str, list[np.ndarray]] = {}
    for name, sample in zip(subject.captions(samples), pixels, strict=True):
        by_class.setdefault(name, []).append(sample)
    yield Pictures([Group.of(name, *group) for name, group in by_class.items()])


def attention(subject: Subject, images: Images) -> Iterator[Part]:
    """Shows where each layer and head looks when it predicts some of the tokens."""
    generator = _generator(subject)
    tokens = generator.to_tokens(encoded(subject, images.images))
    height, width = generator.grid_size
    centres = {row * width + width // 2 for row in (height // 3, 2 * height // 3)}
    positions = sorted({*centres, height * width - 1})
    cells = generator.to_tokens(torch.arange(height * width).view(1, height, width))[0]
    queries = [int((cells == position).nonzero()) for position in positions]  # in the sequence
    maps = attention_maps(generator, tokens, subject.condition(images), queries).cpu()
    maps = generator.to_indices(maps.movedim(-1, 1)).flatten(1, 2).movedim(1, -1)  # by cell
    pixels = subject.pixels(images.images)
    layers = evenly_spaced(maps.shape[1], MAX_LAYERS)
    heads = evenly_spaced(maps.shape[2], MAX_HEADS)
    for i, name in enumerate(subject.captions(images)):
        for number, position in enumerate(positions):
            rows: dict[str, list[Picture]] = {}
            for layer, head in product(layers, heads):
                weights = maps[i, layer, head, number]
                lit = on_image(pixels[i], weights.view(height, width).numpy(), position)
                picture = Picture.of(lit, f"{1 - weights.sum():.0%} on the condition")
                rows.setdefault(f"layer {layer + 1}", []).append(picture)
            row, column = divmod(position, width)
            yield Matrix(
                join(name, f"token {position + 1}, row {row + 1}, column {column + 1}"),
                [f"head {head + 1}" for head in heads],
                rows,
                open=i == number == 0,
            )


def surprise(subject: Subject, images: Images, held_out: Images | None) -> Iterator[Part]:
    """Shows the bits of each token over images, and their mean at each position."""
    generator = _generator(subject)
    uniform = math.log2(generator.transformer.config.codebook_size)
    height, width = generator.grid_size
    pixels, groups = subject.pixels(images.images), []

    def picture(bits: Tensor) -> Picture:
        tooltips = [f"{value:.2f} bits" for value in bits.tolist()]
        colors = heat(bits.view(height, width).numpy(), uniform)
        return Picture.of(colors, "", tooltips, width)

    if held_out is not None:
        bits = _bits(subject, held_out)
        mean = bits.mean().item()
        rows = [
            ["bits per token", f"{mean:.3f}"],
            ["bits per token of a uniform guess", f"{uniform:.3f}"],
            ["measured on", f"{len(bits):,} images"],
        ]
        yield Table(("", "held-out images"), rows)
        if mean > 0.95 * uniform:
            yield Finding(
                "The transformer predicts tokens hardly better than chance. Train longer."
            )
        yield from condition_effect(subject, held_out, bits)
        groups.append(Group("mean at each position", [picture(bits.mean(0))]))
    captions = subject.captions(images)
    for name, image, bits in zip(captions, pixels, _bits(subject, images), strict=True):
        caption = join(name, f"{bits.mean():.2f} bits per token")
        groups.append(Group(caption, [Picture.of(image), picture(bits)]))
    yield Pictures(groups, f"image · bits, from black for 0 to bright for {uniform:.3g}, a guess")


def condition_effect(subject: Subject, images: Images, bits: Tensor) -> Iterator[Finding]:
    """Reports a condition that does not help to predict the tokens.

    The gain is log2 p(tokens | condition) − log2 p(tokens | another condition), the mean over
    images. Below 1 bit, the model prefers the right condition with odds of less than 2 to 1.
    `bits` `(b n)` are the surprise with the right condition.
    """
    conditioning = _generator(subject).conditioning
    if conditioning.takes_images and images.conditions is not None:
        name, swapped = "condition image", images._replace(conditions=images.conditions.roll(1, 0))
    elif images.labels is not None and (num_classes := conditioning.num_classes or 0) > 1:
        name, swapped = "class", images._replace(labels=(images.labels + 1) % num_classes)
    else:
        return
    gain = (_bits(subject, swapped) - bits).sum(1).mean().item()
    if gain < 1:
        yield Finding(
            f"The {name} has no effect yet: with another {name}, the tokens of an image cost "
            f"{gain:.2f} bits more. Train longer."
        )


def neighbours(subject: Subject, samples: Images) -> Iterator[Part]:
    """Shows the nearest training images of samples and of held-out images."""
    assert subject.train is not None and subject.held_out is not None
    train = _compared(subject.train.images)
    medians: list[float] = []
    traces: list[dict[str, Any]] = []
    for name, images in (("samples", samples), ("held-out images", subject.held_out)):
        images = images.thin(len(samples.images))
        distances = torch.cdist(_compared(images.images), train)  # (b t)
        nearest = distances.topk(min(3, len(train)), largest=False)
        medians.append(nearest.values[:, 0].median().item())
        y = [float(f"{value:.4g}") for value in nearest.values[:, 0].tolist()]
        style = {"boxpoints": "all", "jitter": 0.5, "marker": {"color": COLORS[len(traces)]}}
        traces.append({"type": "box", "y": y, "name": name, **style})
        groups, captions = [], subject.captions(images)
        for i in evenly_spaced(len(images.images), MAX_PER_CLASS):
            query = subject.pixels(images.images[i : i + 1])
            neighbour_pixels = subject.pixels(subject.train.images[nearest.indices[i]])
            caption = join(captions[i], f"{nearest.values[i, 0]:.1f} grey levels")
            groups.append(Group.of(caption, *query, *neighbour_pixels))
        yield Pictures(groups, f"one of the {name} · the nearest of {len(train):,} training images")
    axis = {"title": {"text": "grey levels"}, "rangemode": "tozero"}
    figure = figure_json(traces, yaxis=axis, showlegend=False)
    yield Chart("distance to the nearest training image", figure)
    if medians[1] == 0:  # held-out images are copies of training images
        return
    ratio = medians[0] / medians[1]
    comparison = f"{ratio:.2f} times as far from training images as held-out images are"
    if ratio < COPY_RATIO:
        yield Finding(f"Samples are only {comparison}. They may be copies.")
    elif ratio > UNLIKE_RATIO:
        yield Finding(f"Samples do not look like the images yet: they are {comparison}.")


def _bits(subject: Subject, images: Images) -> Tensor:
    """Returns the surprise `(b n)` of the images' cells in raster order, on the CPU."""
    generator, bits = _generator(subject), []
    tokens = generator.to_tokens(encoded(subject, images.images))
    for indices in torch.arange(len(tokens)).split(BATCH_SIZE):
        condition = subject.condition(images.select(indices))
        bits.append(token_surprise(generator, tokens[indices], condition).cpu())
    return to_tokens(generator.to_indices(torch.cat(bits)))


def _compared(images: Tensor) -> Tensor:
    """Returns small copies as rows. Their Euclidean distance is the RMS error in grey levels."""
    side = min(COMPARED_SIDE, *images.shape[2:])
    rows = F.adaptive_avg_pool2d(images.float(), side).flatten(1)
    return rows * 127.5 / math.sqrt(rows.shape[1])


def _generator(subject: Subject) -> ImageGenerator:
    assert subject.generator is not None
    return subject.generator
