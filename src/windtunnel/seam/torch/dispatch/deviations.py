"""What CUDA does differently for some operators, as `Dispatch` looks it up: the tables of `kernels/`, merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from windtunnel.operators.classes import bare
from windtunnel.seam.torch.plans import dtypes
from windtunnel.seam.torch.plans.arguments import Arguments, OpOverload, Result
from windtunnel.seam.torch.plans.dtypes import Dtypes
from windtunnel.seam.torch.plans.plan import Plan
from windtunnel.seam.torch.scratch.need import Row

Limit = Callable[[torch.Tensor, torch.Tensor], None]
"""Looks at an operator's first argument and its result, and raises where CUDA's kernel refuses their sizes."""


class Deviations(NamedTuple):
    """Tables by operator; each may lack most.

    `run`: what gives the values on a device instead of the CPU's kernel, by name and overload; `layouts`: the same, for
    calls with sparse or nested tensors, or with keywords, alone. `values`: what computes a captured operator in a
    replay, by name or by name and overload. `rows`: the memory that its kernel takes, by name without namespace.
    `dtypes`: those that its kernel takes. `limits`: sizes that it refuses.
    """

    run: Mapping[str, Callable[..., object]]
    layouts: Mapping[str, Callable[..., object]]
    values: Mapping[str, Callable[..., object]]
    rows: Mapping[str, Row]
    dtypes: Mapping[str, Dtypes]
    limits: Mapping[str, Limit]

    def plan(self, func: OpOverload) -> Plan:
        """The plan of an operator, with what runs it and what memory its kernel takes."""
        plan = Plan(func, self.run.get(func.name()))
        plan.run = self.layouts.get(func.name(), plan.run)
        if plan.kernel and plan.builtin:
            plan.row = row = self.rows.get(bare(plan.name))
            plan.copies = row is not None and row.copies
        return plan

    def check(self, name: str, args: Arguments, out: Result) -> None:
        """Raise what PyTorch raises where the kernel does not take its operands' dtypes or sizes."""
        if name in self.dtypes:
            dtypes.check(self.dtypes[name], args)
        elif name in self.limits:
            self.limits[name](args[0], out)
