"""What the dispatch handler must know of an operator, read once from its schema and its card."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import repeat
from math import prod
from typing import Protocol

import torch
from torch.utils.flop_counter import flop_registry

from windtunnel.machine.machine import Machine
from windtunnel.operators.card import CUDNN, Card, card
from windtunnel.operators.described import Description, amount
from windtunnel.seam.torch.plans.call import Arguments, Kernel, Keywords, OpOverload, Result
from windtunnel.seam.torch.tags import (
    CPU,
    NOWHERE,
    ORDINARY,
    VERSION,
    dtype_of,
    is_physically_meta,
    shape_of,
    size_of,
    storage_of,
    tag_of,
)
from windtunnel.trace.operation import Signature

BUILT_IN = frozenset({"aten", "_c10d_functional", "c10d", "c10d_functional", "inductor", "rngprims"})
"""Operator namespaces of PyTorch's C++ kernels; those of `prims` are Python, which must see the physical device."""
RANDOM_ARGUMENT, RANDOM_STATE = 1, 2
"""How a random operator takes its generator: as an argument, or only from the default generator's state."""
LEAVES_3D_TO_CUDNN = VERSION < (2, 9)
"""Whether PyTorch asks every cuDNN for 3-d convolutions in 16 bits (cost/families/looped_convolutions.py)."""
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
    what the time of a product or convolution depends on. `memory`: its kernel takes memory beyond its results, as `row`
    says, or is not known (no row). `looks`: only makes views of its first argument, which is its only tensor.
    `handler`: replaces it all. `run`: what `func` calls, or a kernel of ours for it on a device; `strided`: the same
    where no tensor is sparse or nested. `simple`: launching its kernel is all that there is to it. `direct`: without
    keywords it is a plain operator, `called`: one that needs more round it than `run` (random numbers, a library's
    kernel).
    """

    __slots__ = (
        "attributes", "called", "card", "checked", "described", "direct", "empty", "handler", "kernel", "layout",
        "looks", "memory", "ordered", "resizes", "row", "run", "simple", "strided",
    )  # fmt: skip

    def __init__(self, func: OpOverload, run: Callable[..., object] | None = None) -> None:
        super().__init__(func)
        self.card = known = card(func.name())
        self.run: Kernel = func._op if run is None else run
        self.strided = self.run
        self.handler: Callable[..., object] | None = None
        self.row: object = None
        self.described: Description | None = None
        self.memory = self.simple = self.direct = False
        self.attributes, self.ordered = known.attributes, bool(known.layout)
        self.checked = func._overloadname in known.checks
        self.kernel = known.launches and not self.view and bool(func._schema.returns or self.written)
        self.empty = self.name.startswith(("aten::empty", "aten::new_empty"))
        self.resizes = bool(self.mutated_keywords) or known.resizes
        self.layout = _layout(known, self.names)
        self.called = bool(self.random) or not self.builtin
        self.looks = self.view and not self.called and self.tensors == [0]
        if not self.builtin and (key := python_kernel(func)) is not None:
            self.handler = partial(run_python, key)

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


class Dispatcher(Protocol):
    """What is asked of the dispatch mode here."""

    @property
    def parts(self) -> AbstractContextManager[object]:
        """What to enter where an operator is run as others."""

    def general(self, plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
        """Run an operator as any other."""


def run_python(
    key: torch._C.DispatchKey, dispatch: Dispatcher, plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords
) -> Result:
    """An operator of a library in Python: on a device what its kernel calls comes to the dispatch mode by itself."""
    given = (*args, *kwargs.values())
    on_device = any(tag_of(tensor).device >= 0 for tensor in tensors_in(given))
    if not on_device and not any(isinstance(value, torch.device) and value.type == "cuda" for value in given):
        return dispatch.general(plan, func, args, kwargs)
    # What such a kernel returns is a view where PyTorch's own operators make it one, which a mode's turn leaves out.
    with dispatch.parts, torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return func._op_dk(key, *args, **kwargs)


def tensors_in(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """The tensors in arguments or results, in order."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


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


