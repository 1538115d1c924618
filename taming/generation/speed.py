"""Fast sampling on the current machine: the precision of the weights, and compilation.

Each decision depends only on the device, the model's sizes and the number of images, so that the
same seed gives the same images on one machine. One decision is timed: whether a processor is faster
in bfloat16. Its margin is wide enough that other work on the machine hardly ever changes it.
"""

import math
from dataclasses import replace
from typing import Literal

import torch

from taming.generation.options import SamplingOptions
from taming.runtime.hardware import can_compile, has_bf16, multiplies_faster_in_bf16
from taming.tokenizer import VQGAN
from taming.transformer import GPT

__all__ = [
    "SamplingDtype",
    "compiles",
    "decide_compilation",
    "in_bfloat16",
    "use_dtype",
]

SamplingDtype = Literal["auto", "float32", "bfloat16"]


def in_bfloat16(device: torch.device, width: int) -> bool:
    """Returns whether a network is faster in bfloat16 than in float32.

    - GPUs with bfloat16 are faster: they read half the bytes for each token and use tensor cores.
    - Older GPUs emulate it and are slower. In float16 the sums of a deep transformer can overflow
      unnoticed.
    - Some processors multiply faster in it, which pays from a width of 384 on. With AMX, a training
      step was 1.8 times as fast for a GPT of width 512, 1.4 times as slow for a GPT of width 128,
      and 1.7 times as fast for a VQGAN of 128 to 512 channels. On an AMD EPYC with AVX-512's
      bfloat16 and without AMX, bfloat16 multiplied the tokens per second of GPTs of 8 layers by:

      | width     | 128  | 256  | 384  |
      |-----------|------|------|------|
      | 1 image   | 0.74 | 1.24 | 1.94 |
      | 16 images | 0.73 | 1.02 | 1.29 |
    - Other processors are slower.

    Args:
        device: where the network is.
        width: a transformer's `embed_dim`, or the channels of a decoder's widest level.
    """
    if device.type == "cpu":
        return width >= 384 and multiplies_faster_in_bf16()
    return has_bf16(device)


def compiles(device: str, num_sequences: int, num_steps: int) -> bool:
    """Returns whether compiling the step that draws a token saves more time than it takes.

    Compilation takes 14 to 25 seconds on a processor and up to a minute on a GPU. On a processor
    with AVX-512, a compiled step was 1.4 times as fast for one sequence, 1.25 times for two, and
    not faster for 16. That paid off after 5,000 to 12,000 steps. On a GPU a captured step saves a
    few milliseconds, the time to start hundreds of kernels.

    Args:
        device: `torch.device.type`.
        num_sequences: number of sequences in a batch; with guidance two for each image.
        num_steps: number of steps to come.
    """
    return num_steps >= 20_000 and (device == "cuda" or (device == "cpu" and num_sequences <= 4))


def use_dtype(transformer: GPT, tokenizer: VQGAN, dtype: SamplingDtype) -> None:
    """Converts transformer and decoder for sampling; encoder and codebook stay in float32."""
    device, config = transformer.head.weight.device, tokenizer.config
    widest = config["base_channels"] * max(config["channel_multipliers"])
    decoder = [tokenizer.post_quantizer, tokenizer.decoder]
    for width, networks in ((transformer.config.embed_dim, [transformer]), (widest, decoder)):
        if dtype == "bfloat16" or (dtype == "auto" and in_bfloat16(device, width)):
            for network in networks:
                network.to(torch.bfloat16)
    if device.type == "cuda" and tokenizer.last_layer.dtype == torch.bfloat16:
        for network in decoder:  # the format that tensor cores read
            network.to(memory_format=torch.channels_last)


def decide_compilation(
    options: SamplingOptions, device: torch.device, grid_size: tuple[int, int], num_images: int
) -> SamplingOptions:
    """Replaces `compile="auto"` by the better choice for this number of images."""
    if options.compile != "auto":
        return options
    if options.num_steps is not None:  # each step of another size would be compiled
        return replace(options, compile=False)
    height, width = options.grid_size or grid_size
    batch_size = min(options.images_at_once, num_images)
    num_steps = math.ceil(num_images / batch_size) * height * width
    num_sequences = batch_size if options.guidance.is_off else 2 * batch_size
    worthwhile = compiles(device.type, num_sequences, num_steps)
    return replace(options, compile=worthwhile and can_compile(device))
