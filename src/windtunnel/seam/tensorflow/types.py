"""What the seam uses of TensorFlow's own objects, which carry no types: their names are those of tensorflow.python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, SupportsInt

from windtunnel.seam.recorder import Holding


class DType(Protocol):
    """`tf.DType`; `size` is in bytes."""

    name: str
    size: int


class TensorShape(Protocol):
    """`tf.TensorShape`."""

    rank: int | None

    def as_list(self) -> list[int | None]: ...

    def is_fully_defined(self) -> bool: ...

    def num_elements(self) -> int: ...


class Tensor(Protocol):
    """An eager tensor, with the memory that it holds on an emulated GPU, or one of a graph."""

    _wt: Holding | None
    _wt_lent: object
    dtype: DType
    op: Operation
    shape: TensorShape

    def numpy(self) -> SupportsInt: ...


class Called(Protocol):
    """The function that an operation calls."""

    name: str


class AttrValue(Protocol):
    """`AttrValue` of an operation."""

    func: Called


class NodeDef(Protocol):
    """What an operation is made from."""

    attr: Mapping[str, AttrValue]


class Operation(Protocol):
    """`tf.Operation`."""

    device: str
    inputs: Sequence[Tensor]
    node_def: NodeDef
    outputs: Sequence[Tensor]
    type: str

    def get_attr(self, name: str) -> object: ...


class FuncGraph(Protocol):
    """The graph of a function."""

    def get_operations(self) -> Iterable[Operation]: ...


class AtomicFunction(Protocol):
    """`tensorflow.python.eager.polymorphic_function.atomic_function.AtomicFunction`."""

    graph: FuncGraph
    name: str | bytes


class PhysicalDevice(Protocol):
    """A device of `tf.config`, physical or logical."""

    device_type: str


class Configuration(Protocol):
    """`tf.config.LogicalDeviceConfiguration`; the limit is in MiB."""

    memory_limit: float | None


class Context(Protocol):
    """`tensorflow.python.eager.context.Context`."""

    _initialized: bool
    soft_device_placement: bool

    def devices(self) -> list[str]: ...
