"""What Dynamo takes our functions for: it traces none of them, and knows those that say how PyTorch is set."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from windtunnel.seam.patching import Patch
from windtunnel.seam.sites import OURS as HERE

SETTINGS = ("is_autocast_enabled", "is_autocast_cpu_enabled")
"""Functions of `torch` that an emulation replaces, and whose answers are constants to Dynamo."""
OURS = f"{Path(HERE).as_posix()}/"


def _skipping(module: ModuleType) -> list[Patch]:
    """Our files among those whose frames Dynamo leaves alone (`_recompile_re` of torch/_dynamo/trace_rules.py)."""
    stock: re.Pattern[str] = module.SKIP_DIRS_RE
    pattern = re.compile(rf"{stock.pattern}|^{re.escape(OURS)}")
    return [
        Patch(module, "SKIP_DIRS", [*module.SKIP_DIRS, OURS]),
        Patch(module, "SKIP_DIRS_RE", pattern),
        Patch(module, "get_torch_obj_rule_map", _rules(module)),
    ]


def _rules(module: ModuleType) -> Callable[[], dict[object, type]]:
    """Dynamo's table of PyTorch's functions, in which ours stand beside those that they replace."""
    stock: Callable[[], dict[object, type]] = module.get_torch_obj_rule_map

    @functools.cache
    def get_torch_obj_rule_map() -> dict[object, type]:
        return stock() | dict.fromkeys(_ours(), module.TorchInGraphFunctionVariable)

    return get_torch_obj_rule_map


def _folding(module: ModuleType) -> list[Patch]:
    """Settings are among the functions whose answer Dynamo takes for a constant (`can_constant_fold_through`)."""
    return [Patch(module, "constant_fold_functions", module.constant_fold_functions | dict.fromkeys(_ours()))]


def _ours() -> list[object]:
    return [getattr(torch, name) for name in SETTINGS]


MODULES: dict[str, Callable[[ModuleType], list[Patch]]] = {
    "torch._dynamo.trace_rules": _skipping,
    "torch._dynamo.variables.torch": _folding,
}
"""What is replaced when the program imports it, or has."""
