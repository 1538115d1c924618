"""Pictures of a tokenizer: reconstructions, codebook and code grids."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from taming.evaluation.metrics import codebook_usage, image_psnr
from taming.generation import codes_alone
from taming.quantizers.interface import count_codes
from taming.report.curves import COLORS, figure_json, thinned
from taming.report.health import LOW_PSNR
from taming.report.images import code_colors, heat, shrunk, tiled
from taming.report.page import Chart, Finding, Group, Part, Picture, Pictures, Table
from taming.report.subject import Images, Subject
from taming.runtime.contexts import evaluation_mode

__all__ = ["codebook", "encoded", "join", "reconstructions", "token_grids"]

FULL_ERROR = 0.5  # error of full brightness, of the range -1 to 1: 64 grey levels
MAX_CODES = 1024  # pictures of single codes
TILE = 16  # pixels per side of a code's picture
BATCH_SIZE = 32


def reconstructions(subject: Subject, images: Images) -> Iterator[Part]:
    """Shows images, their reconstructions and the errors."""
    outputs = _decoded(subject, encoded(subject, images.images))
    if subject.tokenizer.label_maps:
        errors = (outputs.argmax(1) != images.images.argmax(1)).float()  # (b H W)
        numbers = [f"{1 - share:.1%} of pixels" for share in errors.mean((1, 2)).tolist()]
        scale = "wrong pixels"
    else:
        errors = (outputs.clamp(-1, 1) - images.images).abs().mean(1) / FULL_ERROR
        psnr = image_psnr(outputs, images.images)
        numbers = [f"{value:.1f} dB" for value in psnr.tolist()]
        scale = "error, from black for 0 to bright for 64 grey levels"
        if subject.generator is not None and psnr.mean() < LOW_PSNR:
            yield Finding(
                f"The tokenizer's reconstructions are below {LOW_PSNR:.0f} dB (PSNR "
                f"{psnr.mean():.1f} dB), and samples cannot be sharper. Train a better tokenizer."
            )
    originals, decoded_pixels = subject.pixels(images.images), subject.pixels(outputs)
    groups = []
    for i, name in enumerate(subject.captions(images)):
        views = originals[i], decoded_pixels[i], heat(errors[i].numpy(), 1)
        groups.append(Group.of(join(name, numbers[i]), *views))
    yield Pictures(groups, f"image · reconstruction · {scale}")


def codebook(subject: Subject, images: Images | None) -> Iterator[Part]:
    """Shows how often each code is used on images, and what each code decodes to."""
    size = subject.tokenizer.codebook_size
    order, num_used = torch.arange(size), size
    tooltips = [f"code {code}" for code in range(size)]
    if images is not None:
        counts = count_codes(encoded(subject, images.images).flatten(), size)
        order, num_used = counts.argsort(descending=True, stable=True), int((counts > 0).sum())
        shares = (counts / counts.sum())[order].tolist()
        tooltips = [f"code {c}: {s:.2%}" for c, s in zip(order.tolist(), shares, strict=True)]
        yield from _usage(counts, len(images.images))
        yield _usage_chart(shares[:num_used])
    for start, end, name in ((0, num_used, "in use"), (num_used, size, "unused")):
        codes = slice(start, min(end, start + MAX_CODES))
        if codes.start < codes.stop:
            pictures = subject.pixels(codes_alone(subject.tokenizer, order[codes]))
            factor = -(-TILE // pictures.shape[1])  # enlarge to at least TILE, then shrink to it
            pictures = pictures.repeat(factor, 1).repeat(factor, 2)
            pictures = shrunk(pictures, pictures.shape[1] // TILE)
            num_columns = min(32, len(pictures))
            atlas = tiled(pictures, num_columns, gap=1)
            limit = f", the first {MAX_CODES:,}" if end > codes.stop else ""
            picture = Picture.of(atlas, "", tooltips[codes], num_columns)
            group = Group(f"{end - start:,} codes {name}{limit}", [picture])
            yield Pictures([group], side=2 * TILE * num_columns)


def _usage(counts: Tensor, num_images: int) -> Iterator[Part]:
    """Yields how many codes are used, and how evenly."""
    used, size, total = int((counts > 0).sum()), len(counts), int(counts.sum())
    perplexity = codebook_usage(counts)["codebook_perplexity"].item()
    rows = [
        ["codes in use", f"{used:,} of {size:,} ({used / size:.1%})"],
        ["perplexity", f"{perplexity:.1f}"],
        ["entropy", f"{math.log2(perplexity):.2f} of {math.log2(size):.2f} bits"],
        ["counted on", f"{num_images:,} images, {total:,} codes"],
    ]
    yield Table(("", "held-out images"), rows)
    if used < size / 2 and total >= 10 * size:
        yield Finding(f"Fewer than half of the codes are in use: {used:,} of {size:,}.")


def _usage_chart(shares: list[float]) -> Chart:
    """Returns the shares of the used codes, in descending order, as a curve."""
    numbers, percent = thinned(np.arange(1, len(shares) + 1), 100 * np.array(shares))
    points = {"x": numbers.tolist(), "y": [float(f"{value:.4g}") for value in percent]}
    style = {"type": "scatter", "fill": "tozeroy", "line": {"color": COLORS[0]}}
    x_axis = {"title": {"text": "codes, most frequent first"}}
    y_axis = {"title": {"text": "% of all codes"}, "rangemode": "tozero"}
    figure = figure_json([{**points, **style}], xaxis=x_axis, yaxis=y_axis)
    return Chart("frequency of each code", figure)


def token_grids(subject: Subject, images: Images) -> Iterator[Part]:
    """Shows the code grids of images: what each code decodes to, and a colour per code."""
    grids = encoded(subject, images.images)
    originals, groups = subject.pixels(images.images), []
    decoded_pixels = subject.pixels(_decoded(subject, grids))
    for i, name in enumerate(subject.captions(images)):
        height, width = grids[i].shape
        codes, positions = grids[i].unique(return_inverse=True)
        alone = subject.pixels(codes_alone(subject.tokenizer, codes))  # (k f f 3)
        tooltips = [f"code {code}" for code in grids[i].flatten().tolist()]
        atlas = tiled(alone[positions.flatten().numpy()], width)
        views = decoded_pixels[i], atlas, code_colors(grids[i].numpy())
        pictures = [Picture.of(view, "", tooltips, width) for view in views]
        text = f"{height}×{width} codes, {len(codes)} different"
        groups.append(Group(join(name, text), [Picture.of(originals[i]), *pictures]))
    yield Pictures(groups, "image · reconstruction · each code decoded alone · one colour per code")


def encoded(subject: Subject, images: Tensor) -> Tensor:
    """Returns the codebook indices `(b h w)` of images, on the CPU."""
    return _in_batches(subject, subject.tokenizer.encode, images)


def _decoded(subject: Subject, indices: Tensor) -> Tensor:
    """Returns the images `(b c H W)` of indices, on the CPU."""
    return _in_batches(subject, subject.tokenizer.decode, indices).float()


@torch.no_grad()
def _in_batches(subject: Subject, function: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    device = subject.tokenizer.device
    with evaluation_mode(subject.tokenizer):
        batches = inputs.split(BATCH_SIZE)
        return torch.cat([function(batch.to(device)).cpu() for batch in batches])


def join(*texts: str) -> str:
    """Joins the texts that are not empty."""
    return " · ".join(filter(None, texts))
