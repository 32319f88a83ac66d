"""The stages, one a file. A stage has

- `ORDER`: when it runs; `TITLE`: what it is about;
- `LIMIT_S`: how long one side of it may take, `ITEM_S` how long one item may, both in seconds of real time;
- `OPTIONS`: further options of `windtunnel run` for the emulated side;
- `items(context)`: its items by name, functions that give what JSON can hold;
- `rows(native, emulated)`: the results of both sides, compared.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType


def names() -> list[str]:
    """Every stage, in the order in which they run."""
    found = (path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__")
    return sorted(found, key=lambda name: load(name).ORDER)


def load(name: str) -> ModuleType:
    """A stage by its name."""
    return import_module(f"{__name__}.{name}")
