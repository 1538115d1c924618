"""Lightning's training on the fake device."""

from typing import Any

import torch
from fake_device import DEVICE, FakeDevice
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map_only


class FakeAccelerator(CPUAccelerator):
    def setup_device(self, device: torch.device) -> None:
        pass

    @staticmethod
    def name() -> str:
        return "npy"


class OnFakeDevice(SingleDeviceStrategy):
    """Lightning's training on the device; checkpoints hold zeros."""

    def __init__(self) -> None:
        super().__init__(DEVICE, accelerator=FakeAccelerator())

    @property
    def precision_plugin(self) -> Any:
        plugin = super().precision_plugin
        if isinstance(plugin, MixedPrecision) and plugin.device != DEVICE.type:
            plugin.device = DEVICE.type  # Lightning chooses CUDA's
            if plugin.scaler is not None:
                plugin.scaler = torch.amp.GradScaler(DEVICE.type)
        return plugin

    @precision_plugin.setter
    def precision_plugin(self, plugin: Any) -> None:
        self._precision_plugin = plugin

    def on_train_batch_start(self, *args: Any) -> None:
        device = FakeDevice.current
        device.steps.append(len(device.reads))

    def on_validation_start(self) -> None:
        self.on_train_batch_start()

    def teardown(self) -> None:
        """Leaves the module where it is; PyTorch cannot move it back after every failure."""

    def save_checkpoint(self, checkpoint: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        def zeros(tensor: torch.Tensor) -> torch.Tensor:
            if not isinstance(tensor, FakeTensor):
                return tensor
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).zero_()

        checkpoint = tree_map_only(torch.Tensor, zeros, checkpoint)
        super().save_checkpoint(checkpoint, *args, **kwargs)
