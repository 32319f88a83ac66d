"""What the installed PyTorch declares of its operators: which backends have a kernel, and how CUDA's checks devices.

PyTorch's wheel has the declarations from which its build makes the kernels' wrappers (`native_functions.yaml` of
torchgen). They are read here as lines, since torchgen's own reader needs PyYAML and seconds. Overloads that its build
adds by itself (`autogen`) have no entry: they are made of the others, for every backend.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from windtunnel.seam.torch.plans.arguments import OpOverload

COMPOSITE = frozenset(
    {"CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"}
)
BACKENDS = ("", "Quantized", "Sparse", "SparseCsr", "NestedTensor")
"""Kinds of tensors with kernels of their own: each is a prefix of "CPU" and "CUDA"."""
COMPRESSED = frozenset({torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})

INNER = {
    "aten::embedding": (torch.ops.aten.index_select.default, ("weight", None, "indices")),
    "aten::mv": (torch.ops.aten.addmv_.default, ("vec", "self", "vec")),
    "aten::stack": (torch.ops.aten.cat.default, ("tensors",)),
    "aten::_sparse_addmm": (torch.ops.aten.addmm.default, ("self", "mat1", "mat2")),
}
"""Operators written in one that compares devices, and which arguments of theirs that is given
(aten/src/ATen/native/Embedding.cpp, LinearAlgebra.cpp: the result of `mv`, which is given first, lies with `vec`)."""
RESHAPED = frozenset({"aten::index_fill.int_Scalar", "aten::index_fill_.int_Scalar"})
"""Operators that give a TensorIterator a number as a tensor with dimensions (TensorAdvancedIndexing.cpp)."""


class Declared(NamedTuple):
    """One operator: dispatch keys with a kernel, whether it is structured, whether its wrapper compares devices."""

    keys: frozenset[str]
    structured: bool
    checks_devices: bool

    @property
    def missing(self) -> frozenset[str]:
        """The kinds of tensors that the CPU has a kernel for and CUDA has none."""
        if self.keys & COMPOSITE:
            return frozenset()
        return frozenset(kind for kind in BACKENDS if f"{kind}CPU" in self.keys and f"{kind}CUDA" not in self.keys)


@cache
def _blocks() -> dict[str, str]:
    """The text of each entry, by name and overload."""
    spec = find_spec("torchgen")
    if spec is None or spec.origin is None:
        return {}
    path = Path(spec.origin).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"
    entries = path.read_text().split("\n- func: ")[1:] if path.exists() else []
    return {entry[: entry.index("(")]: entry for entry in entries}


@cache
def declared(name: str) -> Declared | None:
    """An operator's declaration, by its name and overload without namespace; None where it has none."""
    block = _blocks().get(name)
    return None if block is None else _parsed(block)


def _parsed(block: str) -> Declared:
    keys: set[str] = set()
    fields: dict[str, str] = {}
    field = ""
    for line in block.splitlines()[1:]:
        key, _, value = line.partition("#")[0].rstrip().partition(":")
        if not key.startswith("    "):
            field = key.strip()
            fields[field] = value.strip()
        elif field == "dispatch":
            keys.update(part.strip() for part in key.split(","))
    if delegate := fields.get("structured_delegate"):
        own = declared(delegate)
        keys |= own.keys if own else set()
    elif "ufunc_inner_loop" in fields:
        keys |= {"CPU", "CUDA"}
    elif not keys:
        keys.add("CompositeImplicitAutograd")
    structured = "structured" in fields or "structured_delegate" in fields
    return Declared(frozenset(keys), structured, fields.get("device_check") != "NoCheck")


def of(func: OpOverload) -> Declared | None:
    """The declaration of one of PyTorch's own operators."""
    return declared(func.name().removeprefix("aten::")) if func.namespace == "aten" else None


def kind_of(tensors: Iterable[torch.Tensor]) -> str:
    """Which of `BACKENDS` has the kernel for these tensors: PyTorch prefers those that come later."""
    return max(map(_kind, tensors), key=BACKENDS.index, default="")


def _kind(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return "NestedTensor"
    if tensor.layout in COMPRESSED:
        return "SparseCsr"
    return "Sparse" if tensor.layout is torch.sparse_coo else "Quantized" if tensor.is_quantized else ""


def checking_wrapper(func: OpOverload, kind: str = "") -> str:
    """What the wrapper of CUDA's kernel for a kind of tensors calls itself where it compares devices, else "".

    Source: `gen_device_check` and the signatures of torchgen/dest/register_dispatch_key.py.
    """
    found = of(func)
    if found is None or not found.checks_devices or f"{kind}CUDA" not in found.keys:
        return ""
    name, overload = func._schema.name.removeprefix("aten::"), func._schema.overload_name
    name += "_out" if any(argument.is_out for argument in func._schema.arguments) else ""
    if found.structured and not kind:
        return f"wrapper_CUDA_{name}" + (f"_{overload}" if overload else "")
    return f"wrapper_{kind}CUDA_{overload}_{name}"


def checked_arguments(func: OpOverload) -> list[str]:
    """The arguments that such a wrapper compares, in its order: `out` first, then those that are positional."""
    arguments = func._schema.arguments
    return [a.name for a in arguments if a.is_out] + [a.name for a in arguments if not a.kwarg_only]


def comparing(func: OpOverload, kind: str = "") -> tuple[OpOverload, tuple[str | None, ...] | None]:
    """The operator whose wrapper compares the devices of a call, and which arguments it is given (None: all of them).

    Where CUDA has no kernel of its own, a copy is written in place.
    """
    if inner := INNER.get(func._schema.name):
        return inner
    if checking_wrapper(func, kind) or func.namespace != "aten":
        return func, None
    in_place = getattr(torch.ops.aten, f"{func._schema.name.removeprefix('aten::')}_", None)
    return getattr(in_place, func._overloadname, func), None


def takes_no_host_number(func: OpOverload) -> bool:
    """Whether even a number of the host must not stand beside a device's tensors."""
    return func.name() in RESHAPED or bool(checking_wrapper(comparing(func)[0]))
