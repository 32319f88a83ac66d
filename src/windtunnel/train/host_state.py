"""What a training step reads on the host: attributes, globals, hyperparameters, hooks, random generators.

A CUDA graph freezes all of that at its capture. This module finds it, by walking from the model, the loss and the
optimizer through attributes, containers and the code that they run, much as torch.compile finds its guards, and
compares it later. Code of PyTorch, NumPy and Python itself is not walked.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import io
import logging
import random
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, type(Ellipsis))
NOT_WALKED = frozenset({*sys.stdlib_module_names, "torch", "numpy", "windtunnel"})
ENTRIES = {"forward", "training_step", "__call__"}  # methods that a step begins with
CHANGEABLE = {"datetime", "io", "logging", "os", "random", "secrets", "sys", "time", "uuid", "warnings"}
TALKING = {"eval", "exec", "input", "open", "print"}
OUR_OWN = {"trainer", "board"}  # attributes of a Module that change with every step
LIMIT = 50_000  # more is not compared in every step
SMALL = 10_000  # elements of arrays on the host whose values are compared
_GONE = object()


class HostState:
    """The current state on the host of `roots` (names to objects).

    `change()` names what has changed since; `objection` says why not all of it can be observed, None if it can.
    """

    def __init__(self, roots: Mapping[str, object]) -> None:
        self.objection: str | None = None
        self._entries: list[tuple[Any, Any, object, str]] = []  # mapping or list, key, value, name
        self._lengths: list[tuple[Any, int, str]] = []
        self._cells: list[tuple[types.CellType, object, str]] = []
        self._tensors: list[tuple[torch.Tensor, tuple[object, ...], str]] = []
        self._contents: list[tuple[Callable[[], object], object, str]] = [
            (_modes, _modes(), "a global mode of PyTorch")
        ]
        self._seen: dict[int, object] = {}
        self._names: set[str] = set()  # that the code mentions
        self._methods: dict[str, list[tuple[object, str]]] = {}  # of which no code has said the name so far
        for name, root in roots.items():
            self._walk(root, name)

    def change(self) -> str | None:
        """The first change found, in words."""
        for holder, key, value, name in self._entries:
            now = holder.get(key, _GONE) if isinstance(holder, dict) else holder[key] if key < len(holder) else _GONE
            if now is not value and not _equal(now, value):
                return f"{name} ({_short(value)}, then {_short(now)})"
        for container, length, name in self._lengths:
            if len(container) != length:
                return name
        for cell, value, name in self._cells:
            now = _content(cell)
            if now is not value and not _equal(now, value):
                return f"{name} ({_short(value)}, then {_short(now)})"
        for tensor, facts, name in self._tensors:
            if _facts(tensor) != facts:
                return name
        for read, value, name in self._contents:
            if not _same(read(), value):
                return name
        return None

    def _object(self, reason: str) -> None:
        self.objection = self.objection or reason

    def _walk(self, value: object, name: str) -> None:
        if isinstance(value, PLAIN) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if len(self._entries) > LIMIT:
            self._object("the model holds more on the host than is compared in every step")
            return
        for kinds, walk in _WALKS:
            if isinstance(value, kinds):
                walk(self, value, name)
                return
        if isinstance(value, Iterator | io.IOBase | logging.Logger):
            self._object(f"{name} is a {type(value).__name__}, whose use a graph would leave out")
        elif not _is_foreign(type(value)):
            self._walk_object(value, name)

    def _walk_tensor(self, tensor: torch.Tensor, name: str) -> None:
        self._tensors.append((tensor, _facts(tensor), name))
        for hooks in (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)):
            self._walk(hooks, f"a hook of {name}")
        if tensor.device.type == "cpu" and tensor.numel() <= SMALL and tensor.layout is torch.strided:
            self._contents.append((tensor.detach().clone, tensor.detach().clone(), name))

    def _walk_dict(self, value: Any, name: str) -> None:
        self._lengths.append((value, len(value), name))
        for key, item in list(value.items()):
            self._entry(value, key, item, f"{name}[{key!r}]" if isinstance(key, PLAIN) else name)

    def _walk_list(self, value: list[object], name: str) -> None:
        self._lengths.append((value, len(value), name))
        for index, item in enumerate(value):
            self._entry(value, index, item, f"{name}[{index}]")

    def _walk_tuple(self, value: tuple[object, ...], name: str) -> None:
        for index, item in enumerate(value):
            self._walk(item, f"{name}[{index}]")

    def _entry(self, holder: object, key: object, value: object, name: str) -> None:
        self._entries.append((holder, key, value, name))
        self._walk(value, name)

    def _walk_content(self, value: object, name: str) -> None:
        read = _read_content(value)
        if read is not None:
            self._contents.append((read, read(), name))

    def _walk_module(self, module: nn.Module, name: str) -> None:
        attributes = vars(module)
        self._lengths.append((attributes, len(attributes), f"the attributes of {name}"))
        for key, value in list(attributes.items()):
            if key in OUR_OWN:
                continue
            if key in ("_parameters", "_buffers", "_modules"):
                for part, item in list(value.items()):
                    self._entry(value, part, item, f"{name}.{part}")
                self._lengths.append((value, len(value), f"the parts of {name}"))
            else:
                self._entry(attributes, key, value, f"{name}.{key}")
        self._offer_methods(type(module), name)

    def _walk_optimizer(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        for index, group in enumerate(optimizer.param_groups):
            self._walk(group, f"the {name}'s group {index}")
        self._lengths.append((optimizer.param_groups, len(optimizer.param_groups), f"the {name}'s groups"))
        self._lengths.append((optimizer.state, len(optimizer.state), f"the {name}'s state"))
        for state in optimizer.state.values():
            self._walk(state, f"the {name}'s state")
        for key, value in list(vars(optimizer).items()):
            if key.endswith("hooks"):
                self._entry(vars(optimizer), key, value, f"a hook of the {name}")
        if not _is_foreign(type(optimizer)):
            self._offer_methods(type(optimizer), name)
            self._mention("step")

    def _walk_object(self, value: object, name: str) -> None:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._lengths.append((attributes, len(attributes), name))
            for key, item in list(attributes.items()):
                self._entry(attributes, key, item, f"{name}.{key}")
        for slot in getattr(type(value), "__slots__", ()) if isinstance(type(value), type) else ():
            read = functools.partial(getattr, value, slot, None)
            self._contents.append((read, read(), f"{name}.{slot}"))
        self._offer_methods(type(value), name)

    def _walk_class(self, cls: type, name: str) -> None:
        self._offer_methods(cls, name)

    def _offer_methods(self, cls: type, name: str) -> None:
        """Methods and plain attributes of one of the program's classes."""
        for owner in cls.__mro__:
            if _is_foreign(owner) or id(owner) in self._seen:
                continue
            self._seen[id(owner)] = owner
            for key, value in list(vars(owner).items()):
                function = getattr(value, "fget", None) or getattr(value, "__func__", value)
                if not isinstance(function, types.FunctionType):
                    if not (key.startswith("__") or callable(function)):
                        self._class_value(owner, key, value, f"{name}.{key}")
                elif key in ENTRIES or key in self._names:
                    self._walk(function, f"{owner.__name__}.{key}")
                else:
                    self._methods.setdefault(key, []).append((function, f"{owner.__name__}.{key}"))

    def _class_value(self, owner: type, key: str, value: object, name: str) -> None:
        read = functools.partial(vars(owner).get, key)
        if isinstance(value, PLAIN):
            self._contents.append((read, value, name))
        else:
            self._walk(value, name)

    def _walk_method(self, method: types.MethodType, name: str) -> None:
        self._walk(method.__func__, name)
        self._walk(method.__self__, name)

    def _walk_builtin(self, function: types.BuiltinFunctionType, name: str) -> None:
        if function.__module__ in CHANGEABLE:
            self._object(f"{name} is {function.__module__}.{function.__name__}, which a graph would call once")
        if not isinstance(function.__self__, types.ModuleType):
            self._walk(function.__self__, name)

    def _walk_partial(self, partial: functools.partial[object], name: str) -> None:
        for part in (partial.func, partial.args, partial.keywords):
            self._walk(part, name)

    def _walk_function(self, function: types.FunctionType, name: str) -> None:
        if _is_foreign(function):
            return
        for part in (function.__defaults__, function.__kwdefaults__):
            self._walk(part, f"a default of {name}")
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            value = _content(cell)
            self._cells.append((cell, value, f"{variable} of {name}"))
            self._walk(value, f"{variable} of {name}")
        mentioned = _mentioned(function.__code__)
        for word in sorted(mentioned):
            if word in function.__globals__:
                self._walk_global(function, word, mentioned, name)
            elif word in TALKING:
                self._object(f"{name} calls {word}(), which a graph would do once")
            self._mention(word)
        if mentioned & OUR_OWN:
            self._object(f"{name} reads the trainer or the board, whose numbers a graph would keep")

    def _walk_global(self, function: types.FunctionType, word: str, mentioned: set[str], name: str) -> None:
        value = function.__globals__[word]
        self._entries.append((function.__globals__, word, value, word))
        if not isinstance(value, types.ModuleType):
            self._walk(value, word)
            return
        root = value.__name__.partition(".")[0]
        if root in CHANGEABLE or (root == "numpy" and "random" in mentioned | {value.__name__.rpartition(".")[2]}):
            self._object(f"{name} uses the module {value.__name__}, which a graph would do once")
        elif root not in NOT_WALKED:
            for key in mentioned & vars(value).keys():
                self._entry(vars(value), key, vars(value)[key], f"{word}.{key}")

    def _mention(self, word: str) -> None:
        self._names.add(word)
        for function, name in self._methods.pop(word, ()):
            self._walk(function, name)


