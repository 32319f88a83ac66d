"""What the dispatch handler must know of an operator, read once from its schema and its card."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import torch

from windtunnel.operators.card import card
from windtunnel.operators.described import Description
from windtunnel.seam.torch.plans.arguments import Arguments, Kernel, Keywords, OpOverload, tensors_in
from windtunnel.seam.torch.plans.layout import layout_of
from windtunnel.seam.torch.plans.native_functions import takes_no_host_number
from windtunnel.seam.torch.tags import (
    CPU,
    NOWHERE,
    ORDINARY,
    dtype_of,
    shape_of,
    storage_of,
    tag_of,
)

BUILT_IN = frozenset({"aten", "_c10d_functional", "c10d", "c10d_functional", "inductor", "rngprims"})
"""Operator namespaces of PyTorch's C++ kernels; those of `prims` are Python, which must see the physical device."""
RANDOM_ARGUMENT, RANDOM_STATE = 1, 2
"""How a random operator takes its generator: as an argument, or only from the default generator's state."""
has_kernel: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key


class Schema:
    """What an OpOverload's own schema and tags say.

    `tensors`: positions of arguments that are tensors, `lists`: whether some are lists of them. `factory`: there are
    none. `fresh`: may return new storages. `view`: only makes views. `mutated`: positions of arguments that it writes,
    `written` the names of all. `random`: how it takes its generator. `composite`: has no kernel of its own, but is
    written in other operators. `tensorless`: neither takes nor makes tensors.
    """

    __slots__ = (
        "builtin", "composite", "factory", "fresh", "func", "lists", "mutated", "mutated_keywords", "name", "names",
        "random", "tensorless", "tensors", "view", "written",
    )  # fmt: skip

    def __init__(self, func: OpOverload) -> None:
        arguments, returns = func._schema.arguments, func._schema.returns
        written = [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]
        self.func = func
        self.name: str = func._schema.name
        self.names = tuple(argument.name for argument in arguments)
        self.tensors = [i for i, argument in enumerate(arguments) if "Tensor" in str(argument.type)]
        self.factory = not self.tensors
        self.lists = any("List" in str(arguments[i].type) for i in self.tensors)
        self.mutated = tuple(i for i, a in enumerate(arguments) if a in written and not a.kwarg_only)
        self.mutated_keywords = tuple(a.name for a in written if a.kwarg_only)
        self.written = frozenset(a.name for a in written)
        self.view = _views(func)
        self.fresh = any(r.alias_info is None and "Tensor" in str(r.type) for r in returns)
        self.random = _random(func, self.names)
        self.builtin = func.namespace in BUILT_IN
        makes_none = self.factory and not any("Tensor" in str(r.type) for r in returns)
        self.tensorless = makes_none and func.namespace in ("aten", "profiler")
        name = func.name()
        self.composite = has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "CPU")


def _views(func: OpOverload) -> bool:
    """Whether an operator only makes views; `transpose_` and the like put one in the tensor's place."""
    aliases = [r.alias_info for r in func._schema.returns]
    only = bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)
    return only or (torch.Tag.inplace_view in func.tags and not card(func._schema.name).resizes)


def _random(func: OpOverload, names: Sequence[str]) -> int:
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return 0
    return RANDOM_ARGUMENT if "generator" in names else RANDOM_STATE


