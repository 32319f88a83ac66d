"""The check `cudagraphs-skipped`: a compiled graph that was to be a CUDA graph and is none."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity


class CudagraphsSkipped(NoteCheck):
    """A compiled graph that should run as a CUDA graph and does not.

    ## What it does
    Reports compiled graphs that run without CUDA graphs although `mode="reduce-overhead"` or `mode="max-autotune"` asks
    for them, with Inductor's own reason.

    ## Why it is bad
    Each kernel is launched by the host, which is what the mode is meant to avoid.

    ## Example
    ```python
    @torch.compile(mode="reduce-overhead")
    def count(state, x):
        state.add_(x)  # an input that is no parameter is written
        return state * 2
    ```

    ## Use instead
    ```python
    @torch.compile(mode="reduce-overhead")
    def count(state, x):
        state = state + x
        return state * 2, state
    ```
    """

    code: ClassVar = "cudagraphs-skipped"
    severity: ClassVar[Severity] = "info"

    def message(self, line: NotedLine) -> str:
        """Inductor's reason."""
        return (
            f"a compiled graph runs without CUDA graphs: {line.word('reason', 'Inductor gives no reason').rstrip('.')}"
        )

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return "let the compiled function read its inputs alone and work on the GPU alone, or leave the mode out"
