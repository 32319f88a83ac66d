"""Which class of kernel an operator is, by its name in any framework."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from windtunnel.errors import InternalError
from windtunnel.trace.plain import Json

TRITON = "triton::"
"""How the names of the program's own kernels in Triton begin."""
CUDA = "cuda::"
"""How the names of the program's own kernels in CUDA C++ begin."""
_PREFIXES = ("", "_", "native_", "cudnn_", "_cudnn_", "_native_")
_MXNET_PREFIXES = ("_backward_", "_np_", "_npi_", "_npx_", "broadcast_", "elemwise_")
_SUFFIXES = ("", "_backward", "_forward", "_backward_data", "_double_backward", "_copy", "_out", "_jvp")

GENERATED = {"red": "reduction", "per": "reduction", "tem": "template"}
"""Kinds of the kernels that Inductor generates, by what stands after "triton_" in their names; others are pointwise."""
LISTS = "names", "results_only"
"""Operators without a row of their own: nothing more is known of them, or that they allocate their results only."""


class OperatorClass(NamedTuple):
    """One class of kernel.

    `curve` is the class whose efficiency curve it uses, and `share` the share of that efficiency that it reaches
    (assumed unless a source is given; 1.0 where the curve is the class's own). `floor_us` is its shortest kernel on
    Volta (launch to end, as profilers show it), `dispatch_us` the host time of one call in eager mode on a 2.5 to 3 GHz
    server core, autograd included: both assumed from profiles that people publish, to whose bands tests/cost holds
    them. `layout` is that of its operators' cards which say nothing else.
    """

    name: str
    curve: str
    share: float
    floor_us: float
    dispatch_us: float
    layout: str = ""


class Tables(NamedTuple):
    """All files of this folder: the classes, the class of each name, and the rows by an operator's own name."""

    classes: dict[str, OperatorClass]
    class_of: dict[str, str]
    rows: dict[str, Json]


@cache
def tables() -> Tables:
    """The files, parsed once.

    Raises:
        InternalError: an operator stands in two places.
    """
    found = Tables({}, {}, {})
    elsewhere: dict[str, list[str]] = {}
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        file = tomllib.loads(path.read_text(encoding="utf-8"))
        elsewhere |= file.get("elsewhere", {})
        for key, row in file.get("class", {}).items():
            times = row["curve"], row.get("share", 1.0), row["floor_us"], row["dispatch_us"]
            found.classes[key] = OperatorClass(key, *times, row.get("layout", ""))
            for name, facts in operators(row):
                if name in found.rows:
                    raise InternalError(f"the operator {name} stands in two places, one of them {path.name}")
                found.rows[name] = facts
                found.class_of[bare(name)] = key
    for key, names in elsewhere.items():
        found.class_of.update((name, key) for name in names if name not in found.class_of)
    return found


def operators(row: Json) -> list[tuple[str, Json]]:
    """The operators of a class, each with the facts that are stated of it."""
    lists = [(name, {} if key == "names" else {key: True}) for key in LISTS for name in row.get(key, "").split()]
    return lists + [(name, facts) for names, facts in row.get("rows", {}).items() for name in names.split()]


def bare(name: str) -> str:
    """The bare operator name: "aten::add_.Tensor" gives "add"; namespace, overload and the in-place mark go."""
    name = own(name)
    return name if name.startswith("__") else name.rstrip("_")


def own(name: str) -> str:
    """An operator's name in its namespace: "aten::add_.Tensor" gives "add_"."""
    return name.rpartition("::")[2].partition(".")[0]


@cache
def classify(name: str) -> OperatorClass:
    """The class of an operator by its framework name; "other" when no rule knows it.

    A name that is not in the files is tried without "_backward", "_forward" and other ends, and with and without "_",
    "native_" and "cudnn_" before it.
    """
    classes, names, _ = tables()
    if name.startswith(TRITON):
        return classes["triton"]
    if name.startswith(CUDA):
        return classes["cuda"]
    stem = bare(name)
    for prefix in _MXNET_PREFIXES:
        if stem not in names:
            stem = stem.removeprefix(prefix)
    if stem.startswith("triton_"):
        return classes[f"generated_{GENERATED.get(stem[7:10], 'pointwise')}"]
    if stem.startswith("_foreach"):
        return classes["foreach"]
    if stem.startswith("_fused_") and stem not in names and stem.removeprefix("_fused_") not in names:
        return classes["optimizer"]
    found = next((names[one] for one in _without_affixes(stem) if one in names), None)
    return classes[found or ("activation" if stem.startswith("special_") else "other")]


def _without_affixes(name: str) -> Iterator[str]:
    for suffix in _SUFFIXES:
        stem = name.removesuffix(suffix)
        if stem != name or not suffix:
            for prefix in _PREFIXES:
                if stem.startswith(prefix):
                    yield from (stem.removeprefix(prefix), prefix + stem)
