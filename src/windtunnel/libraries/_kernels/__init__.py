"""Operators of libraries that are installed and whose kernels come in a binary that only a GPU's driver loads.

A file a namespace of `torch.ops`, found by its name once a program calls such an operator. A kernel that this
machine could load wins. Each file describes its operators with `windtunnel.kernel`, and names its source.
"""

from __future__ import annotations

import importlib
from pathlib import Path

FOLDER = Path(__file__).parent


def describe(namespace: str) -> bool:
    """Let this namespace's file say what its operators compute; whether there is one."""
    if not namespace.isidentifier() or not (FOLDER / f"{namespace}.py").is_file():
        return False
    importlib.import_module(f"{__name__}.{namespace}")
    return True
