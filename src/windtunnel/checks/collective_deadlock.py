"""The check `collective-deadlock`: ranks that wait for one another in a circle."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NotedLine
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
    too: collectives of two groups in different order, two ranks that both send first, a receive without its send, a
    message that meets its counterpart on no communicator. It shows where each waits and for whom, and the run ends
    there.

    A batched message (`batch_isend_irecv`) uses the communicator of its group, in line with the group's collectives;
    the first one waits until every rank of the group has used it. A plain message uses a communicator of its two
    ranks, and the first one waits for the other rank; with `init_process_group(device_id=...)` it is in line with the
    group's collectives as well. A group has one communicator for each GPU that a rank uses it on: a thread that was
    not told its GPU (`torch.cuda.set_device` counts for one thread) works on `cuda:0`, and makes another one alone.

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

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        if line.number("communicators"):
            return (
                "post both sides of a message with dist.batch_isend_irecv, or neither: a batched message uses the "
                "group's communicator, a plain one a communicator of its two ranks"
            )
        if line.number("moved"):
            return (
                "call torch.cuda.set_device(local_rank) in every thread that uses the group: a new thread starts on "
                "cuda:0, where a group has another communicator than on the rank's own GPU"
            )
        if line.number("join"):
            return (
                "let both ranks of a first message come to it before another call: receive before the collective, or "
                "use dist.batch_isend_irecv after a collective of the whole group"
            )
        return FIXES[line.number("messages")]
