"""`windtunnel.kernel`: a few lines that say what an operator of a library computes and what it costs.

A company's own kernels come as a binary that this machine cannot load. A described operator runs here all the same: its
values are those of a function of PyTorch's, and it counts as one kernel.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from windtunnel.errors import UsageError
from windtunnel.operators import described
from windtunnel.operators.classes import classify

if TYPE_CHECKING:
    import torch

Values = TypeVar("Values", bound=Callable[..., object])
Amount = described.Amount
BUILT_IN = ("aten", "prim", "prims")
DEFINED: dict[str, str] = {}
"""What was defined here, with the function that it was defined by."""
LIBRARIES: list[object] = []
"""PyTorch's own objects for what was defined here, which it forgets with them."""


def kernel(
    name: str,
    *,
    like: str = "",
    flops: Amount | None = None,
    bytes: Amount | None = None,  # the unit that it is
    define: bool | str = False,
) -> Callable[[Values], Values]:
    """A decorator: its function computes what the operator `name` ("acme::swiglu") does, which counts as one kernel.

    The function takes the operator's arguments and returns its results; what the operator writes in place, it writes in
    place. It is called with tensors on the CPU, or without data on PyTorch's meta device. Its own operators count
    neither time nor memory.

    Args:
        like: an operator of PyTorch's of the same kind ("aten::silu", "aten::mm"), whose efficiency the price takes.
            Without it the time is the roofline's, with a band of half of it: nothing near it was measured.
        flops: the operations of a call, or a function of the operator's arguments that gives them. Without it they are
            those of `like`, or none.
        bytes: the bytes that a call reads and writes, or such a function. Without it they are those of its tensors.
        define: True or a schema ("(Tensor x, float eps) -> Tensor") where no library on this machine defines the
            operator; True takes the schema from the function's annotations. The operator is then
            `torch.ops.acme.swiglu`, and its gradient is that of the function, as one kernel as well.

    Raises:
        UsageError: the name, or that of `like`, is none, or the operator is PyTorch's own.
    """
    namespace, separator, operator = name.partition("::")
    if not separator or not namespace.isidentifier() or not operator.isidentifier():
        raise UsageError(f"an operator's name is like acme::swiglu, without an overload, and not {name!r}")
    if namespace in BUILT_IN:
        raise UsageError(f"{name} is PyTorch's own operator, whose values and price are known: describe another one")
    if like and classify(like).name == "other":
        raise UsageError(f"{like!r} is no operator that has a price of its own: name one like aten::mm or aten::silu")

    def describe(function: Values) -> Values:
        described.add(described.Description(name, function, like, flops, bytes))
        if define:
            _define(name, function, define, like, flops, bytes)
        return function

    return describe


def also(describe: Callable[[str], bool]) -> None:
    """Ask this function to describe a namespace's operators once one is called that has no kernel here."""
    if describe not in described.binaries:
        described.binaries.append(describe)


def require(wanted: Iterable[str]) -> tuple[str, ...]:
    """These files that describe operators, with their folders.

    Raises:
        UsageError: there is no file of one of these names.
    """
    chosen = tuple(os.path.abspath(path) for path in wanted)
    for path in chosen:
        if not os.path.isfile(path):
            raise UsageError(f"there is no file {path}: kernels are described in a Python file (windtunnel.kernel)")
    return chosen


def read(path: str) -> None:
    """Run a file that describes operators, once a process, as a module: what a plan keeps depends on it.

    Raises:
        UsageError: it raised an exception.
    """
    name = f"windtunnel_kernels_{Path(path).stem}"
    if name in sys.modules and sys.modules[name].__file__ == path:
        return
    spec = util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file: kernels are described in one whose name ends with .py")
    module = sys.modules.setdefault(name, util.module_from_spec(spec))
    try:
        spec.loader.exec_module(module)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    except Exception as error:
        raise UsageError(f"{path} describes kernels and raised {type(error).__name__}: {error}") from error


