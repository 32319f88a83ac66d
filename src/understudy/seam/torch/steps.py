"""Optimizer steps: where they end, for the per-step numbers, and those that update one tensor at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from understudy.seam.torch.state import State
from understudy.seam.torch.tags import device_of
from understudy.trace.operation import Kind, Note


def watch(state: State) -> Any:
    """Record every optimizer step that touches a device from now on; `remove()` of what this returns ends it."""
    taken = 0

    def after_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal taken
        groups = [[p for p in group["params"] if p.grad is not None] for group in optimizer.param_groups]
        if not any(device_of(p) >= 0 for parameters in groups for p in parameters):
            return
        machine, host, site = state.machine, state.local.host, state.site()
        single = sum(
            len(parameters)
            for group, parameters in zip(optimizer.param_groups, groups, strict=True)
            if group.get("foreach") is False and not group.get("fused")
        )
        if single:
            detail = (("optimizer", type(optimizer).__name__), ("parameters", single))
            machine.note(host, Note("unfused-optimizer", machine.trace.sites[site], detail))
        machine.mark(host, Kind.STEP, "optimizer step", taken, site)
        taken += 1

    return register_optimizer_step_post_hook(after_step)
