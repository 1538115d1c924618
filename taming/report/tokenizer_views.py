"""What a tokenizer does to images, and what its codes are."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from taming.evaluation.metrics import codebook_usage, image_psnr
from taming.generation import codes_alone
from taming.quantizers.interface import count_codes
from taming.report.curves import COLORS, figure_json, thinned
from taming.report.images import code_colors, heat, shrunk, tiled
from taming.report.page import Chart, Finding, Group, Part, Picture, Pictures, Table
from taming.report.subject import Images, Subject
from taming.runtime.contexts import evaluation_mode

__all__ = ["codebook", "reconstructions", "token_grids"]

FULL_ERROR = 0.5  # of the range -1 to 1: errors of 64 grey levels and more are brightest
MAX_CODES = 1024  # shown one by one
TILE = 16  # pixels a side, at least, of a code shown alone
AT_ONCE = 32


def reconstructions(subject: Subject, images: Images) -> Iterator[Part]:
    """Shows images, their reconstructions and where they differ."""
    reconstructed = decoded(subject, encoded(subject, images.images))
    if subject.tokenizer.label_maps:
        errors = (reconstructed.argmax(1) != images.images.argmax(1)).float()  # (b H W)
        numbers = [f"{1 - share:.1%} of pixels" for share in errors.mean((1, 2)).tolist()]
        scale = "wrong pixels"
    else:
        errors = (reconstructed.clamp(-1, 1) - images.images).abs().mean(1) / FULL_ERROR
        numbers = [f"{value:.1f} dB" for value in image_psnr(reconstructed, images.images).tolist()]
        scale = "error, from black for 0 to bright for 64 grey levels"
    pixels, decoded_pixels = subject.pixels(images.images), subject.pixels(reconstructed)
    groups = [
        Group.of(
            joined(name, numbers[i]), pixels[i], decoded_pixels[i], heat(errors[i].numpy(), 1.0)
        )
        for i, name in enumerate(subject.captions(images))
    ]
    yield Pictures(groups, f"image · reconstruction · {scale}")


def codebook(subject: Subject, images: Images | None) -> Iterator[Part]:
    """Shows how often each code is used on images, and each code decoded by itself."""
    size = subject.tokenizer.codebook_size
    order, used = torch.arange(size), size
    labels = [f"code {code}" for code in range(size)]
    if images is not None:
        counts = count_codes(encoded(subject, images.images).flatten(), size)
        order, used = counts.argsort(descending=True, stable=True), int((counts > 0).sum())
        shares = (counts / counts.sum())[order].tolist()
        labels = [f"code {c}: {s:.2%}" for c, s in zip(order.tolist(), shares, strict=True)]
        yield from _usage(counts, len(images.images))
        yield _usage_chart(shares[:used])
    for start, end, name in ((0, used, "in use"), (used, size, "never used here")):
        some = slice(start, min(end, start + MAX_CODES))
        if some.start < some.stop:
            pictures = subject.pixels(codes_alone(subject.tokenizer, order[some]))
            factor = -(-TILE // pictures.shape[1])  # to TILE pixels, or down to it
            pictures = pictures.repeat(factor, 1).repeat(factor, 2)
            pictures = shrunk(pictures, pictures.shape[1] // TILE)
            num_columns = min(32, len(pictures))
            whole = tiled(pictures, num_columns, gap=1)
            more = f", the first {MAX_CODES:,}" if end > some.stop else ""
            group = Group(
                f"{end - start:,} codes {name}{more}",
                [Picture.of(whole, "", labels[some], num_columns)],
            )
            yield Pictures([group], side=2 * TILE * num_columns)


def _usage(counts: Tensor, num_images: int) -> Iterator[Part]:
    """Says how many codes are in use, and how evenly."""
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
    """Returns the shares of the codes in use, in descending order, as a curve."""
    numbers, percent = thinned(np.arange(1, len(shares) + 1), 100 * np.array(shares))
    trace = {
        "type": "scatter",
        "x": numbers.tolist(),
        "y": [float(f"{value:.4g}") for value in percent],
        "fill": "tozeroy",
        "line": {"color": COLORS[0]},
    }
    layout = {
        "xaxis": {"title": {"text": "codes, most used first"}},
        "yaxis": {"title": {"text": "% of all"}, "rangemode": "tozero"},
        "showlegend": False,
    }
    return Chart("how often each code is used", figure_json([trace], **layout))


def token_grids(subject: Subject, images: Images) -> Iterator[Part]:
    """Shows the code grids of images: as colours, and as what each code is by itself."""
    grids = encoded(subject, images.images)
    pixels, decoded_pixels = subject.pixels(images.images), subject.pixels(decoded(subject, grids))
    groups = []
    for i, name in enumerate(subject.captions(images)):
        height, width = grids[i].shape
        codes, places = grids[i].unique(return_inverse=True)
        alone = subject.pixels(codes_alone(subject.tokenizer, codes))  # (k f f 3)
        cells = [f"code {code}" for code in grids[i].flatten().tolist()]
        shown = (
            decoded_pixels[i],
            tiled(alone[places.flatten().numpy()], width),
            code_colors(grids[i].numpy()),
        )
        pictures = [Picture.of(p, "", cells, width) for p in shown]
        text = f"{height}×{width} codes, {len(codes)} different"
        groups.append(Group(joined(name, text), [Picture.of(pixels[i]), *pictures]))
    yield Pictures(groups, "image · reconstruction · each code alone · a colour for each code")


def encoded(subject: Subject, images: Tensor) -> Tensor:
    """Returns the codes `(b h w)` of images, on the CPU."""
    return _in_batches(subject, subject.tokenizer.encode, images)


def decoded(subject: Subject, grids: Tensor) -> Tensor:
    """Returns the images `(b c H W)` of codes, on the CPU."""
    return _in_batches(subject, subject.tokenizer.decode, grids).float()


@torch.no_grad()
def _in_batches(subject: Subject, function: Callable[[Tensor], Tensor], items: Tensor) -> Tensor:
    device = subject.tokenizer.device
    with evaluation_mode(subject.tokenizer):
        return torch.cat([function(some.to(device)).cpu() for some in items.split(AT_ONCE)])


def joined(*texts: str) -> str:
    """Joins the texts that are not empty."""
    return " · ".join(filter(None, texts))
