"""`ProcessGroup._register_on_completion_hook`: the program is told of each collective once the device is done with it.

NCCL's group has a thread that calls the hook. Here it is called in the order of the calls, when the program next calls
the group and the modelled host is past the end of the work, and at the end at the latest. Source:
`ProcessGroupNCCL::registerOnCompletionHook` and `runHookLoop` (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
"""

from __future__ import annotations

import importlib
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

import torch.distributed as dist

from understudy.ranks.watchdog import TYPES
from understudy.seam.torch.distributed.groups import Group, Groups

TWICE = "ProcessGroupNCCL OnCompletion hook already registered"
UNTIMED = (
    "ProcessGroupNCCL OnCompletion hook requires recording start and end events which require setting "
    "TORCH_NCCL_ENABLE_TIMING environment variable. This is only available for NCCL version >= 2.4."
)


class WorkInfo(NamedTuple):
    """What a hook is told of a collective: its kind, its number in the group, and when the device worked on it."""

    op_type: object
    seq: int
    time_started: datetime
    time_finished: datetime
    active_duration: timedelta


class Completions:
    """The hook of a group, and the collectives that it has not been told of."""

    def __init__(self, hook: Callable[[WorkInfo], object], now_ns: int) -> None:
        self.hook = hook
        self.begin_ns = time.time_ns() - now_ns
        self.pending: deque[tuple[str, int, int, int]] = deque()

    def add(self, name: str, number: int, began_ns: int, end_ns: int) -> None:
        """A collective was queued."""
        self.pending.append((name, number, began_ns, end_ns))

    def tell(self, now_ns: int) -> None:
        """Call the hook for what is done by now."""
        kinds: type = importlib.import_module("torch._C._distributed_c10d").OpType
        while self.pending and self.pending[0][3] <= now_ns:
            name, number, began_ns, end_ns = self.pending.popleft()
            started, finished = (datetime.fromtimestamp((self.begin_ns + ns) / 1e9) for ns in (began_ns, end_ns))
            kind = getattr(kinds, TYPES.get(name, "COALESCED"))
            self.hook(WorkInfo(kind, number, started, finished, timedelta(microseconds=(end_ns - began_ns) / 1e3)))


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
            if group.completions.pending:
                host.wait_until(group.completions.pending[-1][3])
            group.completions.tell(host.now_ns)

    return {
        "_register_on_completion_hook": register,
        "_has_hooks": has_hooks,
        "_wait_for_pending_works": wait_for_pending_works,
    }
