"""The constants that were chosen by hand with the exam's rows in view, fitted anew with rows left out.

Fitting is not knowing: a share that was chosen on the programs that it is judged by says little of others. Here all of
them begin where nothing is known and are fitted together on the rows whose kernels they price: on all rows, and with
each program, GPU and kind of program left out in turn, which is then predicted. `make exam ARGS=--left-out` prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from types import ModuleType
from typing import NamedTuple

import numpy as np

from tools.corpus.outcomes import middle_and_tail
from tools.exam.kernelbench import Row, cuda_of
from tools.fitting import Array, Mask, chosen, left_out, search
from windtunnel import gpus
from windtunnel.cost import CostModel
from windtunnel.cost.families import convolutions, streams
from windtunnel.trace.operation import Signature

STEP = 1.05
FIRST_STEP = 8
CLIP = 1.0
LEAST_PART = 0.5
"""The part of a program's time that its kernels take at least: the rest is the host's."""
Levels = dict["Constant", int]


class Constant(NamedTuple):
    """A constant of a module, or of a GPU's file where `owner` is its key, and the value where nothing is known."""

    name: str
    owner: ModuleType | str
    attribute: str
    key: str | int | None
    begin: float

    def put(self, value: float) -> None:
        """Let the cost model take this value."""
        if not isinstance(self.owner, ModuleType):
            return
        now = getattr(self.owner, self.attribute)
        if isinstance(now, dict):
            now = now | {self.key: value}
        elif isinstance(now, tuple):
            now = tuple(value if at == self.key else one for at, one in enumerate(now))
        else:
            now = value
        setattr(self.owner, self.attribute, now)

    def value(self, level: int) -> float:
        """What so many steps make of the beginning."""
        return float(self.begin * STEP**level)


CONSTANTS = (
    Constant("conversion of layouts, bandwidth", convolutions, "TF32_CONVERSION", 0, 1.0),
    Constant("channels first", convolutions, "TF32_FIRST", None, 1.0),
    Constant("channels last, Hopper", convolutions, "TF32_LAST", "hopper", 1.0),
    Constant("channels last, Blackwell", convolutions, "TF32_LAST", "blackwell", 1.0),
    Constant("strided and dilated", convolutions, "DILATED_STRIDES", None, 1.0),
    Constant("transposed in FP32", convolutions, "TRANSPOSED_FP32", None, 1.0),
    Constant("transposed volumes, TF32", convolutions, "TRANSPOSED_VOLUMES", "tf32", 1.0),
    Constant("volumes of few channels, bandwidth", convolutions, "VOLUMES_OF_FEW", 0, 0.9),
    Constant("volumes of few channels, arithmetic", convolutions, "VOLUMES_OF_FEW", 1, 0.9),
    Constant("cross entropy's wait, L2", streams, "LIKELIHOOD_US", 0, 0.5),
    Constant("cross entropy's wait, memory", streams, "LIKELIHOOD_US", 1, 0.5),
    Constant("batch norm's statistics", streams, "STATISTICS_CYCLES", "batch_norm", 1.0),
    Constant("group norm's statistics", streams, "STATISTICS_CYCLES", "group_norm", 1.0),
    Constant("pools of volumes", streams, "VOLUME_CYCLES", None, 1.0),
    Constant("a T4's clock under small kernels", "T4", "clock_share", None, 1.0),
)


def is_of_kernels(row: Row) -> bool:
    """Whether kernels take most of a program's time, so that it tells of them and not of the host."""
    return sum(ns for _, ns in row.kernels) >= LEAST_PART * 1e6 * row.outcome.predicted


