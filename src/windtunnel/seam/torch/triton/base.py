"""What the parts of the interpreter stand on: Triton's modules, the launch that runs, Triton's types as protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import NamedTuple, Protocol

import numpy as np

from windtunnel.errors import UnsupportedError
from windtunnel.seam import signatures
from windtunnel.seam.torch.triton.compiling import CompiledTritonKernel
from windtunnel.seam.torch.triton.memory import LaunchMemory
from windtunnel.seam.torch.triton.values import Array


class Type(Protocol):
    """A type of Triton's: `fp32`, or a pointer."""

    name: str
    scalar: Type
    primitive_bitwidth: int

    def is_floating(self) -> bool:
        """Whether it holds floating-point numbers."""


class TensorHandle(Protocol):
    """A value of a kernel (`TensorHandle`)."""

    data: Array
    dtype: Type

    def get_element_ty(self) -> Type:
        """What a pointer points to."""


class Value(Protocol):
    """What a kernel computes with (`tl.tensor`)."""

    handle: TensorHandle
    dtype: Type


class Parameter(Protocol):
    """A kernel's parameter."""

    name: str
    is_constexpr: bool
    annotation_type: str


class JITFunction(Protocol):
    """A `triton.runtime.jit.JITFunction`."""

    fn: FunctionType
    params: Sequence[Parameter]
    debug: bool | None
    src: str
    raw_src: Sequence[str]
    starting_line_number: int
    __name__: str

    def run(self, *args: object, grid: object, warmup: bool, **kwargs: object) -> CompiledTritonKernel:
        """Launch it, or compile it."""

    def parse(self) -> object:
        """Its source, as a tree."""

    def get_capture_scope(self) -> Mapping[str, object]:
        """The names that it may use."""


class Tile(NamedTuple):
    """A matrix product of one program: its sizes, what it multiplies, and the bytes of its operands."""

    m: int
    n: int
    k: int
    precision: str
    operand_bytes: int


class ComputedWork:
    """What the programs of a launch computed besides moving memory: operations of products, by precision."""

    def __init__(self) -> None:
        self.flops: dict[str, int] = {}
        self.largest: Tile | None = None
        self.block = 1

    def product(self, batch: int, tile: Tile) -> None:
        """Count one `dot`."""
        self.flops[tile.precision] = self.flops.get(tile.precision, 0) + 2 * batch * tile.m * tile.n * tile.k
        if self.largest is None or tile.m * tile.n > self.largest.m * self.largest.n:
            self.largest = tile


OLDEST = (3, 7)
UNSUPPORTED = "not supported in interpreter mode"
"""How Triton's interpreter ends what it says of an operation that it has not."""


def check_version() -> None:
    """Refuse a Triton whose interpreter is not the one that this room extends.

    Raises:
        UnsupportedError: this Triton is too old.
    """
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < OLDEST:
        raise UnsupportedError(
            f"emulated GPUs do not run kernels of Triton {triton.__version__}: {signatures.advice('triton')}"
        )


class Base:
    """Triton's modules and builder, and the memory and work of the launch that runs now."""

    def __init__(self) -> None:
        check_version()
        import triton.language as language
        from triton._C.libtriton import interpreter as native
        from triton._C.libtriton import ir
        from triton.runtime import interpreter, jit

        self._language, self._native, self._ir = language, native, ir
        self._module: ModuleType = interpreter
        self._jit: ModuleType = jit
        self._builder = interpreter.interpreter_builder
        self._semantic = interpreter.interpreter_semantic
        self.memory: LaunchMemory | None = None
        self.work = ComputedWork()

    @property
    def now(self) -> LaunchMemory:
        """The memory of the launch that runs."""
        assert self.memory is not None
        return self.memory

    def function(self, kernel: JITFunction) -> Callable[..., object]:
        """A kernel, or a function that one calls, as a Python function."""
        raise NotImplementedError

    def line(self) -> tuple[str, int, str]:
        """The line of the program's kernels that runs: file, number, function."""
        raise NotImplementedError

    def _handle(self, data: Array, dtype: object) -> TensorHandle:
        made: TensorHandle = self._module.TensorHandle(data, dtype)
        return made

    def _type(self, dtype: Type) -> np.dtype[np.generic]:
        made: np.dtype[np.generic] = self._module._get_np_dtype(dtype)
        return made
