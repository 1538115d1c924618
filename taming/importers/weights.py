"""Foreign weights, of which every one must be used or dropped with a reason."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from taming.errors import UserError
from taming.serialization.foreign_names import shown, shown_names

__all__ = ["ForeignWeights"]

MAX_NAMED = 4  # of each sort of mismatch, in a message


class ForeignWeights:
    """A state dictionary that is emptied key by key; what does not fit is told all at once.

    Args:
        weights: by the other program's names; not changed.
        where: the file, for messages.

    Attributes:
        notes: lines that say what was used and dropped.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], where: str) -> None:
        self.where = where
        self.notes: list[str] = []
        self._left = dict(weights)
        self._used = 0
        self._missing: list[str] = []
        self._misshapen: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def names(self, prefix: str) -> list[str]:
        """Names of the weights not yet used or dropped that begin so."""
        return [name for name in self._left if name.startswith(prefix)]

    def peek(self, name: str) -> torch.Tensor | None:
        """A weight that stays to be used, or None."""
        return self._left.get(name)

    def take(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """Uses a weight; sizes of 1 do not count: a 1×1 convolution fits a linear layer.

        One that is missing or of another shape is noted for `finish`, and zeros stand for it.
        """
        shape = tuple(shape)
        zeros = torch.zeros(()).expand(shape)  # without memory, for a shape the file may have given
        weight = self._left.pop(name, None)
        if weight is None:
            self._missing.append(name)
            return zeros
        self._used += 1
        if [size for size in weight.shape if size != 1] != [size for size in shape if size != 1]:
            self._misshapen.append(f"{name} is {tuple(weight.shape)} and not {shape}")
            return zeros
        return weight.reshape(shape)

    def hand_over(self, prefix: str) -> dict[str, torch.Tensor]:
        """The weights that begin so, without the prefix; who gets them has to account for them."""
        names = self.names(prefix)
        return {name.removeprefix(prefix): self._left.pop(name) for name in names}

    def fill(
        self,
        module: nn.Module,
        names: Mapping[str, str],
        made: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, torch.Tensor]:
        """The state of `module` from these weights, in its dtypes.

        Args:
            module: gives names, shapes and dtypes, and the values of buffers the other program does
                not have.
            names: the module's names to the other program's; all of its parameters but those in
                `made`.
            made: weights that are not one of theirs as it is, by the module's names.
        """
        own = module.state_dict()
        made = {} if made is None else made
        nameless = {name for name, _ in module.named_parameters()} - set(names) - set(made)
        assert not nameless, f"parameters without a foreign name: {sorted(nameless)}"
        state: dict[str, torch.Tensor] = {}
        for name, value in own.items():
            if name in names:
                state[name] = self.take(names[name], value.shape).to(value.dtype)
            elif name in made:
                assert made[name].shape == value.shape, f"{name} is {tuple(made[name].shape)}"
                state[name] = made[name].to(value.dtype)
            else:
                state[name] = value
        return state

    def keep_rows(self, names: Sequence[str], rows: torch.Tensor) -> None:
        """Cuts these weights to some of their rows, in the order of `rows`.

        One with fewer rows stays as it is, for `take` to find that it does not fit.
        """
        for name in names:
            weight = self._left.get(name)
            if weight is not None and weight.ndim > 0 and len(weight) > rows.max():
                self._left[name] = weight[rows]

    def drop(self, prefix: str, reason: str, *, ending: str = "") -> None:
        """Leaves out the weights that begin and end so, if there are any."""
        names = [name for name in self.names(prefix) if name.endswith(ending)]
        for name in names:
            del self._left[name]
        if names:
            what = shown(names[0]) if len(names) == 1 else f"{prefix}*{ending} ({len(names)})"
            self.notes.append(f"dropped {what}: {reason}")

    def finish(self) -> None:
        """Checks that every weight fitted and none is left.

        Raises:
            UserError: naming what is missing, of another shape, or left.
        """
        problems = [
            f"{what} {shown_names(names, MAX_NAMED)}"
            for what, names in (
                ("missing in the file:", self._missing),
                ("of another shape:", self._misshapen),
                ("unexpected in the file:", sorted(self._left)),
            )
            if names
        ]
        if problems:
            raise UserError(
                f"{self.where} does not fit its config: {'; '.join(problems)}. Give the config the "
                "checkpoint was trained with."
            )
        self.notes.insert(0, f"used {self._used} weights")
