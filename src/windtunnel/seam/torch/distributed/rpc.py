"""`torch.distributed.rpc`: tensors on devices are refused, as TensorPipe refuses them where no device map is set."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

import torch

from windtunnel.errors import UnsupportedError
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.plans.messages import device_name
from windtunnel.seam.torch.tags import device_of

REFUSED = (
    "TensorPipe RPC backend only supports CPU tensors by default, please move your tensors to CPU before sending them "
    "over RPC, or call `set_device_map` on `TensorPipeRpcBackendOptions` to explicitly configure device mapping. "
    "Request device mapping is not available for device {device} but received a tensor on that device."
)
"""Of `getDevicesForTensors` in torch/csrc/distributed/rpc/tensorpipe_agent.cpp, less the name of the other worker."""


def _check(tensor: torch.Tensor) -> None:
    index = device_of(tensor)
    if index >= 0:
        raise RuntimeError(REFUSED.format(device=device_name(index)))


def _pickling(module: ModuleType) -> list[Patch]:
    """The arguments and results of Python functions."""
    pickler = module._internal_rpc_pickler  # the only one
    stock = pickler._tensor_reducer

    @functools.wraps(stock)
    def reduce(tensor: torch.Tensor) -> object:
        _check(tensor)
        return stock(tensor)

    table = {kind: reduce if reducer == stock else reducer for kind, reducer in pickler._dispatch_table.items()}
    return [Patch(pickler, "_dispatch_table", table)]


def _builtin(module: ModuleType) -> list[Patch]:
    """The arguments of PyTorch's own operators, which are not pickled."""

    def checked(stock: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(stock)
        def invoke(*args: object, **kwargs: object) -> object:
            for tensor in tensors_in((*args, *kwargs.values())):
                _check(tensor)
            return stock(*args, **kwargs)

        return invoke

    names = "_invoke_rpc_builtin", "_invoke_remote_builtin"
    return [Patch(module, name, checked(getattr(module, name))) for name in names]


def _maps(module: ModuleType) -> list[Patch]:
    """Device maps, with which TensorPipe would send from one device to another."""

    def set_device_map(self: object, to: str, device_map: object) -> None:
        raise UnsupportedError(
            "windtunnel sends no device tensors over RPC: move them to the CPU, without a device map"
        )

    return [Patch(module.TensorPipeRpcBackendOptions, "set_device_map", set_device_map)]


MODULES: dict[str, Callable[[ModuleType], list[Patch]]] = {
    "torch.distributed.rpc.internal": _pickling,
    "torch.distributed.rpc.api": _builtin,
    "torch.distributed.rpc.options": _maps,
}
"""What is replaced when the program imports it, or has."""
