"""Whether what stands in a function's place takes every call that the function takes, in this version of its library.

Libraries call their own functions by place and by name, and change both from version to version. A call that ours would
misread is refused in one sentence, whatever the library is.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import wraps
from importlib import metadata
from inspect import Parameter, Signature
from types import FunctionType, MethodType
from typing import NoReturn

from windtunnel.errors import UnsupportedError

BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
WRAPPERS = (staticmethod, classmethod)
WRITTEN = (FunctionType, MethodType)
"""What is written in Python, and so says how it is called."""
CALLABLE = (*WRITTEN, *WRAPPERS)
TESTED = {
    "torch": "torch>=2.6,<2.15",
    "triton": "triton>=3.7,<3.10",
    "jax": "jax==0.10.2",
    "jaxlib": "jax==0.10.2",
    "tensorflow": "tensorflow-cpu==2.21.0",
    "mxnet": "mxnet==1.9.1",
    "pynvml": "nvidia-ml-py>=12,<14",
}
"""The versions whose calls are known, by package."""


def signature_of(function: object) -> Signature | None:
    """The signature of a function or method; None of what is none, or is written in C and does not say."""
    inner = _inner(function)
    if not isinstance(inner, WRITTEN):
        return None
    try:
        return inspect.signature(inner)
    except ValueError:  # it wraps a function written in C
        return None


def _inner(function: object) -> object:
    """What a static or a class method wraps; else the function itself."""
    return function.__func__ if isinstance(function, WRAPPERS) else function


def takes_all(ours: Signature, stock: Signature) -> bool:
    """Whether `ours` can be called in every way in which `stock` can, and gets each value under the same name."""
    own = list(ours.parameters.values())
    rest = any(one.kind is Parameter.VAR_POSITIONAL for one in own)
    named = any(one.kind is Parameter.VAR_KEYWORD for one in own)
    by_place = [one for one in own if one.kind in BY_PLACE]
    met = set()
    for place, theirs in enumerate(stock.parameters.values()):
        if theirs.kind is Parameter.VAR_POSITIONAL:
            fits = rest
            met |= {one.name for one in by_place[place:]}
        elif theirs.kind is Parameter.VAR_KEYWORD:
            fits = named
            met |= {one.name for one in own}
        elif theirs.kind in BY_PLACE and place < len(by_place):
            mine = by_place[place]
            met.add(mine.name)
            fits = mine.name == theirs.name or _nameless(mine) or _nameless(theirs)
            fits = fits and (mine.default is not Parameter.empty or theirs.default is Parameter.empty)
        elif theirs.kind in BY_PLACE:
            fits = rest
        else:
            met.add(theirs.name)
            found_by_name = ours.parameters.get(theirs.name)
            fits = named if found_by_name is None else found_by_name.kind is not Parameter.POSITIONAL_ONLY
        if not fits:
            return False
    needed = (one for one in own if one.default is Parameter.empty and one.kind in (*BY_PLACE, Parameter.KEYWORD_ONLY))
    return all(one.name in met for one in needed)


def _nameless(parameter: Parameter) -> bool:
    """Whether nobody passes it by name."""
    return parameter.kind is Parameter.POSITIONAL_ONLY or parameter.name in ("self", "cls")


def fitted(ours: object, stock: object) -> object:
    """`ours`, or where `stock` can be called as it cannot, a function that refuses such calls and makes the others."""
    if not isinstance(stock, CALLABLE):
        return ours
    if type(ours) is not type(stock) and isinstance(ours, WRAPPERS) | isinstance(stock, WRAPPERS):
        return ours  # one gets its class, and the other does not
    if not (isinstance(_inner(ours), WRITTEN) and isinstance(_inner(stock), WRITTEN)) or _is_ours(stock):
        return ours
    forms = _form(ours), _form(stock)
    if forms in _FITTING:
        return ours
    known, wanted = signature_of(ours), signature_of(stock)
    if known is None or wanted is None:
        return ours
    if takes_all(known, wanted):
        if None not in forms:
            _FITTING.add(forms)
        return ours
    inner, original = _inner(ours), _inner(stock)
    guarded = _guarded(inner, known, original, wanted)  # type: ignore[arg-type]
    return type(ours)(guarded) if isinstance(ours, WRAPPERS) else guarded


_FITTING: set[tuple[object, object]] = set()
"""Pairs of forms that were found to fit: every session of a process replaces the same functions."""


def _form(function: object) -> tuple[object, ...] | None:
    """What decides how a function can be called; None of all that is not Python's code, or says its own signature."""
    inner = _inner(function)
    while isinstance(inner, FunctionType) and "__signature__" not in vars(inner):
        if "__wrapped__" not in vars(inner):
            return inner.__code__, len(inner.__defaults__ or ()), frozenset(inner.__kwdefaults__ or ())
        inner = vars(inner)["__wrapped__"]
    return None


def _is_ours(function: object) -> bool:
    """Whether it stands in a library's place already."""
    return str(getattr(function, "__module__", "")).startswith("windtunnel.")


def _guarded(
    ours: Callable[..., object], known: Signature, stock: Callable[..., object], wanted: Signature
) -> Callable[..., object]:
    @wraps(ours)
    def call(*args: object, **kwargs: object) -> object:
        bound = wanted.bind(*args, **kwargs)  # which raises what the library itself would
        try:
            meant = known.bind(*args, **kwargs).arguments
        except TypeError:
            refuse(stock)
        if not _agree(meant, bound.arguments, known, wanted):
            refuse(stock)
        return ours(*args, **kwargs)

    return call


def _agree(meant: dict[str, object], said: dict[str, object], known: Signature, wanted: Signature) -> bool:
    """Whether each value has the name in ours that it has in the library's."""
    for parameter in wanted.parameters.values():
        if parameter.kind is Parameter.VAR_KEYWORD:  # what goes there has the name that it was called with
            said = {**said, **said.get(parameter.name, {})}  # type: ignore[dict-item]
    for place, (name, own) in enumerate(known.parameters.items()):
        other = list(wanted.parameters.values())[place] if place < len(wanted.parameters) else own
        several = own.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        if name in meant and not (several or _nameless(own) or _nameless(other)) and meant[name] is not said.get(name):
            return False
    return True


def refuse(stock: Callable[..., object]) -> NoReturn:
    """Say that this version of a library calls a function as ours cannot be called.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(f"{unknown_call(stock)}, which emulated GPUs do not know: {advice(stock.__module__)}")


def unknown_call(stock: Callable[..., object]) -> str:
    """ "Triton 3.10.0 calls InterpreterBuilder.create_dot(self, a, b)", without the types."""
    package = stock.__module__.partition(".")[0]
    names = ", ".join(re.split(r"[:=]", str(one))[0] for one in inspect.signature(stock).parameters.values())
    return f"{package} {_version(package)} has {stock.__qualname__}({names})"


def advice(module: str) -> str:
    """What to install in the place of the version whose calls are not known."""
    wanted = TESTED.get(module.partition(".")[0])
    return f'pip install "{wanted}"' if wanted else "install the version of it that the documentation names"


def _version(package: str) -> str:
    for distribution in metadata.packages_distributions().get(package, []):
        return metadata.version(distribution)
    return "of this Python"
