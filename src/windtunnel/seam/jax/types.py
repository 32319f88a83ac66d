"""What the seam uses of JAX's own objects, which carry no types: their names are those of jax._src and jaxlib."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from windtunnel.seam.recorder import Holding
from windtunnel.trace.plain import Json


class Device(Protocol):
    """`jaxlib.xla_client.Device`."""

    id: int
    client: object


class Aval(Protocol):
    """An abstract value; a token has neither shape nor type."""

    shape: tuple[int, ...]
    dtype: object


class Sharding(Protocol):
    """`jax.sharding.Sharding`."""

    def shard_shape(self, shape: tuple[int, ...], /) -> Iterable[int]:
        """The shape of one device's part."""


class Array(Protocol):
    """`jax._src.array.ArrayImpl`, with the memory that it holds on emulated GPUs."""

    _wt: Sequence[Holding]
    _wt_lent: object
    _npy_value: object
    _arrays: Sequence[object]
    aval: Aval
    sharding: Sharding
    is_fully_replicated: bool
    nbytes: int

    def is_deleted(self) -> bool: ...

    def unsafe_buffer_pointer(self) -> int: ...

    def block_until_ready(self) -> object: ...


class HloModule(Protocol):
    """A compiled module."""

    def to_string(self) -> str: ...


class Executable(Protocol):
    """`jaxlib.xla_client.LoadedExecutable`."""

    def hlo_modules(self) -> Iterable[HloModule]: ...


class ResultHandler(Protocol):
    """`jax._src.interpreters.pxla.ResultsHandler`."""

    out_avals: Sequence[Aval]
    out_shardings: Sequence[Sharding]


class ExecuteReplicated(Protocol):
    """A compiled program to call: `jax._src.interpreters.pxla.ExecuteReplicated`."""

    _local_devices: Sequence[Device]
    name: str
    out_handler: ResultHandler
    xla_executable: Executable


class Variable(Protocol):
    """A variable of a jaxpr; a literal has `val` besides."""

    aval: Aval


class Primitive(Protocol):
    """An operation of JAX."""

    name: str


class Equation(Protocol):
    """One line of a jaxpr; what its parameters are depends on the primitive."""

    primitive: Primitive
    params: Json
    invars: Sequence[Variable]
    outvars: Sequence[Variable]


class Jaxpr(Protocol):
    """`jax.core.Jaxpr`."""

    eqns: Sequence[Equation]
    invars: Sequence[Variable]
    constvars: Sequence[Variable]
    outvars: Sequence[Variable]


class ClosedJaxpr(Protocol):
    """`jax.core.ClosedJaxpr`: one with its constants."""

    jaxpr: Jaxpr


class MeshExecutable(Protocol):
    """`jax._src.interpreters.pxla.MeshExecutable`: what compiling gives."""

    unsafe_call: ExecuteReplicated
    xla_executable: object


class LoweringContext(Protocol):
    """`jax._src.interpreters.mlir.ModuleContext`."""

    backend: object
