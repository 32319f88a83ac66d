"""The check `hard-coded-device`: a device named by its number in the program's text."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity


class HardCodedDevice(NoteCheck):
    """A device named by its number in the program's text.

    ## What it does
    Reports lines that ask for a numbered device other than the first (`"cuda:1"`, `.cuda(1)`).

    ## Why it is bad
    The program fails on a machine with fewer GPUs, and when it runs as one process a GPU, all processes share one.
    Nothing is lost where the device exists, so the severity is `info`.

    ## Example
    ```python
    x = x.to("cuda:1")
    ```

    ## Use instead
    ```python
    device = torch.device(args.device)
    x = x.to(device)
    ```
    """

    code: ClassVar = "hard-coded-device"
    severity: ClassVar[Severity] = "info"

    def message(self, line: NotedLine) -> str:
        """Which device."""
        return f"{line.word('name', 'a device')} is hard-coded: the program fails on a machine with fewer GPUs"

    def advice(self, line: NotedLine) -> str:
        """Where the number should come from."""
        return "take the device from an argument, from LOCAL_RANK, or from the tensors at hand (`x.device`)"
