"""The check `availability-without-count`: asking whether there is a GPU and then using the second."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity


class AvailabilityWithoutCount(NoteCheck):
    """Asking whether there is a GPU and then using the second.

    ## What it does
    Reports lines that use a device other than the first in a program that has called `torch.cuda.is_available()` but
    never `torch.cuda.device_count()`.

    ## Why it is bad
    `is_available()` says that there is at least one GPU. The second one may be missing, and the program then fails
    instead of falling back. Nothing is lost where the device exists, so the severity is `info`.

    ## Example
    ```python
    device = torch.device("cuda:1" if torch.cuda.is_available() else "cpu")
    ```

    ## Use instead
    ```python
    device = torch.device("cuda:1" if torch.cuda.device_count() > 1 else "cpu")
    ```
    """

    code: ClassVar = "availability-without-count"
    severity: ClassVar[Severity] = "info"
    supersedes: ClassVar = frozenset({"hard-coded-device"})

    def message(self, line: NotedLine) -> str:
        """What was asked, what was used."""
        return (
            f"{line.word('name', 'a further device')} is used after `torch.cuda.is_available()`, which only says that "
            "there is a first GPU"
        )

    def advice(self, line: NotedLine) -> str:
        """What to ask instead."""
        return "ask `torch.cuda.device_count()`"
