"""Operators whose CUDA kernels allocate their results and nothing else."""

from __future__ import annotations

import torch

from windtunnel.seam.torch.plans.call import OpOverload
from windtunnel.seam.torch.plans.plan import Plan


def silent(plan: Plan, func: OpOverload) -> bool:
    """Whether an operator is known to allocate its results only: elementwise ones are, and what launches no kernel."""
    if not plan.kernel or torch.Tag.pointwise in func.tags or plan.card.results_only:
        return True
    # A foreach operator runs as one kernel over lists of pointers, which travel as its arguments.
    return plan.name.startswith("aten::_foreach_")