def written_by(plan: Plan, args: Arguments, kwargs: Keywords) -> list[torch.Tensor]:
    """The tensors among an operator's arguments that it writes, also those of which its schema does not say so."""
    positions = plan.mutated
    if hidden := plan.card.hidden_writes:
        flag = plan.card.writes_if
        positions += hidden if len(args) <= flag or args[flag] else ()
    found = [tensor for place in positions if place < len(args) for tensor in tensors_in((args[place],))]
    if plan.mutated_keywords:
        found += [tensor for name in plan.mutated_keywords for tensor in tensors_in((kwargs.get(name),))]
    return found


def signature(func: OpOverload, plan: Plan, args: Arguments, kwargs: Keywords, out: object, tf32: bool) -> Signature:
    """What the cost model needs to know of one call: shapes, dtypes, floating point operations and bytes.

    `tf32` is `State.tf32()` of the operator's library.
    """
    inputs = list(tensors_in((*args, *kwargs.values())))
    outputs = list(tensors_in((out,))) if plan.fresh else []
    read = sum(map(bytes_of, inputs))
    written = sum(map(bytes_of, outputs))
    for position in plan.mutated:
        if position < len(args):
            written += sum(map(bytes_of, tensors_in((args[position],))))
    for keyword in plan.mutated_keywords:
        size = sum(map(bytes_of, tensors_in((kwargs.get(keyword),))))
        written += size
        read -= size
    first = bytes_of(inputs[0]) if inputs else 0
    known = plan.card
    if known.access == "writes":
        read -= sum(map(bytes_of, tensors_in(args[:1])))
    elif known.access == "fills first":
        written *= 2
    elif known.access == "gathers":
        read += min(first, written) - first
    elif known.access == "scatters":
        touched = min(first, bytes_of(inputs[-1]))
        read += touched - first
        written = touched
    detail: list[tuple[str, str | int]] = []
    if tf32:
        detail.append(("tf32", 1))
    if inputs and inputs[0].dtype is FOUR:
        detail.append(("packed", 1))
    if any(map(channels_last, inputs)):
        detail.append(("channels_last", 1))
    if LEAVES_3D_TO_CUDNN and known.tf32 == CUDNN:
        detail.append(("cudnn", 1))
    if known.tf32 == CUDNN and BENCHMARK():
        detail.append(("benchmark", 1))
    scattered, strided, _ = disorder(args, out) if known.layout == "order" else ORDERLY
    if scattered:
        detail.append(("scattered", scattered))
    elif strided:
        detail.append(("strided", 1))
    if known.workspace and plan.layout:
        detail += [(name, 1) for name in plan.layout(args)]
    if plan.attributes:
        detail += [(name, _plain(value)) for name, value in zip(plan.names, args, strict=False) if _is_plain(value)]
    flops = None
    if (told := plan.described) is not None:
        detail.append(("like", told.like))
        flops = None if told.flops is None else amount(told.flops, args, kwargs)
        read, written = (read, written) if told.bytes is None else (amount(told.bytes, args, kwargs), 0)
    return Signature(
        plan.name,
        tuple(tuple(int(n) for n in size_of(t)) for t in (*inputs, *outputs)),
        tuple(str(t.dtype)[6:] for t in (*inputs, *outputs)),
        len(inputs),
        flops_of(plan, func, args, kwargs, out) if flops is None else flops,
        max(0, read),
        written,
        tuple(detail),
    )


def channels_last(tensor: torch.Tensor) -> bool:
    """Whether an image's or a kernel's channels lie next to each other, by its strides: 1x1 kernels are told apart.

    A part of the channels of such an image counts as one.
    """
    if tensor.dim() not in (4, 5) or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    strides = tensor.stride()
    return bool(strides[1] == 1 and strides[-1] >= tensor.shape[1] > 1)