_WALKS: tuple[tuple[Any, Callable[[HostState, Any, str], None]], ...] = (
    (torch.Tensor, HostState._walk_tensor),
    (nn.Module, HostState._walk_module),
    (torch.optim.Optimizer, HostState._walk_optimizer),
    (dict, HostState._walk_dict),
    (list, HostState._walk_list),
    (tuple, HostState._walk_tuple),
    (
        (set, frozenset, collections.deque, bytearray, np.ndarray, np.generic, random.Random,
         np.random.Generator, np.random.RandomState, torch.Generator),
        HostState._walk_content,
    ),
    (types.MethodType, HostState._walk_method),
    (types.FunctionType, HostState._walk_function),
    (types.BuiltinFunctionType, HostState._walk_builtin),
    (functools.partial, HostState._walk_partial),
    (type, HostState._walk_class),
    (types.SimpleNamespace, HostState._walk_object),
)  # fmt: skip


def _read_content(value: object) -> Callable[[], object] | None:
    """How to read the content of an object without attributes to compare; None if it is not compared."""
    if isinstance(value, random.Random):
        return value.getstate
    if isinstance(value, np.random.Generator):
        return lambda: repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return lambda: repr(value.get_state(legacy=False))
    if isinstance(value, torch.Generator):
        return value.get_state if value.device.type == "cpu" else None
    if isinstance(value, np.ndarray):
        return value.copy if value.size <= SMALL else None
    copy: Any = type(value)
    return functools.partial(copy, value)


