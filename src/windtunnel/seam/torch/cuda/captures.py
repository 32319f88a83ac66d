"""What a graph's capture writes down: the operators, and where their memory is found again at each replay."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from windtunnel.machine.memory.blocks import DEFAULT_POOL, Block
from windtunnel.machine.memory.host_allocator import HostBlock
from windtunnel.seam.torch.cuda.graph_memory import PoolBytes, bytes_of
from windtunnel.seam.torch.dispatch.above import Above
from windtunnel.seam.torch.dispatch.generators import UNREGISTERED
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.dispatch.recorder import Again, Wait, nothing
from windtunnel.seam.torch.plans.arguments import Result, tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.plan import Plan
from windtunnel.seam.torch.state.positions import Generator, Position
from windtunnel.seam.torch.tags import FLOATING, Storage, Tag, attach, bytes_in, parts_of, storage_of, tag_of

Tensor = torch.Tensor
C = torch._C
to_capsule, from_capsule = C._to_dlpack, C._from_dlpack


class Slot(NamedTuple):
    """A tensor of a captured operator, found again at each replay without keeping its memory allocated.

    `storage` is the memory itself (of the graph's own results, or the host's) or a weak reference to it.
    """

    storage: Storage | StorageWeakRef
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    def tensor(self) -> Tensor:
        """The tensor; raises LookupError when its memory was freed."""
        storage: torch.UntypedStorage | None
        if isinstance(self.storage, StorageWeakRef):
            storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
            if storage is None:
                raise LookupError
        else:
            storage = self.storage
        return torch.empty(0, dtype=self.dtype, device="cpu").set_(storage, self.offset, self.shape, self.stride)


class CapturedOperator(NamedTuple):
    """One operator of a graph: its call, with slots for tensors, and what a replay needs beside it.

    `results` are where its fresh results go, `grad` says whether gradients were wanted then.
    `drawn` is the generator, by its address, and the place that it draws from: programs exchange it between operators.
    `again` computes it in a replay, where its handler has said so.
    """

    call: Call
    results: list[Slot | Tensor]
    grad: bool
    drawn: tuple[int, Position] | None
    again: Again | None


class CaptureMode(Above):
    """Above the emulation's own mode while a graph is captured: lets it carry operators out, and writes them down."""

    def __init__(self, dispatch: Dispatch, generator: Generator, places: list[Position], pool: PoolBytes) -> None:
        super().__init__(dispatch)
        self.generator = generator
        self.places = places
        self.pool = pool
        self.steps: list[CapturedOperator | Wait] = []
        self.saved: dict[int, tuple[Storage, Tensor]] = {}
        self.own: dict[int, Storage] = {}  # by identity
        self.outside: dict[int, Tensor] = {}  # what other streams wrote there
        self.reads: weakref.WeakKeyDictionary[Tag, None] = weakref.WeakKeyDictionary()
        self.writes: weakref.WeakKeyDictionary[Tag, None] = weakref.WeakKeyDictionary()
        self.again: Again | None = None
        self._apart = False

    def then(self, wait: Wait) -> None:
        """Write down that a replay waits here."""
        self.steps.append(wait)

    @contextmanager
    def parts(self) -> Iterator[None]:
        """Both modes, for the parts of an operator, which are written down in its stead."""
        self._apart = True
        with self.dispatch, self:
            yield

    def operator(self, call: Call) -> object:
        """Write the operator down."""
        drawn = self._drawn(call.kwargs.get("generator") or self.generator) if call.plan.random else None
        if drawn is not None and call.kwargs.get("generator") is not None and drawn[1] not in self.places:
            raise RuntimeError(UNREGISTERED)
        written = [tensor for tensor in call.written() if _has_storage(tensor)]
        if self.dispatch.state.no_data:
            out = call.func(*call.args, **call.kwargs)
            if not self._is_outside(call, out):
                self._use_all(call, out, written)
            return out
        for tensor in call.tensors():
            self._hold(tensor)
        for tensor in written:
            self._save(tensor)
        tags = [storage_of(t)._wt for t in call.tensors() if _has_storage(t)]
        self.again = None
        given = {id(tag): tag for tag in tags}  # held, so that no new tag has the address of one that is replaced
        before, self._apart = self._apart, False
        try:
            out = call.func(*call.args, **call.kwargs)
            if self._apart:
                return out
        finally:
            self._apart = before
        if self._is_outside(call, out):
            self.happened(written)
            return out
        out = self._twins(out, given, {})
        on_device = any(tag_of(tensor).device >= 0 for tensor in tensors_in((*call.given, out)))
        if on_device and call.plan.kernel and self.again is not nothing:
            self._write_down(call, out, written)
        return out

    def _is_outside(self, call: Call, out: object) -> bool:
        """Whether a stream that is not captured ran an operator: it has happened, and the graph has no part in it."""
        devices = (tag_of(tensor).device for tensor in tensors_in((*call.given, out)))
        device = next((found for found in devices if found >= 0), -1)
        return device >= 0 and self.dispatch.local.streams[device].capture is None

    def happened(self, written: Iterable[Tensor]) -> None:
        """Another stream has written these during the capture, at whose end they keep what it wrote."""
        with C._DisableTorchDispatch():
            for storage in map(storage_of, filter(_has_storage, written)):
                graph = getattr(storage, "_wt_graph", None)
                if graph is not None and id(graph) in self.own:
                    self.outside[id(graph)] = bytes_in(storage).clone()
                elif storage._cdata in self.saved:
                    self.saved[storage._cdata] = storage, bytes_in(storage).clone()

    def launched(
        self,
        plan: Plan,
        compute: Callable[..., Sequence[int]],
        tensors: tuple[Tensor, ...],
    ) -> None:
        """Write a kernel of the program's own down, which `compute` runs now and the plan's function in each replay.

        `compute` returns the positions of the tensors that the kernel wrote.
        """
        for tensor in tensors:
            self._hold(tensor)
            if _has_storage(tensor):
                self._save(tensor)
        written = compute(*tensors)
        plan.mutated = tuple(written)
        self._write_down(Call(plan, plan.func, tensors, {}), None, [tensors[at] for at in written])

    def _drawn(self, generator: Generator) -> tuple[int, Position] | None:
        """Where a generator draws from now; None for the host's."""
        place = self.dispatch.state.positions.get(generator._cdata)
        return None if place is None else (generator._cdata, place)

    # ------------------------------------------------------------------ memory

    def _save(self, tensor: Tensor) -> None:
        """Keep the bytes of memory from before the capture: nothing may have been written when it ends."""
        storage = storage_of(tensor)
        graph = getattr(storage, "_wt_graph", None)
        if (graph is None or id(graph) not in self.own) and storage._cdata not in self.saved and storage.nbytes():
            with C._DisableTorchDispatch():  # our own copy is no work of the graph
                self.saved[storage._cdata] = storage, bytes_in(storage).clone()

    def _hold(self, tensor: Tensor) -> None:
        """Keep a number that C++ made on the way, `scalar_tensor(0.)` for one: nobody else does after this operator."""
        storage = storage_of(tensor) if _has_storage(tensor) else None
        if storage is not None and storage._wt.device == FLOATING:
            with C._DisableTorchDispatch():
                storage._wt_graph = storage_of(bytes_in(storage).clone())

    def _twins(self, out: object, given: dict[int, Tag], made: dict[int, Storage]) -> object:
        """Results in new memory, as tensors that may die: their bytes stay in the graph's private pool.

        `made` are the twins of memory that several results share.
        """
        if isinstance(out, (tuple, list)):
            return type(out)(self._twins(part, given, made) for part in out)
        if not isinstance(out, Tensor) or not _has_storage(out) or out.numel() == 0:
            return out
        storage = storage_of(out)
        tag = storage._wt
        held = made.get(storage._cdata)
        if held is None and (tag.device < 0 or id(tag) in given):
            return out
        with C._DisableTorchDispatch():
            if held is None:
                held = made[storage._cdata] = self._held(storage, tag)
            twin = torch.empty(0, dtype=out.dtype, device="cpu")
            twin.set_(held, out.storage_offset(), out.shape, out.stride())
        return twin

    def _held(self, storage: Storage, tag: Tag) -> Storage:
        """A storage that may die, with the tag of one that the graph keeps where its block lies."""
        del storage._wt
        kept = _in_pool(storage, tag.block)
        held = storage_of(from_capsule(to_capsule(bytes_in(kept))))
        attach(held, tag)
        held._wt_graph = kept
        self.own[id(kept)] = kept
        for told in self.dispatch.state.observers.moved:
            told(held, tag.device, tag)
        return held

    def give_back(self) -> None:
        """Memory as if nothing had run."""
        for storage, before in self.saved.values():
            if storage.nbytes() == before.numel():  # FSDP takes the memory from a storage meanwhile
                bytes_in(storage).copy_(before)
        self.saved.clear()
        for storage in self.own.values():
            bytes_in(storage).zero_()
        self.pool.give_back()
        for key, before in self.outside.items():
            bytes_in(self.own[key]).copy_(before)
        self.outside.clear()

    # ------------------------------------------------------------------ the record

    def _write_down(self, call: Call, out: object, written: list[Tensor]) -> None:
        self._use_all(call, out, written)
        results = [self._slot(tensor) for tensor in tensors_in((out,))] if call.plan.fresh else []
        kwargs = {name: value for name, value in call.kwargs.items() if name != "pin_memory"}
        if isinstance(kwargs.get("device"), torch.device):
            kwargs["device"] = torch.device("cpu")
        drawn = self._drawn(kwargs.get("generator") or self.generator)
        if call.plan.random and drawn is not None and drawn[1] not in self.places:
            raise RuntimeError(UNREGISTERED)
        grad = torch.is_grad_enabled()
        places = tuple(map(self._slots, call.args))
        kept = call.but(args=places, kwargs={name: self._slots(value) for name, value in kwargs.items()})
        self.steps.append(CapturedOperator(kept, results, grad, drawn, self.again))

    def _use_all(self, call: Call, out: Result, written: list[Tensor]) -> None:
        """Note the memory that the graph reads and writes."""
        mutated = {id(tensor) for tensor in written}
        for tensor in call.tensors():
            self._use(tensor, self.writes if id(tensor) in mutated else self.reads)
        for tensor in tensors_in((out,)) if call.plan.fresh else ():
            self._use(tensor, self.writes)

    def _use(self, tensor: Tensor, where: weakref.WeakKeyDictionary[Tag, None]) -> None:
        if _has_storage(tensor) and tag_of(tensor).device >= 0:
            where[tag_of(tensor)] = None

    def _slots(self, value: object) -> object:
        if isinstance(value, Tensor):
            return self._slot(value)
        if isinstance(value, dict):
            return {key: self._slots(part) for key, part in value.items()}
        if isinstance(value, (tuple, list)):
            return type(value)(self._slots(part) for part in value)
        return value

    def _slot(self, tensor: Tensor) -> Slot | Tensor:
        if not _has_storage(tensor):
            return tensor
        storage = storage_of(tensor)
        if storage._wt.device < 0:
            # Numbers become arguments of the kernel; the rest is read when the graph runs.
            kept: Storage | StorageWeakRef = storage_of(tensor.detach().clone()) if tensor.dim() == 0 else storage
        else:
            kept = getattr(storage, "_wt_graph", None) or (StorageWeakRef(storage) if storage.nbytes() else storage)
        offset = 0 if kept is not storage and tensor.dim() == 0 and storage._wt.device < 0 else tensor.storage_offset()
        return Slot(kept, int(offset), tensor.shape, tensor.stride(), tensor.dtype)


def _has_storage(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_meta


def _in_pool(storage: Storage, block: Block | HostBlock | None) -> Storage:
    """A storage with the same bytes where its block lies, unless they are more than CUDA's counterpart has."""
    if not isinstance(block, Block) or block.pool_id == DEFAULT_POOL or storage.nbytes() > block.size:
        return storage
    placed = bytes_of(block, storage.nbytes())
    placed.copy_(bytes_in(storage))
    return storage_of(placed)


def tensors_of(value: object) -> object:
    """Slots as tensors again, in the shape of the arguments."""
    if isinstance(value, Slot):
        return value.tensor()
    if isinstance(value, (tuple, list)):
        return type(value)(tensors_of(part) for part in value)
    return value


def write_again(result: Slot | Tensor, made: Tensor) -> None:
    """Put what a replayed operator made where its captured result lies: a sparse one's values and indices by parts."""
    if isinstance(result, Slot):
        result.tensor().copy_(made)
        return
    for kept, new in zip(parts_of(result), parts_of(made), strict=True):
        kept.copy_(new)
