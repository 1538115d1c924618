"""A GPU without values: the device "npy", whose tensors have only a shape, strides and a dtype.

Networks, losses, backward passes, optimizers and metrics run there as on a GPU, also where there is
no GPU. A tensor that was forgotten on the CPU fails there. The CPU computes as always.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

PACKAGE = Path(__file__).parents[1] / "taming"

aten = torch.ops.aten
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
DEVICE = torch.device("privateuseone", 0)  # "npy" once it is registered

# The rules of CUDA's autocast (aten/src/ATen/autocast_mode.h). It computes these operations in half
# precision, leaves these as they are, and computes the others that it knows in float32.
IN_HALF_PRECISION = {
    "_convolution", "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "conv1d", "conv2d",
    "conv3d", "conv_transpose2d", "convolution", "einsum", "linear", "matmul", "mm", "mv", "prelu",
    "scaled_dot_product_attention",
}  # fmt: skip
IN_WIDEST_PRECISION = {"addcdiv", "addcmul", "cross", "dot", "grid_sampler", "index_put",
    "scatter_add", "tensordot", "vdot"}  # fmt: skip


class FakeDevice(TorchDispatchMode):
    """Runs operations on "npy" by their shapes, and notes what they ask of the host.

    Reading gives ones: `item` is 1, and a copy on the CPU holds ones. Only `any` is False, because
    `isnan().any()` is the question asked most.

    Attributes:
        reads: places in the code that read a value, for which a GPU would be waited for.
        uploads: places that copy a tensor from the CPU.
        scalars: operations with a number that is a tensor on the CPU: a recorded graph would keep
            its value.
        steps: the number of reads at the beginning of each training step.
    """

    current: ClassVar["FakeDevice"]

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.reads: list[str] = []
        self.uploads: list[str] = []
        self.scalars: list[str] = []
        self.steps: list[int] = []

    def forget(self) -> None:
        for notes in (self.reads, self.uploads, self.scalars):
            notes.clear()

    def step_reads(self) -> list[list[str]]:
        """The reads of each training step, up to the beginning of the next one."""
        ends = [*self.steps[1:], len(self.reads)]
        return [self.reads[start:end] for start, end in zip(self.steps, ends, strict=True)]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        tensors = tensors_in((*args, *kwargs.values()))
        here = [x for x in tensors if not isinstance(x, FakeTensor)]  # on the CPU
        target = kwargs.get("device")
        to_here = target is not None and torch.device(target).type != DEVICE.type
        if len(here) == len(tensors) and (target is None or to_here):
            return func(*args, **kwargs)
        if func.has_kernel_for_dispatch_key(COMPOSITE):  # in inference mode they arrive whole
            with self:
                return func.decompose(*args, **kwargs)
        if func is aten._local_scalar_dense.default:
            self.reads.append(place())
            return int(not getattr(args[0], "is_of_any", False))
        if func is aten._to_copy.default and to_here:
            self.reads.append(place())
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if func is aten.copy_.default and not isinstance(args[0], FakeTensor):
            self.reads.append(place())
            return args[0].fill_(1)
        if func is aten.nonzero.default:
            self.reads.append(place())
            return args[0].new_zeros(1, args[0].ndim, dtype=torch.int64)
        if func is aten.equal.default:
            self.reads.append(place())
            return True
        if func is aten.bincount.default:
            self.reads.append(place())
            return args[0].new_zeros(kwargs.get("minlength", args[-1]))
        if func in (aten._to_copy.default, aten.copy_.default) and here:
            self.uploads.append(place())
        elif func is aten.index.Tensor:
            if not isinstance(args[0], FakeTensor):
                raise RuntimeError("the indices are on another device than the tensor")
            args, here = [args[0], self._indices(args[1])], []
        elif here:
            self.scalars.append(f"{func} at {place()}")
        if here:
            args, kwargs = tree_map_only(torch.Tensor, self._fake, (args, kwargs))
        result = self.fake.dispatch(func, types, args, kwargs)
        if func.overloadpacket is aten.any:
            result.is_of_any = True
        return result

    def _indices(self, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Returns indices on the device. A mask selects any number of elements, here one."""
        moved: list[torch.Tensor | None] = []
        for index in indices:
            if index is None:
                moved.append(None)
                continue
            is_mask = index.dtype == torch.bool
            if not isinstance(index, FakeTensor):
                self.uploads.append(place())
            elif is_mask:
                self.reads.append(place())
            with self.fake:
                shape = (1,) if is_mask else index.shape
                numbers = torch.empty(shape, dtype=torch.int64, device=DEVICE)
            moved += [numbers] * (index.ndim if is_mask else 1)
        return moved

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        layout = tuple(tensor.shape), tensor.stride()
        with self.fake:
            return torch.empty_strided(*layout, dtype=tensor.dtype, device=tensor.device)