def random_draws() -> tuple[object, ...]:
    """The state of the host's global random generators."""
    return random.getstate(), repr(np.random.get_state(legacy=False)), torch.get_rng_state().tolist()


def _modes() -> tuple[object, ...]:
    cudnn: Any = torch.backends.cudnn
    return (
        torch.get_float32_matmul_precision(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        cudnn.enabled,
        cudnn.deterministic,
        cudnn.allow_tf32,
    )


def _facts(tensor: torch.Tensor) -> tuple[object, ...]:
    """What a graph relies on: a tensor's address and shape, whether it requires a gradient, and its hooks."""
    place = tensor.data_ptr() if tensor.layout is torch.strided else 0
    hooks = getattr(tensor, "_post_accumulate_grad_hooks", None)
    return place, tensor.shape, tensor.requires_grad, len(tensor._backward_hooks or ()), len(hooks or ())


def _mentioned(code: types.CodeType) -> set[str]:
    """The names of globals and attributes in a function's code, including inner functions."""
    words = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            words |= _mentioned(constant)
    return words


def _is_foreign(item: object) -> bool:
    """Whether a class or function belongs to a package that is not walked."""
    return (item.__module__ or "").partition(".")[0] in NOT_WALKED


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _GONE


def _equal(a: object, b: object) -> bool:
    return isinstance(a, PLAIN) and type(a) is type(b) and bool(a == b)


def _same(a: object, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    return a is b or bool(a == b)


def _short(value: object) -> str:
    """A value for a message: numbers as they are, other values by their type."""
    if value is _GONE:
        return "nothing"
    if isinstance(value, PLAIN):
        return repr(value)
    return f"a {type(value).__name__}"


def signature(batch: object) -> object:
    """What a graph fixes of a batch: types, shapes, and all values other than tensors on the GPU.

    Raises TypeError, with the reason, if that cannot be determined.
    """
    if isinstance(batch, torch.Tensor):
        if batch.device.type != "cuda" or batch.layout is not torch.strided:
            raise TypeError("a batch holds a tensor that is not a plain one on the GPU")
        return batch.shape, batch.dtype, batch.stride(), batch.requires_grad
    if isinstance(batch, PLAIN):
        return type(batch), batch
    if isinstance(batch, Mapping):
        return type(batch), tuple((key, signature(value)) for key, value in batch.items())
    if isinstance(batch, list | tuple):
        return type(batch), tuple(map(signature, batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return type(batch), tuple(signature(getattr(batch, field.name)) for field in dataclasses.fields(batch))
    raise TypeError(f"a batch holds a {type(batch).__name__}, which a graph would keep as it was")
