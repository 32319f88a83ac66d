"""One call of an operator, as it goes from its handler to the machine."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from windtunnel.seam.torch.plans.arguments import Arguments, Kernel, Keywords, Result, tensors_in
from windtunnel.seam.torch.plans.plan import Plan
from windtunnel.seam.torch.tags import NOWHERE


class Call:
    """A call of an operator: what every handler is given, and what it hands on.

    `func` computes its values: the operator itself, or what stands in its place. `device`: where it runs, once that is
    known. `out`: what it gave. `key`: its plan, and the shapes and types of its tensors, once they were collected; what
    is the same for all calls of this form is looked up by it.
    """

    __slots__ = ("args", "device", "func", "key", "kwargs", "out", "plan")

    def __init__(
        self,
        plan: Plan,
        func: Kernel,
        args: Arguments,
        kwargs: Keywords,
        device: int = NOWHERE,
        key: list[Hashable] | None = None,
        out: Result = None,
    ) -> None:
        self.plan, self.func, self.args, self.kwargs, self.device, self.key = plan, func, args, kwargs, device, key
        self.out = out

    def but(
        self,
        *,
        func: Kernel | None = None,
        args: Arguments | None = None,
        kwargs: Keywords | None = None,
        device: int | None = None,
    ) -> Call:
        """The same call with other arguments, on another device, or computed by something else."""
        return Call(
            self.plan,
            self.func if func is None else func,
            self.args if args is None else args,
            self.kwargs if kwargs is None else kwargs,
            self.device if device is None else device,
        )

    @property
    def given(self) -> Arguments:
        """Its arguments, those by keyword last."""
        return (*self.args, *self.kwargs.values()) if self.kwargs else self.args

    def tensors(self) -> list[torch.Tensor]:
        """The tensors among its arguments, in order."""
        return tensors_in(self.given)

    def named(self) -> Keywords:
        """Its arguments by their names in the schema; what was left to a default is not there."""
        return dict(zip(self.plan.names, self.args, strict=False)) | self.kwargs

    def written(self) -> list[torch.Tensor]:
        """The tensors among its arguments that it writes, also those of which its schema does not say so."""
        plan, args = self.plan, self.args
        positions = plan.mutated
        if hidden := plan.card.hidden_writes:
            flag = plan.card.writes_if
            positions += hidden if len(args) <= flag or args[flag] else ()
        found = [tensor for place in positions if place < len(args) for tensor in tensors_in((args[place],))]
        for name in plan.mutated_keywords:
            found += tensors_in((self.kwargs.get(name),))
        return found
