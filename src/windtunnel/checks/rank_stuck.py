"""The check `rank-stuck`: a rank that makes no progress on its host while others wait for it."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NotedLine
from windtunnel.checks._ranks import RankCheck


class RankStuck(RankCheck):
    """A rank spins, sleeps or blocks on its host while others wait for it.

    ## What it does
    Reports a rank that has given its devices no work for `--stuck-after` seconds (60 by default) while other ranks
    wait for it, with the stack of its main thread. A rank that goes on giving work to its devices is never reported,
    however slow it is.

    ## Why it is bad
    The job stands still until the watchdog ends it, on every GPU, and the message names the ranks that wait, not the
    one they wait for: a lock, a read from a slow file system, a queue that nobody fills.

    ## Example
    ```python
    if rank == 0:
        while not os.path.exists("done"):  # nobody writes it
            time.sleep(1)
    dist.barrier()
    ```

    ## Use instead
    ```python
    if rank == 0:
        wait_for_file("done", most_seconds=30)  # raises
    dist.barrier()
    ```
    """

    code: ClassVar = "rank-stuck"

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return (
            "give what the host waits for a timeout, or do it where no other rank waits; if the rank really works that "
            "long, raise --stuck-after"
        )
