"""Which class of work an operator is: a table of names, read from `data/operators.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from windtunnel.trace.plain import Json

DATA = Path(__file__).parent / "data"
TRITON = "triton::"
"""How the names of the program's own kernels in Triton begin."""
_PREFIXES = ("", "_", "native_", "cudnn_", "_cudnn_", "_native_")
_MXNET_PREFIXES = ("_backward_", "_np_", "_npi_", "_npx_", "broadcast_", "elemwise_")
_SUFFIXES = ("", "_backward", "_forward", "_backward_data", "_double_backward", "_copy", "_out", "_jvp")

GENERATED = {"red": "reduction", "per": "reduction", "tem": "template"}
"""Kinds of the kernels that Inductor generates, by what stands after "triton_" in their names; others are pointwise."""


class OperatorClass(NamedTuple):
    """One class: the efficiency curve it uses and the share of it, its shortest kernel and one call's host time."""

    name: str
    curve: str
    share: float
    floor_us: float
    dispatch_us: float

    def floor_ns(self, generation: str) -> float:
        """The shortest kernel of the class on a generation of GPUs, in nanoseconds."""
        return 1000.0 * self.floor_us * floor_scale(generation)


@cache
def read(name: str) -> Json:
    """A data file of this folder, parsed once."""
    return tomllib.loads((DATA / f"{name}.toml").read_text(encoding="utf-8"))


def floor_scale(generation: str) -> float:
    """How long a generation's shortest kernels are, relative to Volta's."""
    return float(read("host")["floor_scale"].get(generation, 1.0))


@cache
def _classes() -> tuple[dict[str, OperatorClass], dict[str, str]]:
    classes: dict[str, OperatorClass] = {}
    names: dict[str, str] = {}
    for key, row in read("operators")["class"].items():
        share = row.get("share", 1.0)
        classes[key] = OperatorClass(key, row["curve"], share, row["floor_us"], row["dispatch_us"])
        names.update((name, key) for name in row["names"])
    for key, others in read("frameworks")["names"].items():
        names.update((name, key) for name in others if name not in names)
    return classes, names


def plain(name: str) -> str:
    """The bare operator name: "aten::add_.Tensor" gives "add"; namespace, overload and the in-place mark go."""
    name = name.rsplit("::", 1)[-1].split(".", 1)[0]
    return name.rstrip("_") if not name.startswith("__") else name


@cache
def classify(name: str) -> OperatorClass:
    """The class of an operator by its framework name; "other" when no rule knows it."""
    classes, names = _classes()
    if name.startswith(TRITON):
        return classes["triton"]
    bare = plain(name)
    for prefix in _MXNET_PREFIXES:
        if bare not in names:
            bare = bare.removeprefix(prefix)
    if bare.startswith("triton_"):
        return classes[f"generated_{GENERATED.get(bare[7:10], 'pointwise')}"]
    if bare.startswith("_foreach"):
        return classes["foreach"]
    if bare.startswith("_fused_") and bare not in names and bare.removeprefix("_fused_") not in names:
        return classes["optimizer"]
    for suffix in _SUFFIXES:
        if not bare.endswith(suffix):
            continue
        stem = bare[: len(bare) - len(suffix)]
        for prefix in _PREFIXES:
            if stem.startswith(prefix) and (found := names.get(stem.removeprefix(prefix)) or names.get(prefix + stem)):
                return classes[found]
    return classes["activation" if bare.startswith("special_") else "other"]


def is_generated(name: str) -> bool:
    """Whether a kernel is one that Inductor generated, by its name in a trace."""
    return classify(name).name.startswith("generated_")
