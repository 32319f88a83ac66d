"""Operators of PyTorch's database on an emulated GPU and on the emulation's host, beside plain PyTorch."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

import windtunnel
from tools.differential.cases import SEED, OperatorCase, Place, cases
from tools.differential.found import Found
from tools.differential.outcomes import Outcome, differences

UNWRITTEN = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_*")
"""Operators whose results hold what the memory held before: patterns of names."""
AXES = {"cuda:0": "cuda:0", "host": "cpu"}
"""Where a case is compared, by name: on a device, and on the host while GPUs are emulated."""
TYPES = {
    "float32": torch.float32,
    "complex64": torch.complex64,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
    "bool": torch.bool,
}


def name_of(op: Any) -> str:
    """An operator's name in the database, with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def chosen(patterns: Iterable[str]) -> list[Any]:
    """The operators whose names match a pattern."""
    patterns = list(patterns)
    return [op for op in op_db if any(fnmatch.fnmatchcase(name_of(op), pattern) for pattern in patterns)]


@dataclass
class Planned:
    """A case, what plain PyTorch gives, and whether its values can be compared."""

    operator: str
    dtype: str
    case: OperatorCase
    want: Outcome
    values: bool


Announce = Callable[[str], None]


def planned(
    ops: list[Any], dtypes: list[str], limit: int, skip: set[str], single: bool, announce: Announce
) -> Iterator[Planned]:
    """The cases of some operators, run on plain PyTorch; of each operator one if `single`.

    Skips `operator|dtype|variant`.
    """
    plain = Place("cpu")
    for place, op in enumerate(ops):
        supported = [dtype for dtype in dtypes if TYPES[dtype] in op.supported_dtypes("cpu")]
        if single and supported:
            supported = [supported[place % len(supported)]]
        for dtype in supported:
            announce(f"{name_of(op)}|{dtype}|samples")
            made = [] if f"{name_of(op)}|{dtype}|samples" in skip else list(cases(op, TYPES[dtype], limit))
            for case in made[place % len(made) :][:1] if single and made else made:
                call = f"{name_of(op)}|{dtype}|{case.variant}"
                if call in skip:
                    continue
                announce(call)
                want = case.build(plain)
                unwritten = any(fnmatch.fnmatchcase(name_of(op), pattern) for pattern in UNWRITTEN)
                yield Planned(name_of(op), dtype, case, want, not unwritten and not drawn(case, plain, want))


def drawn(case: OperatorCase, place: Place, want: Outcome) -> bool:
    """Whether a case's values are random, or memory that nothing wrote."""
    torch.manual_seed(SEED)
    before = torch.random.get_rng_state()
    again = case.build(place)
    if not torch.equal(before, torch.random.get_rng_state()):
        return True
    return any(d.kind in ("value", "rounding") for d in differences(want, again, place.device))


def compared(plans: list[Planned], announce: Announce) -> Iterator[Found]:
    """Run planned cases and compare; the emulation begins anew after an assertion of a device, which ends it."""
    got: list[tuple[Planned, str, Outcome]] = []
    left = [(plan, axis) for plan in plans for axis in AXES]
    while left:
        with windtunnel.emulate("2xV100"):
            while left:
                plan, axis = left.pop(0)
                announce(f"{plan.operator}|{plan.dtype}|{plan.case.variant}")
                outcome, goes_on = ran(plan, axis)
                got.append((plan, axis, outcome))
                if not goes_on:
                    break
    for plan, axis, outcome in got:
        for difference in differences(plan.want, outcome, AXES[axis], plan.values):
            where = (plan.operator, plan.dtype, plan.case.variant, plan.case.index, axis)
            yield Found(*where, difference.kind, difference.detail)


def ran(plan: Planned, axis: str) -> tuple[Outcome, bool]:
    """(what a case left behind, whether the device can go on): an assertion comes with the next synchronization."""
    outcome = plan.case.build(Place(AXES[axis]))
    try:
        torch.cuda.synchronize()
    except torch.AcceleratorError as error:
        return Outcome(error=type(error).__name__, message=str(error).partition("\n")[0]), False
    return outcome, True


def compare(
    ops: list[Any],
    dtypes: Iterable[str] = TYPES,
    limit: int = 3,
    skip: Iterable[str] = (),
    single: bool = False,
    announce: Announce = lambda _: None,
) -> tuple[int, list[Found]]:
    """(comparisons, differences) of some operators; with `single`, of one call of each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plans = list(planned(ops, list(dtypes), limit, set(skip), single, announce))
        return len(plans) * len(AXES), list(compared(plans, announce))
