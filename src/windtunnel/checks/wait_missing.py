"""The check `wait-missing`: a collective with `async_op=True` that nobody waits for."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine


class WaitMissing(NoteCheck):
    """Nobody waits for a collective that was called with `async_op=True`.

    ## What it does
    Reports a collective whose Work was dropped without `wait()`, where until the end of the groups nothing else made
    the host or a current stream wait for it either: no later collective of the group, and no synchronization.

    ## Why it is bad
    The collective runs on a stream of its own. Whatever reads its result may read what was there before, on some days
    and not on others; and the program may end before it.

    ## Example
    ```python
    dist.all_reduce(loss, async_op=True)
    print(loss.item())
    ```

    ## Use instead
    ```python
    work = dist.all_reduce(loss, async_op=True)
    ...  # what does not need it
    work.wait()
    print(loss.item())
    ```
    """

    code: ClassVar = "wait-missing"

    def message(self, line: NotedLine) -> str:
        """What is not waited for."""
        called = line.word("operation")
        return f"nobody waits for this {called}: its Work was dropped, and its result may be read before it is there"

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return "keep the Work and call `wait()` before the result is used, or leave `async_op=True` out"