def disorder(args: Arguments, out: object) -> tuple[int, bool, bool]:
    """How the operands of an operator lie in memory, as far as its time depends on it.

    Bytes of those of the result's size, or of parts that are concatenated or padded, whose neighbours in memory are not
    those of the result; whether any other such operand has strides of its own, so that the kernel works out each
    element's place; whether channels come last.
    """
    result = out[0] if isinstance(out, (tuple, list)) else out
    parts = args[0] if args and isinstance(args[0], (tuple, list)) else ()
    tensors = [one for one in (result, *args, *parts) if one.__class__ is torch.Tensor and one.layout is torch.strided]
    if all(one.is_contiguous() for one in tensors):
        return ORDERLY
    if not isinstance(result, torch.Tensor) or result.layout is not torch.strided or result.is_nested:
        return ORDERLY
    dense, shape, strides = fastest_dimension(result), result.shape, result.stride()
    operands = (one for one in (*args, *parts) if isinstance(one, torch.Tensor) and one.layout is torch.strided)
    whole = [one for one in operands if not one.is_nested and one.dim() == len(shape) and _is_part(one.shape, shape)]
    scattered = sum(bytes_of(one) for one in whole if fastest_dimension(one) != dense)
    strided = any(one.stride() != strides for one in whole if one.shape == shape)
    return scattered, strided, any(map(channels_last, tensors))


def _is_part(shape: torch.Size, whole: torch.Size) -> bool:
    """Whether a tensor of this shape may be a part of another, rather than repeated along it."""
    return all(size == full or size > 1 for size, full in zip(shape, whole, strict=True))


FOUR: torch.dtype | None = getattr(torch, "float4_e2m1fn_x2", None)
"""Two numbers of four bits in a byte."""
ORDERLY = (0, False, False)
BENCHMARK: Callable[[], bool] = torch._C._get_cudnn_benchmark
Layout = Callable[[Arguments], tuple[str, ...]]


def _layout(known: Card, names: Sequence[str]) -> Layout | None:
    """What says how the operands of a convolution or a matrix product lie, as far as its time depends on it."""
    if known.kind.name == "convolution":
        return images_layout
    if not (known.workspace and known.tf32):
        return None
    return partial(operands_layout, next((i for i, name in enumerate(names) if name in ("mat1", "batch1", "mat")), 0))


def fastest_dimension(tensor: torch.Tensor) -> int:
    """The dimension along which a tensor's elements lie next to each other, the last of several; -1 where none does."""
    sizes = zip(tensor.stride(), tensor.shape, strict=True)
    found = [(stride, -dim) for dim, (stride, size) in enumerate(sizes) if size > 1 and stride > 0]
    return -min(found)[1] if found else -1


def images_layout(args: Arguments) -> tuple[str, ...]:
    """Whether the channels of a convolution's images or kernel come last, and whether cuDNN tries its algorithms."""
    last = any(map(channels_last, tensors_in(args[:3])))
    return ("channels_last",) * last + ("benchmark",) * BENCHMARK()


def operands_layout(first: int, args: Arguments) -> tuple[str, ...]:
    """Which operands of a matrix product lie transposed in memory, and which are the same matrix for a whole batch.

    The rows of a transposed one, not its columns, are contiguous.
    """
    found = []
    for which, tensor in zip("ab", args[first : first + 2], strict=False):
        if tensor.dim() > 1 and tensor.layout is torch.strided and not tensor.is_nested:
            if tensor.stride(-1) != 1 == tensor.stride(-2):
                found.append(f"transposed_{which}")
            if tensor.dim() == 3 and tensor.stride(0) == 0 and len(tensor) > 1:
                found.append(f"shared_{which}")
    return tuple(found)


