"""What makes sampling fast on the machine at hand: precision of the weights, and compilation.

Each choice depends on the device, the sizes of the model and the number of images alone, so that
the same seed gives the same images on one machine. Only whether a processor is faster in bfloat16
is timed, with a margin that other work on it hardly ever decides.
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

    - On GPUs that have it: half the bytes to read for each token, and tensor cores.
    - On older GPUs not: they emulate it, and in float16 the sums of a deep transformer can
      overflow, which nothing would notice.
    - On processors whose products are faster in it, from a width of 384 on. With AMX, a training
      step of a GPT 512 wide was 1.8 times as fast, of one 128 wide 1.4 times as slow, and of a
      VQGAN of 128 channels, up to 512 wide, 1.7 times as fast. An AMD EPYC with AVX-512's bfloat16
      and no AMX drew so many times as many tokens a second from GPTs of 8 layers:

      | width     | 128  | 256  | 384  |
      |-----------|------|------|------|
      | 1 image   | 0.74 | 1.24 | 1.94 |
      | 16 images | 0.73 | 1.02 | 1.29 |
    - On other processors not.

    Args:
        device: where the network is.
        width: of a transformer its `embed_dim`, of a decoder its widest level.
    """
    if device.type == "cpu":
        return width >= 384 and multiplies_faster_in_bf16()
    return has_bf16(device)


def compiles(device: str, num_sequences: int, num_steps: int) -> bool:
    """Returns whether compiling the step that draws a token saves more time than it takes.

    It takes 14 to 25 seconds on a processor, up to a minute on a GPU. On a processor (AVX-512) a
    compiled step of one sequence was 1.4 times as fast, one of two 1.25 times, which paid after
    5,000 to 12,000 steps, and one of 16 no faster; on a GPU a captured step saves the start of
    hundreds of kernels, a few milliseconds.

    Args:
        device: `torch.device.type`.
        num_sequences: through the transformer at once; with guidance two for each image.
        num_steps: steps that are coming, one after the other.
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
        for network in decoder:  # as tensor cores read them
            network.to(memory_format=torch.channels_last)


def decide_compilation(
    options: SamplingOptions, device: torch.device, grid_size: tuple[int, int], num_images: int
) -> SamplingOptions:
    """Replaces `compile="auto"` for so many images of a model's grid size."""
    if options.compile != "auto":
        return options
    height, width = options.grid_size or grid_size
    batch_size = min(options.images_at_once, num_images)
    num_steps = math.ceil(num_images / batch_size) * height * width
    num_sequences = batch_size if options.guidance.is_off else 2 * batch_size
    worthwhile = compiles(device.type, num_sequences, num_steps)
    return replace(options, compile=worthwhile and can_compile(device))
