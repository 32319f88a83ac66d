"""The check `collective-deadlock`: ranks that wait for one another in a circle."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import Line
from windtunnel.checks._ranks import RankCheck

FIXES = (
    "let every rank make the calls of all its groups in the same order",
    "post the same pairs on both sides: the send for each receive, and the receive for each send, must come before the "
    "other rank waits for anything else",
    "post the same pairs on both sides: let one rank receive while the other sends, or post both in one "
    "dist.batch_isend_irecv",
)
"""What to change, by how many of the two calls that meet are messages."""


class CollectiveDeadlock(RankCheck):
    """Ranks wait for one another in a circle.

    ## What it does
    Reports ranks that each wait for a call that another of them has not made and cannot make, because it is waiting
    too: collectives of two groups in different order, two ranks that both send first, a receive without its send. It
    shows where each waits and for whom, and the run ends there.

    ## Why it is bad
    No rank ever continues. NCCL requires that all ranks use their groups in the same order, and a send that is larger
    than NCCL's buffers ends only when its receive has begun; small messages may pass on one machine and hang on
    another.

    ## Example
    ```python
    dist.send(mine, 1 - rank)  # both ranks send first
    dist.recv(theirs, 1 - rank)
    ```

    ## Use instead
    ```python
    sending = dist.P2POp(dist.isend, mine, 1 - rank)
    receiving = dist.P2POp(dist.irecv, theirs, 1 - rank)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()
    ```
    """

    code: ClassVar = "collective-deadlock"

    def advice(self, line: Line) -> str:
        """What to change."""
        return FIXES[line.number("messages")]
