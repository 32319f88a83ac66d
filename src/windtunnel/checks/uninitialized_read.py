"""The check `uninitialized-read`: a kernel reads a parameter or buffer that `to_empty` left without values."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity
from windtunnel.trace.operation import Note


class UninitializedRead(NoteCheck):
    """A kernel reads a parameter or buffer that nobody wrote since `to_empty`.

    ## What it does
    Reports the line whose kernel reads a parameter or a buffer that `Module.to_empty` gave memory to, and that neither
    a state dict nor an operator has written since; also a forward for which `fully_shard` gathers one. What a compiled
    graph reads is not looked at, nor what FullyShardedDataParallel has made part of a flat parameter. For memory that a
    Triton kernel reads there is `triton-uninitialized`.

    ## Why it is bad
    Such memory holds what was there before: often zeros in a fresh process, later another tensor's numbers or NaN. The
    usual case is a buffer with `persistent=False` (the frequencies of a rotary embedding): no state dict has it, so
    loading a checkpoint does not fill it.

    ## Example
    ```python
    with torch.device("meta"):
        net = Net()
    net.to_empty(device="cuda")
    net.load_state_dict(weights)  # has no entry for net.frequencies
    ```

    ## Use instead
    ```python
    net.to_empty(device="cuda")
    net.load_state_dict(weights)
    net.frequencies.copy_(frequencies(device="cuda"))  # compute it again, or broadcast rank 0's
    ```
    """

    code: ClassVar = "uninitialized-read"
    severity: ClassVar[Severity] = "error"
    precedence: ClassVar = 2

    def group(self, note: Note) -> str:
        """Different tensors of one line stay apart."""
        return str(dict(note.detail).get("name", ""))

    def message(self, line: NotedLine) -> str:
        """Which tensor, and where it was made."""
        return (
            f"{line.word('operator')} reads the {line.word('name')}, which to_empty at {line.word('made')} left "
            "uninitialized and nobody wrote since"
        )

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return (
            "write it after `to_empty`: compute it again (`reset_parameters`, the code of `__init__`), load it, or "
            "broadcast it from a rank that has it; buffers with `persistent=False` are in no state dict"
        )