def tensors_in(arguments: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among the arguments of an operation, and in their lists."""
    tensors = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            tensors.append(argument)
        elif isinstance(argument, list | tuple):
            tensors += [x for x in argument if isinstance(x, torch.Tensor)]
    return tensors


def place() -> str:
    """The innermost function of the package that is running, as `training/module.py _log`."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            return f"{path.relative_to(PACKAGE)} {frame.f_code.co_name}"
        frame = frame.f_back
    return "elsewhere"


# --- registration -------------------------------------------------------------------------------


class Backend:
    """`torch.npy`, which exists in all tests of a process but is available only if `active`."""

    active = False

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return self.active

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return int(self.active)

    def device(self, index: int) -> Any:
        return nullcontext()

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.zeros(8, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


BACKEND = Backend()
SETUP = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)
AUTOCAST = torch.library.Library("aten", "IMPL")
OTHERS = torch.library.Library("_", "IMPL")
KEY = "AutocastPrivateUse1"


def register() -> None:
    """Adds the device to PyTorch, before the first backward pass, which counts the devices.

    Does nothing if this PyTorch lacks the function for it, which is experimental, or if there is a
    GPU: PyTorch has one kind of accelerator.
    """
    if SETUP is None or torch.cuda.is_available():
        return

    class Hook(torch._C._acc.PrivateUse1Hooks):
        def is_available(self) -> bool:
            return BACKEND.active

        def has_primary_context(self, index: int) -> bool:
            return BACKEND.active

        def is_built(self) -> bool:
            return BACKEND.active

    SETUP("npy", backend_module=BACKEND, hook=Hook())
    OTHERS.fallback(torch.library.fallthrough_kernel, KEY)
    for name in torch._C._dispatch_get_all_op_names():
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA"):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            function = getattr(getattr(aten, packet), overload or "default")
            AUTOCAST.impl(function, autocast(packet, function), KEY)


def autocast(name: str, function: Any) -> Callable[..., Any]:
    """The operation as autocast calls it."""

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        dtype = torch.float32
        if name in IN_HALF_PRECISION:
            dtype = torch.get_autocast_dtype("npy")
        elif name in IN_WIDEST_PRECISION or tensor.dtype == torch.float32:
            return tensor
        floats = (torch.float32, torch.bfloat16, torch.float16)
        return tensor.to(dtype) if tensor.dtype in floats else tensor

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(KEY)):
            args, kwargs = tree_map_only(torch.Tensor, cast, (args, kwargs))
            return function(*args, **kwargs)

    return call


@contextmanager
def fake_device() -> Iterator[FakeDevice]:
    """Within it, tensors and modules can be moved to the device."""
    if DEVICE.type != "npy":
        pytest.skip("needs a PyTorch that can register a device, and no GPU")
    device = FakeDevice()
    with pytest.MonkeyPatch.context() as patch, device:
        patch.setattr(FakeDevice, "current", device, raising=False)
        patch.setattr(BACKEND, "active", True)
        # one read, and not one per element
        patch.setattr(FakeTensor, "tolist", lambda tensor: tensor.cpu().tolist(), raising=False)
        patch.setattr(nn.Module, "_apply", replace_tensors)
        torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` otherwise skips dispatch modes
        try:
            yield device
        finally:
            torch._C._set_only_lift_cpu_tensors(False)


def replace_tensors(module: nn.Module, fn: Callable[..., Any], recurse: bool = True) -> nn.Module:
    """Stands for `Module._apply`, which PyTorch cannot do in place for these tensors."""
    for child in module.children() if recurse else ():
        child._apply(fn)
    for name, weight in module._parameters.items():
        with torch.no_grad():
            moved = weight if weight is None else fn(weight)
        if moved is not weight:
            module._parameters[name] = nn.Parameter(moved, weight.requires_grad)
    for name, buffer in module._buffers.items():
        module._buffers[name] = buffer if buffer is None else fn(buffer)
    return module


def everywhere_fake(result: Any) -> bool:
    """Whether all tensors in it are on the device."""
    tensors = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
    return bool(tensors) and all(x.device == DEVICE for x in tensors)
