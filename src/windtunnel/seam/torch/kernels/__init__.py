"""What CUDA does differently from the CPU, one operator or family of operators a file.

Listing this folder is the registry. A file's docstring says what differs, and names the source. It registers what it
has under these names, each of which it may leave out:

    HANDLERS     by operator: what `Dispatch` hands the call to, whole
    COMPOSITES   by overload: a function of C++ that is taken apart as on CUDA (see `composites`)
    GRADIENTS    by overload: what chooses the gradient of an operator that has one of its own on CUDA
    RUN          by name and overload: what gives the values on a device instead of the CPU's kernel
    LAYOUTS      by name and overload: the same, for calls with sparse or nested tensors or with keywords alone
    VALUES       by operator: what computes a captured operator in a graph's replay
    SCRATCH      rows: the memory that the kernel takes beyond its results
    DTYPES       by operator: what the kernel calls itself, and the dtypes that it takes
    LIMITS       by operator: what refuses sizes that the kernel does not take
    patches      a function: the names of PyTorch that are replaced

What is known of operators by the hundred stands on their cards (`windtunnel.operators`) and in `scratch.native`. An
operator has one entry of each kind: two are an error that names both files.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

from windtunnel.seam.torch import registry
from windtunnel.seam.torch.dispatch.deviations import Deviations
from windtunnel.seam.torch.plans import dtypes
from windtunnel.seam.torch.scratch import native
from windtunnel.seam.torch.scratch.rows import by_name

ROOM = "kernels"


def files(name: str) -> list[ModuleType]:
    """The files of this folder that register something under `name`."""
    return registry.registering(name, ROOM)


def table(name: str, *others: ModuleType) -> dict[Any, Any]:
    """What the files of this folder, and others, register under `name`, as one table.

    Raises:
        InternalError: two files have an entry for one operator.
    """
    return registry.merged(name, [(file.__name__, vars(file)[name]) for file in (*others, *files(name))])


@cache
def deviations() -> Deviations:
    """All tables but those of handlers, with those of operators by the hundred.

    Raises:
        InternalError: two files have an entry for one operator.
    """
    rows = [(file.__name__, by_name(vars(file)["SCRATCH"])) for file in (native, *files("SCRATCH"))]
    return Deviations(
        run=table("RUN"),
        layouts=table("LAYOUTS"),
        values=table("VALUES"),
        rows=registry.merged("SCRATCH", rows),
        dtypes=table("DTYPES", dtypes),
        limits=table("LIMITS"),
    )
