"""The check `created-on-cpu`: a tensor made on the CPU beside inputs that are on a GPU."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity
from windtunnel.trace.units import format_bytes, times

REPEATS = 3  # once or twice is set-up


class CreatedOnCpu(NoteCheck):
    """A tensor made on the CPU beside inputs that are on a GPU.

    ## What it does
    Reports tensors that a module's `forward` creates on the CPU, while its inputs are on a GPU, and then moves there.

    ## Why it is bad
    Each call makes the tensor in host memory and copies it over the slow link; the copy makes the host wait.

    ## Example
    ```python
    def forward(self, x):
        return x + torch.arange(x.shape[1]).to(x.device)
    ```

    ## Use instead
    ```python
    def forward(self, x):
        return x + torch.arange(x.shape[1], device=x.device)
    ```
    """

    code: ClassVar = "created-on-cpu"
    costs: ClassVar = True
    fix: ClassVar = "made there"
    supersedes: ClassVar = frozenset({"pageable-copy", "host-sync"})

    def judge(self, line: NotedLine) -> Severity:
        """Set-up costs nothing; a loop does."""
        return self.severity if line.times >= REPEATS else "info"

    def message(self, line: NotedLine) -> str:
        """How often, how much."""
        size = line.number("size_bytes")
        moved = f" ({format_bytes(size)} each time)" if size else ""
        return f"a tensor was made on the CPU{moved} and moved to the inputs' device {times(line.times)}"

    def advice(self, line: NotedLine) -> str:
        """Make it where it is used."""
        return "create it there: `device=x.device`, `x.new_zeros(...)`, `torch.zeros_like(x)`, or a registered buffer"
