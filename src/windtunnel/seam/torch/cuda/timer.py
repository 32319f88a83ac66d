"""`torch.utils.benchmark.Timer` where PyTorch chose its clock when it was imported, before there were any GPUs."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from types import BuiltinFunctionType, ModuleType

import torch

from windtunnel.seam.patching import Patch


def _timer(module: ModuleType) -> list[Patch]:
    """PyTorch before 2.9 waits for the devices only where it saw some at its import; a clock of Python's is bound."""
    function = module.Timer.__init__
    if not any(map(_is_clock, function.__defaults__)):
        return []

    def timer() -> float:
        torch.cuda.synchronize()
        return timeit.default_timer()

    defaults = tuple(timer if _is_clock(value) else value for value in function.__defaults__)
    return [Patch(module, "timer", timer), Patch(function, "__defaults__", defaults)]


def _is_clock(value: object) -> bool:
    return isinstance(value, BuiltinFunctionType) and value.__name__ == "perf_counter"


MODULES: dict[str, Callable[[ModuleType], list[Patch]]] = {"torch.utils.benchmark.utils.timer": _timer}
"""What is replaced when the program imports it, or has."""
