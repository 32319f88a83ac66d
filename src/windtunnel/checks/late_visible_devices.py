"""The check `late-visible-devices`: CUDA_VISIBLE_DEVICES set too late to have an effect."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine


class LateVisibleDevices(NoteCheck):
    """CUDA_VISIBLE_DEVICES set when it no longer counts.

    ## What it does
    Reports lines that change `os.environ["CUDA_VISIBLE_DEVICES"]` after CUDA has started in the process.

    ## Why it is bad
    CUDA reads the variable once. The program goes on with the devices that it had, perhaps somebody else's.

    ## Example
    ```python
    x = torch.ones(3, device="cuda")
    os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    ```

    ## Use instead
    ```python
    os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    import torch
    ```
    """

    code: ClassVar = "late-visible-devices"

    def message(self, line: NotedLine) -> str:
        """What was set too late."""
        value = line.word("value")
        to = f" to {value!r}" if value else ""
        return f"CUDA_VISIBLE_DEVICES is set{to} after CUDA has started, so it has no effect"

    def advice(self, line: NotedLine) -> str:
        """When it counts."""
        return "set it before the program starts, or before the first line that uses CUDA"
