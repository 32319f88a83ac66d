"""Dynamo, where a program calls it itself (`explain`, `export`): it must not trace the emulation."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from understudy.seam.patching import Patch
from understudy.seam.sites import OURS as HERE

OURS = f"{Path(HERE).as_posix()}/"


def _skipping(module: ModuleType) -> list[Patch]:
    """Our files among those whose frames Dynamo leaves alone (`_recompile_re` of torch/_dynamo/trace_rules.py)."""
    stock: re.Pattern[str] = module.SKIP_DIRS_RE
    pattern = re.compile(rf"{stock.pattern}|^{re.escape(OURS)}")
    return [Patch(module, "SKIP_DIRS", [*module.SKIP_DIRS, OURS]), Patch(module, "SKIP_DIRS_RE", pattern)]


MODULES: dict[str, Callable[[ModuleType], list[Patch]]] = {"torch._dynamo.trace_rules": _skipping}
"""What is replaced when the program imports it, or has."""
