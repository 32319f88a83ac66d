"""The check `triton-write-conflict`: two programs of a Triton kernel's grid write one address."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NotedLine
from windtunnel.checks._triton import KernelMemoryCheck
from windtunnel.trace.finding import Severity


class TritonWriteConflict(KernelMemoryCheck):
    """Two programs of a Triton kernel's grid write the same address.

    ## What it does
    Reports the line of a kernel whose store writes what another program of the same launch has written, without an
    atomic and without an order between the two. Two programs are ordered where one releases and the other acquires the
    same address with an atomic: a lock of `tl.atomic_cas` and `tl.atomic_xchg`, or a counter. It is a warning where
    both write the same value.

    ## Why it is bad
    The programs of a grid run in any order, and at once. Which value remains is a matter of chance, and may differ on
    another GPU; in sums that are read, added to and stored, some contributions are lost.

    ## Example
    ```python
    old = tl.load(total_ptr)
    tl.store(total_ptr, old + tl.sum(x, axis=0))  # every program of the grid does this
    ```

    ## Use instead
    ```python
    tl.atomic_add(total_ptr, tl.sum(x, axis=0))
    ```
    """

    code: ClassVar = "triton-write-conflict"
    severity: ClassVar[Severity] = "error"

    def message(self, line: NotedLine) -> str:
        """Which store, and which programs."""
        return f"{self.place(line)} meets another program's: {line.word('found')} ({self.launched(line)})"

    def advice(self, line: NotedLine) -> str:
        """What to use."""
        return "give each program its own part of the output, or use `tl.atomic_add` and its like"