def _define(
    name: str,
    function: Callable[..., object],
    schema: bool | str,
    like: str,
    flops: Amount | None,
    moved: Amount | None,
) -> None:
    """Tell PyTorch of an operator that no library here defines, with its gradient."""
    import torch

    namespace, _, operator = name.partition("::")
    place = f"{function.__qualname__}{function.__code__.co_firstlineno}"
    if name in DEFINED and place == DEFINED[name]:  # the file runs again, under another name
        return
    if hasattr(getattr(torch.ops, namespace), operator):
        raise UsageError(f"{name} is defined already: describe it without define=")
    DEFINED[name] = place
    if not isinstance(schema, str):
        schema = torch.library.infer_schema(function, mutates_args=())
    library = torch.library.Library(namespace, "FRAGMENT")
    LIBRARIES.append(library)
    library.define(operator + schema)
    library.impl(operator, function, "CompositeExplicitAutograd")
    torch.library.register_fake(name, function, lib=library)
    arguments = getattr(getattr(torch.ops, namespace), operator).default._schema.arguments
    if any(argument.is_write for argument in arguments):
        return
    backward = f"{name}_backward"
    names = [argument.name for argument in arguments]
    inside = schema[schema.index("(") + 1 : schema.rindex(") ->")]
    library.define(f"{operator}_backward(Tensor[] gradients{', ' + inside if inside else ''}) -> Tensor[]")
    gradient = functools.partial(_gradient, function, names)
    library.impl(f"{operator}_backward", gradient, "CompositeExplicitAutograd")
    torch.library.register_fake(backward, functools.partial(_like_inputs, names), lib=library)
    amounts = [None if one is None else _after(one, times) for one, times in ((flops, 2), (moved, 1))]
    described.add(described.Description(backward, gradient, like, amounts[0], amounts[1]))

    def setup_context(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: object) -> None:
        ctx.save_for_backward(*(value for value in inputs if isinstance(value, torch.Tensor)))
        ctx.others = [None if isinstance(value, torch.Tensor) else value for value in inputs]  # type: ignore[attr-defined]
        ctx.places = [isinstance(value, torch.Tensor) for value in inputs]  # type: ignore[attr-defined]

    def run_backward(ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor) -> tuple[object, ...]:
        saved = iter(ctx.saved_tensors)  # type: ignore[attr-defined]
        inputs = [next(saved) if tensor else other for tensor, other in zip(ctx.places, ctx.others, strict=True)]  # type: ignore[attr-defined]
        made = iter(getattr(getattr(torch.ops, namespace), f"{operator}_backward")(list(gradients), *inputs))
        return tuple(next(made) if _is_floating(value) else None for value in inputs)

    torch.library.register_autograd(name, run_backward, setup_context=setup_context, lib=library)


def _after(amount: Amount, times: int) -> Amount:
    """What the gradient takes of an amount that a call takes, whose arguments come after the gradients."""
    if callable(amount):
        return lambda gradients, *args, **kwargs: times * int(amount(*args, **kwargs))
    return times * amount


def _is_floating(value: object) -> TypeGuard[torch.Tensor]:
    import torch

    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _gradient(
    function: Callable[..., object], names: list[str], gradients: list[torch.Tensor], *args: object, **kwargs: object
) -> list[torch.Tensor]:
    """The gradients of a function's floating point tensors, in their order, by autograd."""
    import torch

    inputs = [*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)]
    with _with_autograd(), torch.enable_grad():
        # Copies lie on no device: what CUDA has a gradient of its own for is differentiated in parts.
        again = [value.detach().clone().requires_grad_() if _is_floating(value) else value for value in inputs]
        out = function(*again)
        outs = [one for one in (out if isinstance(out, (tuple, list)) else (out,)) if _is_floating(one)]
        wanted = [value for value in again if _is_floating(value)]
        found = torch.autograd.grad(outs, wanted, gradients[: len(outs)], allow_unused=True)
    return [torch.zeros_like(one) if grad is None else grad for one, grad in zip(wanted, found, strict=True)]


def gradients(
    function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], gradient: torch.Tensor
) -> list[torch.Tensor]:
    """The gradients of a function of these tensors, in their types: for the backward kernels of stand-ins."""
    names = [str(place) for place in range(len(inputs))]
    wide = [one.float() for one in inputs]
    found = _gradient(function, names, [gradient.float()], *wide)
    return [grad.to(one.dtype) for grad, one in zip(found, inputs, strict=True)]


def _with_autograd() -> torch._C._ForceDispatchKeyGuard:
    """Lets autograd record where a kernel runs, beneath which it does not."""
    import torch

    keys, key = torch._C.DispatchKeySet, torch._C.DispatchKey
    recording = keys(key.AutogradCPU) | keys(key.AutogradMeta)
    without = torch._C._dispatch_tls_local_exclude_set() - recording - keys(key.ADInplaceOrView)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), without)


def _like_inputs(
    names: list[str], gradients: list[torch.Tensor], *args: object, **kwargs: object
) -> list[torch.Tensor]:
    """The gradients' shapes."""
    import torch

    inputs = [*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)]
    return [torch.empty_like(value) for value in inputs if _is_floating(value)]
