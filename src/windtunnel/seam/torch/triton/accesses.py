"""A kernel's loads, stores and atomics: to the memory that `Memory` allows, by the interpreter's own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from windtunnel.seam.torch.triton import values
from windtunnel.seam.torch.triton.base import TensorHandle, Type
from windtunnel.seam.torch.triton.undefined import Undefined
from windtunnel.seam.torch.triton.values import Array

SPINS = 1 << 17
"""So often in a row one program looks at one place before it counts as waiting for a program that runs later."""


class Descriptor(Protocol):
    """A block of memory with its shape (`TensorDescHandle`)."""

    def materialize_pointers(self, offsets: Sequence[TensorHandle]) -> tuple[TensorHandle, object]:
        """The pointers of a block at these offsets, and which of them lie in the tensor."""


class Accesses(Undefined):
    """The builder's operations on memory."""

    _spun: tuple[int, int] = (0, 0)

    def create_masked_load(
        self, ptrs: TensorHandle, mask: object, other: TensorHandle | None, *hints: object, **named_hints: object
    ) -> TensorHandle:
        """A load: lanes that may not read get `other`. The hints are the cache's, and differ by Triton's version."""
        memory = self.now
        dtype = ptrs.get_element_ty()
        kind = self._type(dtype)
        data = ptrs.data
        lanes = _mask(mask, data)
        self._watch_spinning(data)
        physical, lanes = memory.load(data, lanes, kind.itemsize)  # type: ignore[arg-type]
        default = np.zeros(data.shape, dtype=kind) if other is None else np.broadcast_to(other.data, data.shape)
        if memory.host:
            self.work.block = max(self.work.block, data.size)
            default = self._native.load(_solid(physical), _solid(lanes), _solid(default), kind)
        made = self._handle(np.array(default, dtype=kind), dtype)
        self.hold(made)
        return made

    def create_masked_store(
        self, ptrs: TensorHandle, value: TensorHandle, mask: object, *hints: object, **named_hints: object
    ) -> object:
        """A store: lanes that may not write are left out."""
        memory = self.now
        data = ptrs.data
        stored = np.ascontiguousarray(np.broadcast_to(value.data, data.shape))
        raw = stored.reshape(-1).view(np.uint8)
        physical, lanes = memory.store(data, _mask(mask, data), stored.dtype.itemsize, raw)  # type: ignore[arg-type]
        if memory.dry or not memory.host:
            return None
        return self._native.store(_solid(physical), stored, _solid(lanes))

    def create_atomic_cas(
        self, ptr: TensorHandle, cmp: TensorHandle, val: TensorHandle, sem: object, scope: object
    ) -> TensorHandle:
        """Compare and exchange."""
        lanes = np.ones(ptr.data.shape, dtype=np.bool_)
        physical, lanes = self._atomic(ptr, lanes, val, sem, True)
        memory = self.now
        if memory.dry or not memory.host or not lanes.all():
            return self._handle(self._seen(physical, lanes, val), cmp.dtype.scalar)
        sem = self._builder.ir_sem_to_interpreter_sem[sem]
        shape = physical.shape
        found = self._native.atomic_cas(_solid(physical), _wide(cmp, shape), _wide(val, shape), sem)
        return self._handle(found, cmp.dtype.scalar)

    def create_atomic_rmw(
        self, rmwOp: object, ptr: TensorHandle, val: TensorHandle, mask: TensorHandle, sem: object, scope: object
    ) -> TensorHandle:
        """Read, modify, write."""
        exchange = rmwOp == self._ir.ATOMIC_OP.XCHG
        physical, lanes = self._atomic(ptr, _mask(mask, ptr.data), val, sem, not exchange)
        memory = self.now
        dtype = val.dtype.scalar
        if memory.dry or not memory.host:
            return self._handle(self._seen(physical, lanes, val), dtype)
        if values.is_packed(dtype.name) and not exchange:
            return self._packed_atomic(rmwOp, physical, lanes, val)
        known = self._builder
        found = self._native.atomic_rmw(
            known.ir_rmw_op_to_interpreter_rmw_op[rmwOp], _solid(physical), _wide(val, physical.shape),
            _solid(lanes), known.ir_sem_to_interpreter_sem[sem],
        )  # fmt: skip
        return self._handle(found, dtype)

    def create_atomic_load(self, ptr: TensorHandle, mask: object, sem: object, scope: object) -> TensorHandle:
        """A load that may acquire what another program released."""
        found = self.create_masked_load(ptr, mask, None)
        self._order(ptr.data, _mask(mask, ptr.data), sem)
        return found

    def create_atomic_store(
        self, ptr: TensorHandle, val: TensorHandle, mask: object, sem: object, scope: object
    ) -> object:
        """A store that may meet atomics of other programs, and may release what this one wrote."""
        physical, lanes = self._atomic(ptr, _mask(mask, ptr.data), val, sem, False)
        memory = self.now
        if memory.dry or not memory.host:
            return None
        return self._native.store(_solid(physical), _wide(val, physical.shape), _solid(lanes))

    def create_atomic_poll(
        self, ptr: TensorHandle, expected: TensorHandle, timeout_ns: TensorHandle | None, sem: object, scope: object
    ) -> TensorHandle:
        """A wait for a value, which programs that run one after the other can only find written already."""
        found = self.create_masked_load(ptr, np.ones(ptr.data.shape, dtype=np.bool_), None)
        memory = self.now
        met = np.asarray(found.data == expected.data)
        if memory.dry or not memory.host:
            met = np.ones(met.shape, dtype=np.bool_)
        elif timeout_ns is None and not met.all():
            raise NotImplementedError("a wait for a program that runs later not supported in interpreter mode")
        self._order(ptr.data, met, sem)
        return self._handle(met, self._language.int1)

    def create_descriptor_reduce(
        self, kind: object, descriptor: Descriptor, value: TensorHandle, offsets: Sequence[TensorHandle]
    ) -> None:
        """An atomic on a block of a tensor descriptor; what lies outside its shape is left out."""
        pointers, mask = descriptor.materialize_pointers(offsets)
        operation = getattr(self._ir.ATOMIC_OP, self._atomic_name(kind, value.dtype.scalar))
        lanes = self._handle(_mask(mask, pointers.data), self._language.int1)
        self.create_atomic_rmw(operation, pointers, value, lanes, self._ir.MEM_SEMANTIC.RELAXED, None)

    @staticmethod
    def _atomic_name(kind: object, dtype: Type) -> str:
        """Triton's name of the atomic on single elements (`DescriptorReduceKind` in TritonAttrDefs.td)."""
        name = str(kind).rpartition(".")[2]
        if name == "ADD" and dtype.is_floating():
            return "FADD"
        unsigned = name in ("MIN", "MAX") and dtype.name.startswith("uint")
        return f"U{name}" if unsigned else name

    def _atomic(
        self, pointer: TensorHandle, lanes: NDArray[np.bool_], value: TensorHandle, sem: object, reads: bool
    ) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        memory = self.now
        data = pointer.data
        self._watch_spinning(data)
        found = memory.atomic(data, lanes, value.data.dtype.itemsize, reads)  # type: ignore[arg-type]
        self._order(data, lanes, sem)
        return found

    def _order(self, data: Array, lanes: NDArray[np.bool_], sem: object) -> None:
        """Order this program after another, or others after it, by an atomic on one place."""
        if data.size != 1 or not lanes.all():
            return
        orders, address = self._ir.MEM_SEMANTIC, int(data.reshape(-1)[0])
        if sem in (orders.ACQUIRE, orders.ACQUIRE_RELEASE):
            self.now.acquire(address)
        if sem in (orders.RELEASE, orders.ACQUIRE_RELEASE):
            self.now.release(address)

    def _seen(self, physical: NDArray[np.uint64], lanes: NDArray[np.bool_], value: TensorHandle) -> Array:
        """What stands there now, where nothing is to be changed."""
        memory = self.now
        nothing = np.zeros(physical.shape, dtype=value.data.dtype)
        if not memory.host:
            return nothing
        found: Array = self._native.load(_solid(physical), _solid(lanes), nothing, nothing.dtype)
        return found

    def _packed_atomic(
        self, operation: object, physical: NDArray[np.uint64], lanes: NDArray[np.bool_], value: TensorHandle
    ) -> TensorHandle:
        """An atomic addition of numbers that are kept as integers, one lane after the other."""
        if operation != self._ir.ATOMIC_OP.FADD:
            raise NotImplementedError(
                f"atomic {operation} of {value.dtype.scalar.name} not supported in interpreter mode"
            )
        name = value.dtype.scalar.name
        added = values.widened(_wide(value, physical.shape), name)
        found = np.zeros(physical.shape, dtype=value.data.dtype)
        one = np.ones(1, dtype=np.bool_)
        for at in np.argwhere(lanes):
            place = tuple(at)
            address = physical[place].reshape(1)
            now = self._native.load(address, one, found[place].reshape(1), found.dtype)
            found[place] = now[0]
            total = values.narrowed(values.widened(now, name) + added[place], name)
            self._native.store(address, total, one)
        return self._handle(found, value.dtype.scalar)

    def _watch_spinning(self, pointers: Array) -> None:
        if pointers.size != 1:
            return
        address = int(pointers.reshape(-1)[0])
        count = self._spun[1] + 1 if self._spun[0] == address else 0
        self._spun = address, count
        if count > SPINS:
            raise NotImplementedError("a wait for a program that runs later not supported in interpreter mode")

    def _without_number(self, source: TensorHandle, dtype: Type) -> TensorHandle:
        """A pointer as a number: the address alone."""
        low = np.bitwise_and(source.data, np.uint64((1 << 48) - 1), dtype=np.uint64)
        return self._handle(low.view(self._type(dtype)), dtype.scalar)


def _mask(mask: object, pointers: Array) -> NDArray[np.bool_]:
    data = mask if isinstance(mask, np.ndarray) else mask.data  # type: ignore[attr-defined]
    return np.broadcast_to(np.asarray(data, dtype=np.bool_), pointers.shape)


def _solid(data: Array) -> Array:
    return np.ascontiguousarray(data)


def _wide(handle: TensorHandle, shape: tuple[int, ...]) -> Array:
    return np.ascontiguousarray(np.broadcast_to(handle.data, shape))