def _plain(value: object) -> str | int:
    """A value of a call as a signature keeps it: truth values as 0 and 1, since the word "False" would be true."""
    return int(value) if isinstance(value, bool) else str(value)


def _is_plain(value: object) -> bool:
    return isinstance(value, (int, float)) or (
        isinstance(value, (list, tuple)) and next(tensors_in(value), None) is None
    )


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


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements, of a sparse one's values."""
    if tensor.layout is not torch.strided:
        return int(tensor._nnz()) * tensor.element_size() if tensor.layout is torch.sparse_coo else 0
    return tensor.numel() * tensor.element_size()


class Unknown:
    """Where texts begin, without data: PyTorch's counter takes each to be as long as the longest."""

    device = torch.device("meta")

    def __init__(self, places: torch.Tensor) -> None:
        self.shape = places.shape

    def size(self, dim: int) -> int:
        """The length of a dimension."""
        return int(self.shape[dim])


def _has_no_values(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.int32 and is_physically_meta(value)


def flops_of(plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords, out: object) -> int:
    """Floating-point operations of one call as PyTorch's own counter has them; 0 where it has no rule.

    It has none for cuDNN's recurrent layers: every matrix is used once for each step and text, twice as often backward.
    Each of the query's heads counts, also where several share one of the key's, of which PyTorch 2.6 has no rule.
    """
    if plan.name == "aten::convolution_backward":
        return _convolution_backward_flops(args[0], args[1], args[2], args[7], args[-1])
    known = plan.card
    if known.passes:
        matrices = sum(weight.numel() for weight in args[1] if weight.dim() > 1)
        return int(2 * known.passes * matrices * prod(args[0].shape[:-1]))
    counted, first = func._overloadpacket, known.query
    batch, heads, tokens = 0, 1, 2
    if known.counted_as:
        if args[known.texts] is None:
            counted = getattr(torch.ops.aten, known.counted_as)
            heads, tokens = tokens, heads
        else:
            first = None
            args = tuple(Unknown(one) if _has_no_values(one) else one for one in args)
    count = flop_registry.get(counted)
    if count is None:
        return 0
    if first is not None:
        shared = args[first].shape[heads]
        given = [part.shape for part in args[: first + 3]]
        shapes = [(shape[batch], shared, shape[tokens], *shape[3:]) for shape in given]
        args = (*shapes, *args[first + 3 :])
    if any(tensor.is_nested for tensor in tensors_in(args)):  # a batch of parts, each with a shape of its own
        split = [[part[None] for part in t.unbind()] if isinstance(t, torch.Tensor) else repeat(t) for t in args]
        return sum(int(count(*parts, **kwargs, out_val=None)) for parts in zip(*split, strict=False))
    # Its rules know no `out_dtype`, nor that a byte may hold two numbers.
    packed = 2 if args and getattr(args[0], "dtype", None) is FOUR else 1
    return packed * int(count(*(value for value in args if not isinstance(value, torch.dtype)), **kwargs, out_val=out))


def _convolution_backward_flops(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, transposed: bool, mask: Sequence[bool]
) -> int:
    """The gradients of input and weight take as many operations as the forward pass, each.

    PyTorch's counter (torch/utils/flop_counter.py, conv_backward_flop) leaves the groups out of the weight's: it counts
    every input channel against every output channel.
    """
    positions = prod(x.shape) if transposed else prod(gradient.shape)
    return 2 * positions * prod(weight.shape[1:]) * sum(map(bool, mask[:2]))


def on_cpu(machine: Machine, plan: Plan, func: OpOverload, args: Arguments, kwargs: Keywords, out: object) -> int:
    """What an operator on host tensors takes the host, in nanoseconds (modelled)."""
    if not plan.kernel or not machine.installed:
        return 0
    size = sum(map(bytes_of, tensors_in((*args, out))))
    flops = flops_of(plan, func, args, kwargs, out)
    return machine.installed[0].cost.host_operator_ns(size, flops, bool(plan.random))
