"""`ProcessGroup._register_on_completion_hook`: the program is told of each call once the device is done with it.

NCCL's group has a thread that calls the hook. Here it is called in the order of the calls, when the program next calls
the group and the modelled host is past the end of the work, and at the end at the latest. When a message ends is known
once somebody has waited for it. Source: `ProcessGroupNCCL::registerOnCompletionHook`, `runHookLoop`, and `workEnqueue`
in `collective`, `pointToPoint` and `endCoalescing` (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
"""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

from windtunnel.seam.torch.distributed.completions import Completions, WorkInfo
from windtunnel.seam.torch.distributed.groups import Group, Groups

TWICE = "ProcessGroupNCCL OnCompletion hook already registered"
UNTIMED = (
    "ProcessGroupNCCL OnCompletion hook requires recording start and end events which require setting "
    "TORCH_NCCL_ENABLE_TIMING environment variable. This is only available for NCCL version >= 2.4."
)


def methods(groups: Groups) -> dict[str, Callable[..., object]]:
    """The methods of `ProcessGroup` about hooks; a group of another backend keeps PyTorch's."""
    stock_register: Callable[..., None] = dist.ProcessGroup._register_on_completion_hook  # type: ignore[attr-defined]
    stock_wait, stock_has = dist.ProcessGroup._wait_for_pending_works, dist.ProcessGroup._has_hooks

    def of(process_group: dist.ProcessGroup) -> Group | None:
        group = groups.by_name.get(process_group.group_name)
        return group if group is not None and group.nccl else None

    def register(self: dist.ProcessGroup, hook: Callable[[WorkInfo], object]) -> None:
        group = of(self)
        if group is None:
            stock_register(self, hook)
            return
        if group.completions is not None:
            raise dist.DistBackendError(TWICE)
        if not group.settings.timing:
            raise ValueError(UNTIMED)
        group.completions = Completions(hook, groups.state.local.host.now_ns)

    def has_hooks(self: dist.ProcessGroup) -> bool:
        group = of(self)
        return bool(stock_has(self)) if group is None else group.completions is not None

    def wait_for_pending_works(self: dist.ProcessGroup) -> None:
        group = of(self)
        if group is None:
            stock_wait(self)
        elif group.completions is not None:
            host = groups.state.local.host
            host.wait_until(group.completions.last_ns())
            group.completions.tell(host.now_ns)

    return {
        "_register_on_completion_hook": register,
        "_has_hooks": has_hooks,
        "_wait_for_pending_works": wait_for_pending_works,
    }