class Plan(Schema):
    """How one OpOverload is handled: its schema, its card, and what `Dispatch` makes of both for the path of a call.

    `attributes`, `ordered`: its time depends on more than shapes, on how operands lie, as the card says. `checked`:
    lets no number of the host stand beside a device's tensors. `kernel`: launches one. `empty`: makes memory of which
    nothing is computed. `described`: what the program says of it. `resizes`: may change a storage's size. `layout`:
    what the time of a product or convolution depends on. `memory`: its kernel takes memory beyond its results, as
    `row` says, or is not known (no row); `copies`: none but for operands that do not lie in order. `refused`: kinds of
    tensors, none of them plain, that have no kernel. `looks`: only makes views of its first argument, which is its
    only tensor. `handler`: replaces it all. `run`: what `func` calls, or a kernel of ours for it on a device;
    `strided`: the same where no tensor is sparse or nested. `simple`: launching its kernel is all that there is to it.
    `direct`: without keywords it is a plain operator, `called`: one that needs more round it than `run` (random
    numbers, a library's kernel).
    """

    __slots__ = (
        "attributes", "called", "card", "checked", "copies", "described", "direct", "empty", "handler", "kernel",
        "layout", "looks", "memory", "ordered", "refused", "resizes", "row", "run", "simple", "strided",
    )  # fmt: skip

    def __init__(self, func: OpOverload, run: Callable[..., object] | None = None) -> None:
        super().__init__(func)
        self.card = known = card(func.name())
        self.run: Kernel = func._op if run is None else run
        self.strided = self.run
        self.handler: Callable[..., object] | None = None
        self.row: object = None
        self.refused: frozenset[str] = frozenset()
        self.described: Description | None = None
        self.memory = self.copies = self.simple = self.direct = False
        self.attributes, self.ordered = known.attributes, bool(known.layout)
        self.checked = takes_no_host_number(func)
        self.kernel = known.launches and not self.view and bool(func._schema.returns or self.written)
        self.empty = self.name.startswith(("aten::empty", "aten::new_empty"))
        self.resizes = bool(self.mutated_keywords) or known.resizes
        self.layout = layout_of(known, self.names)
        self.called = bool(self.random) or not self.builtin
        self.looks = self.view and not self.called and self.tensors == [0]

    def run_foreign(self, func: Kernel, args: Arguments, kwargs: Keywords) -> object:
        """Call a library's kernel in C++, which makes its tensors where an argument says: on the CPU.

        No dispatch mode is there while an operator runs.
        """
        cpu = torch.device("cpu")
        moved = (cpu if isinstance(arg, torch.device) and arg.type == "cuda" else arg for arg in args)
        return func(*moved, **kwargs)


def allocates_results_only(plan: Plan) -> bool:
    """Whether an operator's kernel is known to allocate nothing else: elementwise ones do not, nor what launches none.

    A foreach operator runs as one kernel over lists of pointers, which travel as its arguments.
    """
    is_elementwise = torch.Tag.pointwise in plan.func.tags or plan.name.startswith("aten::_foreach_")
    return is_elementwise or not plan.kernel or plan.card.results_only


def python_kernel(func: OpOverload) -> torch._C.DispatchKey | None:
    """The dispatch key of the kernel that a library wrote for CUDA tensors, in Python or in C++, or None.

    `torch.library.custom_op` and `Library.impl` keep a list of those in Python.
    """
    found = (key for key in ("CUDA", "CompositeExplicitAutograd") if registered(func.name(), key))
    name = next(found, None)
    if name is None and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CUDA"):
        name = "CUDA"
    return None if name is None else getattr(torch._C.DispatchKey, name)


def registered(name: str, key: str) -> bool:
    """Whether a library's kernel in Python is there for an operator and a dispatch key."""
    return f"{name.replace('::', '/')}/{key}" in torch.library._impls


def selects(args: Arguments) -> bool:
    """Whether an operator that may be indexed with masks has one whose elements the host must count.

    Writing one number of the host through a mask needs no count, it is a `masked_fill` (`canDispatchToMaskedFill` in
    aten/src/ATen/native/TensorAdvancedIndexingUtils.h).
    """
    if not any(index.dtype in (torch.bool, torch.uint8) for index in tensors_in(args[1])):
        return False
    if len(args) < 3 or (len(args) > 3 and args[3]):
        return True
    return bool(args[2].numel() != 1 or tag_of(args[2]).device >= 0)


def common_device(tensors: Iterable[torch.Tensor], key: list[Hashable]) -> int:
    """The device of a list of plain tensors that share one, with their shapes and types in `key`; else NOWHERE.

    On the host the tensors of a subclass are not plain: what they are made of may lie on a device.
    """
    parts = list(tensors)
    try:
        devices = {storage._wt.device for storage in map(storage_of, parts)}
        key += map(shape_of, parts)
        key += map(dtype_of, parts)
    except (NotImplementedError, RuntimeError, TypeError, ValueError):  # sparse ones, nested ones, None
        return NOWHERE
    if len(devices) != 1 or (CPU in devices and not ORDINARY.issuperset(map(type, parts))):
        return NOWHERE
    return devices.pop()


def numbers_as_tensors(func: OpOverload, args: Arguments) -> tuple[object, ...]:
    """What TorchScript holds as tensors of one number comes to a mode as Python numbers, which few operators take.

    Source: `toPyObject` of torch/csrc/jit/python/pybind_utils.cpp; `should_allow_numbers_as_tensors` of
    torch/csrc/utils/python_arg_parser.cpp.
    """
    if torch._C._should_allow_numbers_as_tensors(func._opname):
        return args
    return tuple(
        torch.tensor(value, device="cpu")
        if isinstance(value, (int, float, complex)) and isinstance(argument.type, torch.TensorType)
        else value
        for value, argument in zip(args, func._schema.arguments, strict=False)
    )