class Case:
    """A row of the exam that constants price, with its kernels."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.gpu = gpus.find(row.gpu)
        self.cuda = cuda_of(row.edition, row.gpu)
        self._known: dict[tuple[float, ...], float] = {}

    @cached_property
    def constants(self) -> tuple[Constant, ...]:
        """Those that change its time."""
        values = {one: one.begin for one in CONSTANTS}
        return tuple(
            one
            for one in CONSTANTS
            for usual in [self._price(values)]
            if any(self._price(values | {one: one.begin * factor}) != usual for factor in (0.1, 0.5, 2.0))
        )

    def ms(self, values: dict[Constant, float]) -> float:
        """Its time with these constants."""
        key = tuple(values[one] for one in self.constants)
        if key not in self._known:
            self._known[key] = self._price(values)
        return self._known[key]

    def _price(self, values: dict[Constant, float]) -> float:
        for one, value in values.items():
            one.put(value)
        clock = next((value for one, value in values.items() if one.owner == self.gpu.key), self.gpu.clock_share)
        cost = CostModel(replace(self.gpu, clock_share=clock), self.cuda)
        changed = sum(_ns(cost, signature) - ns for signature, ns in self.row.kernels)
        return self.row.outcome.predicted + changed / 1e6


def _ns(cost: CostModel, signature: Signature) -> int:
    return cost.kernel(signature).duration_ns


def fit(cases: Sequence[Case]) -> dict[Constant, float]:
    """The constants that meet these rows best; those that none of them tells of stay where they begin."""

    def loss(levels: Levels) -> float:
        values = values_of(levels)
        ratios = np.array([case.ms(values) / case.row.outcome.published for case in cases])
        return float(np.mean(np.minimum(np.abs(np.log(ratios)), CLIP)))

    told = {one for case in cases for one in case.constants}
    begin: Levels = dict.fromkeys(CONSTANTS, 0)
    names = [one for one in CONSTANTS if one in told]
    return values_of(search(begin, names, loss, lambda of, name, step: of | {name: of[name] + step}, FIRST_STEP))


def values_of(levels: Levels) -> dict[Constant, float]:
    return {one: one.value(level) for one, level in levels.items()}


def predicted(cases: Sequence[Case], key: Callable[[Case], str]) -> Array:
    """Times with the rows that share a key left out."""

    def of_others(_: str, others: Mask, mine: Mask) -> Array:
        values = fit(chosen(cases, others))
        return np.array([case.ms(values) for case in chosen(cases, mine)])

    return left_out([key(case) for case in cases], of_others)


def cross_validate(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows that hand-set constants price, by what was left out when each was predicted; prints the errors."""
    before = [(one, now(one)) for one in CONSTANTS]
    try:
        cases = [Case(row) for row in rows if is_of_kernels(row)]
        cases = [case for case in cases if case.constants]
        values = fit(cases)
        sets = {"as they are": np.array([case.row.outcome.predicted for case in cases])}
        sets["fitted on all"] = np.array([case.ms(values) for case in cases])
        sets["program left out"] = predicted(cases, lambda case: case.row.program.name)
        sets["GPU left out"] = predicted(cases, lambda case: case.gpu.key)
        sets["kind left out"] = predicted(cases, lambda case: case.row.program.family)
    finally:
        for one, value in before:
            one.put(value)
    print(f"\nconstants set by hand: {len(cases)} rows that they price\n{'':38}as it is  fitted")
    for one, value in before:
        print(f"{one.name:38}{value:8.3g}{values[one]:8.3g}")
    return {name: _with(cases, times) for name, times in sets.items()}


def now(one: Constant) -> float:
    """A constant's value as it is."""
    if not isinstance(one.owner, ModuleType):
        return float(getattr(gpus.find(one.owner), one.attribute))
    found = getattr(one.owner, one.attribute)
    return float(found if one.key is None else found[one.key])


def _with(cases: Sequence[Case], times: Array) -> list[Row]:
    return [
        case.row._replace(outcome=case.row.outcome._replace(predicted=float(ms)))
        for case, ms in zip(cases, times, strict=True)
    ]


def show(found: dict[str, list[Row]]) -> None:
    """Median and 90th percentile, of all and by GPU and kind."""
    for title, key in (
        ("all", lambda row: "all"),
        ("GPU", lambda row: row.gpu),
        ("kind", lambda row: row.program.family),
    ):
        names = sorted({key(row) for rows in found.values() for row in rows})
        print(f"\n{title:28}{'n':>4}" + "".join(f"{name:>20}" for name in found))
        for name in names:
            parts = [[row.outcome for row in rows if key(row) == name] for rows in found.values()]
            errors = ("{:.1%} {:6.0%}".format(*middle_and_tail(some)) for some in parts)
            print(f"{name:28}{len(parts[0]):4}" + "".join(f"{one:>20}" for one in errors), flush=True)
