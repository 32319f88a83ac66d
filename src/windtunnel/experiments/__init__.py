"""The documents' exercises and rules of thumb as small programs: `windtunnel experiment NAME`.

Listing this folder is the registry: a module without a leading underscore is an experiment, its docstring is its page,
and its name has hyphens where the file has underscores. Each uses PyTorch and the public library alone, so it is the
same program on a CPU, on real GPUs and on emulated ones.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import inspect
import pkgutil
from importlib import resources
from typing import TYPE_CHECKING, Protocol, cast

from windtunnel.errors import UsageError
from windtunnel.experiments._result import Result

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Experiment", "Result", "documentation", "find", "names", "title"]


class Experiment(Protocol):
    """What a module of this folder offers.

    `GPUS` is how many it needs at least: 0 where the CPU alone has something to show. `VALUES` says whether it looks at
    the values that it computes; where not, emulated GPUs need not compute them. `SIZES` is a frozen dataclass of what
    may be chosen larger or smaller, `SMALL` the same for a quick look; a field `sizes` of it can be set by `--sizes`.
    A function `on_cpu(sizes)` may be left out: it runs before any GPU is emulated, and what it measures goes to `run`.
    """

    GPUS: int
    VALUES: bool
    SIZES: DataclassInstance
    SMALL: DataclassInstance

    def run(self, sizes: object, cpu: object) -> Result:
        """The experiment on the GPUs that there are; `cpu` is what `on_cpu` returned, None where there is none."""


@functools.cache
def names() -> tuple[str, ...]:
    """The names of all experiments, sorted."""
    found = (info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
    return tuple(sorted(name.replace("_", "-") for name in found))


def find(name: str) -> Experiment:
    """The experiment of that name.

    Raises:
        UsageError: there is none; the text names the nearest one.
    """
    return cast(Experiment, importlib.import_module(f"{__name__}.{_module(name)}"))


@functools.cache
def documentation(name: str) -> str:
    """The page of an experiment: its docstring, read without running it."""
    source = (resources.files(__name__) / f"{_module(name)}.py").read_text(encoding="utf-8")
    return inspect.cleandoc(ast.get_docstring(ast.parse(source)) or "")


def title(name: str) -> str:
    """What an experiment asks, in one line."""
    return documentation(name).partition("\n")[0].rstrip(".")


def _module(name: str) -> str:
    plain = name.replace("_", "-")
    if plain in names():
        return plain.replace("-", "_")
    near = difflib.get_close_matches(plain, names(), n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names())}"
    raise UsageError(f"there is no experiment {name!r}; {hint}")
