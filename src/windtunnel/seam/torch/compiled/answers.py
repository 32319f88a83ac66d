"""What generated code asks of values: numbers that it reads to the host, branches, turns of a loop, sizes of results.

The wrapper runs without values. The graph, which is computed first, writes down what each node of it gave that the
wrapper will ask for, and the wrapper is told. A node is known by a key in its `meta`, which Inductor's own nodes lead
back to (`origins`).
"""

from __future__ import annotations

import functools
import re
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from itertools import count
from types import ModuleType
from typing import NamedTuple, Protocol

import torch
from torch import fx

from windtunnel.errors import InternalError
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.dispatch.moves import fetch
from windtunnel.seam.torch.state.core import Apart
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of

KEY = "windtunnel_key"
ANSWER = "windtunnel_answer"
"""The name of `Answers.asked` in generated code."""
READ = re.compile(r"(= (?:1 if |int\()?|^if )(\S.*?)\.item\(\)")
LOOPING = re.compile(r"^(\s*should_loop = )(\S.*)$")
_numbers = count()


class LearnedValues(threading.local):
    """What one thread's call of a compiled graph has learned."""

    def __init__(self) -> None:
        self.values: defaultdict[str, deque[object]] = defaultdict(deque)


class Answers:
    """What one compiled graph's values are, as far as its wrapper asks for them; each is told once, in order.

    `needed` says whether the wrapper asks for any.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.needed = False
        self._here = LearnedValues()

    @property
    def known(self) -> defaultdict[str, deque[object]]:
        """What this thread's call has learned and not told."""
        return self._here.values

    def has(self, operator: object, *, shape: bool = False, kernels: bool = False) -> bool:
        """Whether a node of an operator has given something that was not told yet; cheap where nothing has."""
        known = self.known
        return bool(known) and bool(known.get(about(operator, shape=shape, kernels=kernels)))

    def learn(self, key: str, value: object) -> None:
        """A node has this value."""
        self.known[key].append(value)

    def take(self, key: str) -> object:
        """The value that the wrapper asks for."""
        found = self.known.get(key)
        if not found:
            raise InternalError(f"generated code asked for a value of {key}, which the graph did not compute")
        return found.popleft()

    def kernels(self, key: str) -> list[Apart]:
        """Kernels of the program's own that a node launched."""
        found = self.take(key)
        assert isinstance(found, list)
        return found

    def asked(self, key: str, value: object) -> object:
        """What the wrapper reads of a tensor to the host, which waits for it."""
        if isinstance(value, torch.Tensor) and device_of(value) >= 0:
            fetch(self.state, value, "aten::_local_scalar_dense", 1)
        return self.take(key) if isinstance(value, torch.Tensor) else value


def keyed(node: fx.Node) -> str:
    """The key of a node, which it gets here."""
    key: str = node.meta.setdefault(KEY, f"{node.name}#{next(_numbers)}")
    return key


def about(operator: object, *, shape: bool = False, kernels: bool = False) -> str:
    """The key of what all nodes of one operator give in turn: values, sizes of results, or kernels launched."""
    return f"{operator}{':shape' * shape}{':kernels' * kernels}"


class ResultShape(NamedTuple):
    """A result of an operator, without its values."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def shape_of(tensor: torch.Tensor) -> ResultShape:
    """A tensor's."""
    return ResultShape(tuple(tensor.shape), tensor.stride(), tensor.dtype)


class Asking(Protocol):
    """A node of Inductor's whose generated code reads a value."""

    origins: Iterable[fx.Node]


class WrapperWriter(Protocol):
    """`PythonWrapperCodegen`, as far as it is used."""

    def writeline(self, line: object) -> None:
        """Add a line to the wrapper."""


def wrapper_patches(module: ModuleType) -> list[Patch]:
    """`torch._inductor.codegen.wrapper`: generated code asks for values instead of reading tensors."""
    owner = module.PythonWrapperCodegen
    patches = [Patch(owner, name, _asking(module, vars(owner)[name])) for name in ASKING if name in vars(owner)]
    # A number in a host tensor is an argument as it is: kernels are launched without values.
    return [*patches, Patch(module, "should_unwrap_unspec_arg", lambda name: False)]


ASKING = ("_codegen_dynamic_scalar", "codegen_conditional", "codegen_switch", "codegen_while_loop")
"""PyTorch 2.14 writes a condition as a switch."""


def _asking(module: ModuleType, stock: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(stock)
    def codegen(self: WrapperWriter, node: Asking, *args: object, **kwargs: object) -> None:
        write = self.writeline
        key = key_of(node.origins, module.V.graph.module.graph)

        def writeline(line: object) -> None:
            if isinstance(line, str):
                line = READ.sub(rf"\1{ANSWER}({key!r}, \2)", line)
                line = LOOPING.sub(rf"\1{ANSWER}({key!r}, \2)", line)
            write(line)

        self.writeline = writeline  # type: ignore[method-assign]
        try:
            stock(self, node, *args, **kwargs)
        finally:
            self.writeline = write  # type: ignore[method-assign]

    return codegen


def key_of(origins: Iterable[fx.Node], graph: fx.Graph) -> str:
    """The key of the last node of a graph that something of Inductor's comes from, "" where none has one."""
    keys = [node for node in origins if KEY in node.meta and node.graph is graph]
    return str(max(keys, key=lambda node: node._sort_key).meta[KEY]) if keys else ""
