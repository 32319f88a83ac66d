"""The check `collective-timeout`: a rank that waited for another one longer than NCCL's watchdog lets it."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NotedLine
from windtunnel.checks._ranks import RankCheck

OWN = "which does not take over that of init_process_group"
MORE_TIME = {
    "init_process_group": "`timeout=` of init_process_group",
    "new_group": f"`timeout=` of new_group, {OWN}",
    "init_device_mesh": (
        "a mesh's groups do not take over the timeout of init_process_group; set theirs with "
        "`torch.distributed.distributed_c10d._set_pg_timeout(timeout, mesh.get_group(...))`, or pass "
        "`backend_override={dimension: options}` with `options = ProcessGroupNCCL.Options()`, `options._timeout = "
        "timeout`"
    ),
    "": "`timeout=` of init_process_group or new_group",
}
"""Where a group's timeout is set, by the function that made it."""


class CollectiveTimeout(RankCheck):
    """A rank waited for another one longer than its group's timeout.

    ## What it does
    Reports a collective, or a message, in which a rank waited longer than the timeout of its group on the modelled
    clock: 10 minutes with NCCL, unless `init_process_group` or `new_group` says otherwise; neither `new_group` nor the
    groups of a device mesh take over the timeout of `init_process_group`. It shows the lines at which all ranks called
    it, and how long the first of them waited. The run ends there, as NCCL's watchdog ends it.

    ## Why it is bad
    The watchdog takes the process down from a thread of its own: nothing can catch it, and steps since the last
    checkpoint are lost. The usual cause is work that one rank does alone while the others go on to the next collective:
    evaluation, a checkpoint, a download, preparing data.

    ## Example
    ```python
    if dist.get_rank() == 0:
        prepare_data()  # 15 minutes
    dist.barrier()  # the other ranks wait here for 10
    ```

    ## Use instead
    ```python
    dist.init_process_group("nccl", timeout=timedelta(hours=1))
    ```
    """

    code: ClassVar = "collective-timeout"

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return f"share that rank's work, or give the group more time: {MORE_TIME[line.word('made_by')]}"
