"""windtunnel: the wind tunnel for GPU programs. Run, time, check and train CUDA code on a machine without a GPU.

PYTEST_DONT_REWRITE: workers of pytest-xdist have imported this package before pytest starts.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from windtunnel.version import __version__ as __version__

__all__ = ["Options", "Session", "emulate", "kernel", "plan", "start", "stop"]
_HOMES = {
    "Options": "options",
    "kernel": "described",
    "plan": "planning",
    "start": "notebook",
    "stop": "notebook",
    "load_ipython_extension": "notebook",
    "unload_ipython_extension": "notebook",
}

if TYPE_CHECKING:
    from windtunnel.described import kernel
    from windtunnel.notebook import start, stop
    from windtunnel.options import Options
    from windtunnel.planning import plan
    from windtunnel.session import Session, emulate


def __getattr__(name: str) -> Any:
    # The base import stays light: the session brings the machine, the checks and the reports with it.
    if name in __all__ or name in _HOMES:
        if sys.platform == "win32":
            from windtunnel.errors import ON_WINDOWS, InstallError

            raise InstallError(ON_WINDOWS)
        return getattr(importlib.import_module(f"windtunnel.{_HOMES.get(name, 'session')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
