"""What a generator draws, what it looks at while it draws, and what surprises it."""

import math
from collections.abc import Iterator
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
from taming.report.subject import Images, Subject, evenly
from taming.report.tokenizer_views import encoded, joined
from taming.transformer.orders import to_tokens

__all__ = ["attention", "draw_samples", "neighbours", "samples_by_class", "surprise"]

MAX_CLASSES, NUM_SAMPLES, MAX_EACH = 10, 40, 8
MAX_LAYERS, MAX_HEADS = 4, 8
AT_ONCE = 16
COMPARED_SIDE = 32  # pixels a side at which images are compared
COPIES = 0.5  # of the distance of held-out images: samples nearer than that may be copies


def draw_samples(subject: Subject) -> Images:
    """Draws samples of some classes, or for the shown conditions, always with the same seed."""
    generator = _generator(subject)
    conditioning, labels, conditions, count = generator.conditioning, None, None, NUM_SAMPLES // 2
    if conditioning.takes_images and subject.shown is not None:
        assert subject.shown.conditions is not None
        conditions = subject.shown.conditions[:MAX_EACH]
        count = len(conditions)
    elif conditioning.num_classes is not None:
        classes = evenly(conditioning.num_classes, MAX_CLASSES)
        labels = torch.tensor(classes).repeat_interleave(min(MAX_EACH, NUM_SAMPLES // len(classes)))
        count = len(labels)
    condition = conditions if labels is None else labels
    return Images(generator.sample(count, condition, seed=0).cpu(), labels, conditions)


def samples_by_class(subject: Subject, samples: Images) -> Iterator[Part]:
    """Shows samples by class, or beside their conditions."""
    shown, pixels = subject.shown, subject.pixels(samples.images)
    if samples.conditions is not None and shown is not None:
        generator = _generator(subject)
        encoder = generator.require_condition_tokenizer()
        palette = palette_of(encoder, getattr(generator.conditioning, "palette", None))
        columns = to_uint8(samples.conditions, palette), pixels, subject.pixels(shown.images)
        groups = [Group.of("", *some) for some in zip(*columns, strict=False)]
        yield Pictures(groups, "condition · sample · the image it belongs to")
        return
    by_class: dict[str, list[np.ndarray]] = {}
    for name, one in zip(subject.captions(samples), pixels, strict=True):
        by_class.setdefault(name, []).append(one)
    yield Pictures([Group.of(name, *some) for name, some in by_class.items()])


def attention(subject: Subject, images: Images) -> Iterator[Part]:
    """Shows, for some tokens, where each layer and head looks when the token is predicted."""
    generator, tokens = _generator(subject), to_tokens(encoded(subject, images.images))
    height, width = generator.grid_size
    middles = {row * width + width // 2 for row in (height // 3, 2 * height // 3)}
    chosen = sorted({*middles, height * width - 1})
    maps = attention_maps(generator, tokens, subject.condition(images), chosen).cpu()
    pixels = subject.pixels(images.images)
    layers, heads = evenly(maps.shape[1], MAX_LAYERS), evenly(maps.shape[2], MAX_HEADS)
    for i, name in enumerate(subject.captions(images)):
        for number, position in enumerate(chosen):
            rows = {}
            for layer in layers:
                pictures = []
                for head in heads:
                    weights = maps[i, layer, head, number]
                    lit = on_image(pixels[i], weights.view(height, width).numpy(), position)
                    title = f"{1 - weights.sum():.0%} on the condition"
                    pictures.append(Picture.of(lit, title))
                rows[f"layer {layer + 1}"] = pictures
            row, column = divmod(position, width)
            yield Matrix(
                joined(name, f"token {position + 1}, row {row + 1}, column {column + 1}"),
                [f"head {head + 1}" for head in heads],
                rows,
                open=i == number == 0,
            )


def surprise(subject: Subject, images: Images, many: Images | None) -> Iterator[Part]:
    """Shows the bits of each token over images, and its mean at each place of the grid."""
    generator = _generator(subject)
    most = math.log2(generator.transformer.config.codebook_size)
    height, width = generator.grid_size
    pixels, groups = subject.pixels(images.images), []

    def picture(bits: Tensor) -> Picture:
        cells = [f"{value:.2f} bits" for value in bits.tolist()]
        colors = heat(bits.view(height, width).numpy(), most)
        return Picture.of(colors, "", cells, width)

    if many is not None:
        bits = _bits(subject, many)
        mean = bits.mean().item()
        rows = [
            ["bits per token", f"{mean:.3f}"],
            ["if all codes were equally probable", f"{most:.3f}"],
            ["measured on", f"{len(bits):,} held-out images"],
        ]
        yield Table(("", "held-out images"), rows)
        if mean > 0.95 * most:
            yield Finding("The transformer predicts tokens hardly better than chance.")
        groups.append(Group("mean at each place", [picture(bits.mean(0))]))
    captions = subject.captions(images)
    for name, one, bits in zip(captions, pixels, _bits(subject, images), strict=True):
        text = f"{bits.mean():.2f} bits per token"
        groups.append(Group(joined(name, text), [Picture.of(one), picture(bits)]))
    yield Pictures(groups, f"image · bits, from black for 0 to bright for {most:.3g}, a pure guess")


def neighbours(subject: Subject, samples: Images) -> Iterator[Part]:
    """Shows the training images nearest to samples, and those nearest to held-out images."""
    assert subject.train is not None and subject.held_out is not None
    train = _compared(subject.train.images)
    medians: list[float] = []
    traces: list[dict[str, Any]] = []
    for name, images in (("samples", samples), ("held-out images", subject.held_out)):
        images = images.some(len(samples.images))
        distances = torch.cdist(_compared(images.images), train)  # (b t)
        nearest = distances.topk(min(3, len(train)), largest=False)
        medians.append(nearest.values[:, 0].median().item())
        y = [float(f"{value:.4g}") for value in nearest.values[:, 0].tolist()]
        style = {"boxpoints": "all", "jitter": 0.5, "marker": {"color": COLORS[len(traces)]}}
        traces.append({"type": "box", "y": y, "name": name, **style})
        groups, captions = [], subject.captions(images)
        for i in evenly(len(images.images), MAX_EACH):
            own, found = images.images[i : i + 1], subject.train.images[nearest.indices[i]]
            caption = joined(captions[i], f"{nearest.values[i, 0]:.1f} grey levels")
            groups.append(Group.of(caption, *subject.pixels(own), *subject.pixels(found)))
        yield Pictures(groups, f"one of the {name} · the nearest of {len(train):,} training images")
    axis = {"title": {"text": "grey levels"}, "rangemode": "tozero"}
    title = "distance to the nearest training image"
    yield Chart(title, figure_json(traces, yaxis=axis, showlegend=False))
    if medians[0] < COPIES * medians[1]:
        yield Finding(
            f"Samples are {medians[0] / medians[1]:.2f} times as far from training images as new "
            "images are: they may be copies of them."
        )


def _bits(subject: Subject, images: Images) -> Tensor:
    """Returns the surprise `(b n)` of the images' tokens, on the CPU."""
    generator, found = _generator(subject), []
    tokens = to_tokens(encoded(subject, images.images))
    for some in torch.arange(len(tokens)).split(AT_ONCE):
        condition = subject.condition(images.at(some))
        found.append(token_surprise(generator, tokens[some], condition).cpu())
    return torch.cat(found)


def _compared(images: Tensor) -> Tensor:
    """Returns small copies as rows whose Euclidean distance is the RMS error in grey levels."""
    side = min(COMPARED_SIDE, *images.shape[2:])
    rows = F.adaptive_avg_pool2d(images.float(), side).flatten(1)
    return rows * 127.5 / math.sqrt(rows.shape[1])


def _generator(subject: Subject) -> ImageGenerator:
    assert subject.generator is not None
    return subject.generator
