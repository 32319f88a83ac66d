"""What the seam uses of MXNet's own objects, which carry no types: their names are those of mxnet and ctypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from windtunnel.seam.mxnet.program import Shape


class CNumber(Protocol):
    """A number of C's."""

    value: int


class Reference(Protocol):
    """What `ctypes.byref` makes of one."""

    _obj: CNumber


class References(Protocol):
    """What it makes of a list of handles."""

    _obj: Sequence[object]


class MXNetValue(Protocol):
    """An argument or a result of the newer interface (`MXNetValue` of mxnet/_ffi)."""

    v_str: bytes
    v_handle: object


class ResultReference(Protocol):
    """What `ctypes.byref` makes of one."""

    _obj: MXNetValue


class Symbol(Protocol):
    """A network as a graph (`mxnet.symbol.Symbol`)."""

    def get_internals(self) -> Symbol: ...

    def infer_shape_partial(self, **shapes: Shape) -> tuple[object, list[Shape] | None, object]: ...

    def list_inputs(self) -> list[str]: ...

    def list_outputs(self) -> list[str]: ...

    def tojson(self) -> str: ...


class CachedOp(Protocol):
    """A hybridized block's operator (`mxnet._ctypes.ndarray.CachedOp`)."""

    handle: CNumber
