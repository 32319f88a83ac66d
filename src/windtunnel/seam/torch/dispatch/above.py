"""Modes above the emulation's own, which see the operators that it is about to carry out."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel.seam.torch.dispatch.mode import PLAIN, Dispatch
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Types
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.plan import Plan


class Above(TorchDispatchMode, ABC):
    """A mode that is entered after `Dispatch`: `operator` gets each operator that does more than make a view."""

    supports_higher_order_operators = True

    def __init__(self, dispatch: Dispatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dispatch = dispatch
        self.plans: dict[int, Plan] = {}  # by identity, as in `Dispatch`

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: OpOverload, types: Types, args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        if types and any(kind.__torch_dispatch__ is not PLAIN for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)  # its parts come here
        plan = self.plans.get(id(func))
        if plan is None:
            plan = self.plans[id(func)] = self.dispatch.deviations.plan(func)
        return func(*args, **kwargs) if plan.view else self.operator(Call(plan, func, args, kwargs))

    @abstractmethod
    def operator(self, call: Call) -> object:
        """Carry an operator out by calling `func`, and do what the mode is for."""
