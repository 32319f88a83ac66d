"""The check `rank-ended`: a rank that failed or was killed while others wait for it."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._errors import known_advice
from windtunnel.checks._notes import NotedLine
from windtunnel.checks._ranks import RankCheck


class RankEnded(RankCheck):
    """A rank failed or was killed while others wait for it.

    ## What it does
    Reports a rank whose process ended by an exception, with an exit code or by a signal while others wait for it in a
    collective or for a message. It shows how and where it ended, its last call, and where the others wait.

    ## Why it is bad
    On GPUs the other ranks wait until the watchdog or the launcher ends them, and their messages, of lost connections
    and timeouts, hide the one that matters.

    ## Example
    ```python
    if not torch.isfinite(loss):  # on one rank only
        raise ValueError("the loss is not finite")
    loss.backward()
    ```

    ## Use instead
    ```python
    bad = (~torch.isfinite(loss)).float()
    dist.all_reduce(bad)  # every rank learns of it
    if bad.item():
        raise ValueError("the loss is not finite on some rank")
    loss.backward()
    ```
    """

    code: ClassVar = "rank-ended"
    precedence: ClassVar = 1  # after what may have ended the rank
    supersedes: ClassVar = frozenset({"known-error"})

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        known = known_advice(line.word("text"))
        if known:
            return known
        if line.word("how") == "killed":
            return "look for who killed it: the kernel's out of memory (dmesg), a scheduler, a crash in a library"
        return "fix what ended this rank first: the other ranks' errors follow from it"
