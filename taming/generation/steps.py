"""Prefill and steps of decoding: one function of tokens and their positions.

On its own a step is small: run operation by operation it spends more time on starting them than on
computing. `CompiledSteps` compiles the same function, and on GPUs captures it as a graph.
"""

from collections.abc import Callable
from types import FunctionType

import torch
from torch import Tensor

from taming.attention import KeyValueCache
from taming.conditioning import Prompt
from taming.generation.choice import TokenChoice
from taming.transformer import GPT

__all__ = ["CompiledSteps", "Steps"]

SHORTEST_SPAN = 256


def next_logits(
    transformer: GPT,
    cache: KeyValueCache,
    tokens: Tensor,
    positions: Tensor,
    prompt: Prompt | None = None,
) -> Tensor:
    """Returns the logits `(b v)` of what follows the last of the tokens.

    Args:
        transformer: in evaluation mode.
        cache: has all earlier positions, and gets these.
        tokens: `(b n)` int64.
        positions: `(p+n,)` int64, those of the prefix first.
        prompt: of p prefix ids, where the sequence begins.
    """
    prefix, context = (None, None) if prompt is None else prompt
    features = transformer.features(prefix, tokens, context, positions=positions, cache=cache)
    return transformer.head(features[:, -1])


def next_tokens(
    transformer: GPT,
    cache: KeyValueCache,
    choose: TokenChoice,
    num_prefix: int,
    latest: Tensor,
    position: Tensor,
) -> Tensor:
    """Returns the tokens `(b,)` that follow the latest `(b 1)`, which are at a position `(1,)`."""
    tokens = latest.repeat(choose.num_sequences, 1)
    return choose(next_logits(transformer, cache, tokens, position), position - num_prefix + 1)


class Steps:
    """Prefill and steps of batches of one shape.

    Args:
        transformer: in evaluation mode.
        choose: how a token is taken from its logits.
        prompt: of as many sequences as there will be, and as long.
        num_tokens: longest sequence of tokens.
    """

    def __init__(
        self, transformer: GPT, choose: TokenChoice, prompt: Prompt, num_tokens: int
    ) -> None:
        self.transformer = transformer
        self.choose = choose
        self.num_prefix = prompt.prefix.shape[1]
        max_length = self.num_prefix + num_tokens
        self.cache = KeyValueCache(len(transformer.blocks), max_length)
        self.positions = torch.arange(max_length, device=prompt.prefix.device)

    def prefill(self, prompt: Prompt, tokens: Tensor) -> Tensor:
        """Returns the logits of what follows prompts and tokens `(b n)`."""
        self.cache.clear()
        tokens = tokens.repeat(self.choose.num_sequences, 1)
        positions = self.positions[: self.num_prefix + tokens.shape[1]]
        return next_logits(self.transformer, self.cache, tokens, positions, prompt)

    def step(self, latest: Tensor, number: int) -> Tensor:
        """Returns the tokens that follow the latest ones.

        Args:
            latest: `(b 1)` int64.
            number: number of the new tokens in their images, 1 or more.

        Returns:
            `(b,)` int64.
        """
        end = self.num_prefix + number
        return self.run(next_tokens, latest, self.positions[end - 1 : end])

    def run(self, function: Callable[..., Tensor], latest: Tensor, position: Tensor) -> Tensor:
        """Calls `next_tokens`, or what has been made of it."""
        return function(
            self.transformer, self.cache, self.choose, self.num_prefix, latest, position
        )


class CompiledSteps(Steps):
    """Steps that are compiled when they are first called, which takes a while.

    The cache and the random numbers stay at the same place in memory from batch to batch, as a
    captured graph needs it.
    """

    def __init__(
        self, transformer: GPT, choose: TokenChoice, prompt: Prompt, num_tokens: int
    ) -> None:
        super().__init__(transformer, choose.copied(), prompt, num_tokens)
        self.prefix_shape = prompt.prefix.shape
        self._steps: dict[int, Callable[[Tensor, Tensor], Tensor]] = {}
        self._addresses = addresses(transformer)
        self._modes = modes(prompt.prefix.device)

    def fits(self, transformer: GPT, choose: TokenChoice, prompt: Prompt, num_tokens: int) -> bool:
        """Returns whether what is compiled serves these; see the constructor's arguments."""
        return (
            transformer is self.transformer
            and addresses(transformer) == self._addresses  # nothing moved, converted or replaced
            and prompt.prefix.shape == self.prefix_shape
            and num_tokens == self.cache.max_length - self.num_prefix
            and choose.same_settings(self.choose)
            and modes(prompt.prefix.device) == self._modes
        )

    def step(self, latest: Tensor, number: int) -> Tensor:
        """See `Steps`."""
        end = self.num_prefix + number
        position = self.positions[end - 1 : end]
        span = (
            SHORTEST_SPAN  # of the cache is looked at: few different numbers, none much too large
        )
        while span < end:
            span *= 2
        self.cache.span = min(span, self.cache.max_length)
        if span not in self._steps:
            self._steps[span] = self._compile(latest, position)
        return self._steps[span](latest, position)

    def _compile(self, latest: Tensor, position: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        # PyTorch counts how often a function is compiled anew, by its code: this one is its own
        code = next_tokens.__code__.replace()
        function = torch.compile(
            FunctionType(code, next_tokens.__globals__), fullgraph=True, dynamic=False
        )

        def step(latest: Tensor, position: Tensor) -> Tensor:
            return self.run(function, latest, position)

        return step if latest.device.type != "cuda" else CapturedStep(step, latest, position)


class CapturedStep:
    """A step recorded on the GPU with its memory, and replayed."""

    def __init__(
        self, step: Callable[[Tensor, Tensor], Tensor], latest: Tensor, position: Tensor
    ) -> None:
        self.latest, self.position = latest.clone(), position.clone()
        stream = torch.cuda.Stream(latest.device)  # which need not be the current device
        stream.wait_stream(torch.cuda.current_stream(latest.device))
        with torch.cuda.stream(stream):  # compiles, and sets aside what kernels need
            for _ in range(3):  # each writes the same keys and values at the same position
                step(self.latest, self.position)
        torch.cuda.current_stream(latest.device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        # of this thread alone: another may be loading data meanwhile
        with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
            self.result = step(self.latest, self.position)

    def __call__(self, latest: Tensor, position: Tensor) -> Tensor:
        self.latest.copy_(latest)
        self.position.copy_(position)
        self.graph.replay()
        return self.result


def addresses(transformer: GPT) -> tuple[int, ...]:
    """Returns where a captured graph finds the model."""
    return tuple(x.data_ptr() for x in (*transformer.parameters(), *transformer.buffers()))


def modes(device: torch.device) -> tuple[object, ...]:
    """Returns what else decides on the kind of memory that is set aside."""
    kind = device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return torch.is_inference_mode_enabled(), autocast
