"""Random numbers of emulated devices: one generator a device, with the values of a CPU generator of its seed."""

from __future__ import annotations

from typing import Any

import torch

from understudy.seam.patching import Patch
from understudy.seam.torch.state import State
from understudy.seam.torch.tags import CPU


def patches(state: State) -> list[Patch]:
    """`torch.Generator` and the default generators of the emulated devices."""
    generator_class = _generator_class(state)
    state.new_generators = lambda: [
        generator_class(device) for device in state.cuda_devices[: len(state.machine.devices)]
    ]
    return [Patch(torch, "Generator", generator_class)]


def _generator_class(state: State) -> Any:
    stock: Any = torch.Generator

    class Generator(stock):  # type: ignore[misc]
        """torch.Generator; for a CUDA device it is a CPU generator that says it is the device's."""

        def __new__(cls, device: Any = "cpu") -> Any:
            index = state.index(device)
            where = torch.device(device) if not isinstance(device, int) else torch.device("cuda", device)
            self = stock.__new__(cls, "cpu" if index >= 0 or where.type == "cpu" else device)
            self._us_device = index
            # C++ gives its generators back in new Python objects: the address tells them apart.
            state.generator_devices.pop(self._cdata, None)
            if index >= 0:
                state.generator_devices[self._cdata] = index
                self.manual_seed(DEFAULT_SEED)
            return self

        def __init__(self, device: Any = "cpu") -> None:
            pass

        @property
        def device(self) -> torch.device:
            index = self._us_device
            return state.cuda_devices[index] if index != CPU else stock.device.__get__(self)

        def __reduce__(self) -> Any:
            return torch.Generator, (self.device,), self.get_state()

        def __setstate__(self, saved: Any) -> None:
            self.set_state(saved)

        def clone_state(self) -> Any:
            made = type(self)(self.device)
            made.set_state(self.get_state())
            return made

        def get_offset(self) -> int:
            return int(getattr(self, "_us_offset", 0))

        def set_offset(self, offset: int) -> None:
            self._us_offset = offset

    Generator.__module__, Generator.__qualname__, Generator.__name__ = "torch", "Generator", "Generator"
    return Generator


DEFAULT_SEED = 67280421310721
"""c10::detail's default seed of every generator (c10/core/GeneratorImpl.h: default_rng_seed_val)."""
