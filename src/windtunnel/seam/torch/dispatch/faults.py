"""Faults on purpose (`windtunnel.faults`): when they happen in PyTorch, and what they do to it."""

from __future__ import annotations

import errno
import functools
import importlib.util
import io
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import dataloader

from windtunnel.errors import UsageError
from windtunnel.faults import Fault, Moment
from windtunnel.machine.clock import HostThread
from windtunnel.machine.machine import Cost
from windtunnel.machine.stream import Stream
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.dispatch.asserts import AssertFailure
from windtunnel.seam.torch.dispatch.bits import WIDTHS
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.dispatch.observed import observe
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Types, tensors_in
from windtunnel.seam.torch.plans.messages import cuda_error
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of
from windtunnel.trace.operation import Note

Tensor = torch.Tensor
PARTS = ("aten::detach", "aten::alias", "aten::view")
"""Operators that PyTorch puts in by itself, at which nothing happens."""


class Lost(AssertFailure):
    """A device that has failed with an error of CUDA's."""

    def __init__(self, dispatch: Dispatch, stream: Stream, text: str, name: str) -> None:
        super().__init__(dispatch, stream, stream.epoch)
        self.text, self.name = text, name

    def error(self) -> RuntimeError:
        """PyTorch's exception."""
        return cuda_error(self.text, self.name, blocking=self.state.machine.blocking)


class Strikes:
    """The faults of one process, and the hands by which they do what they do."""

    def __init__(self, state: State, faults: Sequence[Fault]) -> None:
        self.state = state
        self.faults = list(faults)
        self.mode: Dispatch
        self.written: list[Tensor] = []  # by the operator that has just run
        self.device = 0
        self.iterator: Any = None
        self._slowed: dict[int, tuple[Cost, Cost]] = {}
        self._factor = 1.0
        self._spare = threading.local()

    def begin(self, mode: Dispatch) -> None:
        """Watch the operators of a mode, where some fault happens at them."""
        self.mode = mode
        if any(fault.kind == "operator" for fault in self.faults):
            observe(mode, self._around)

    # ------------------------------------------------------------------ moments

    def happen(self, kind: str, name: str = "", after: bool = False) -> list[Fault]:
        """The faults that happen now, each of which is written down."""
        rank, restart = (int(os.environ.get(variable) or 0) for variable in ("RANK", "TORCHELASTIC_RESTART_COUNT"))
        moment = Moment(kind, name, rank, self.state.notes.steps + 1, self.state.local.host.now_ns, restart)
        found = [fault for fault in self.faults if fault.after == after and fault.due(moment)]
        for fault in found:
            fault.left -= 1
            site = self.state.site()
            note = Note("injected-fault", self.state.machine.trace.sites[site], (("fault", fault.text),))
            self.state.machine.note(self.state.local.host, note, site)
            self.state.machine.trace.hand_on()
        return found

    def strike(self, kind: str, name: str = "", after: bool = False) -> None:
        """Let the faults of this moment do what they do."""
        for fault in self.happen(kind, name, after):
            fault.strike(self)

    def _around(
        self, call: Callable[..., object], func: OpOverload, types: Types, args: Arguments, kwargs: Keywords | None
    ) -> object:
        name = func.name()
        if getattr(self._spare, "busy", False) or name.startswith(PARTS):
            return call(func, types, args, kwargs)
        devices = [device_of(tensor) for tensor in tensors_in((*args, *(kwargs or {}).values()))]
        given = (kwargs or {}).get("device")
        on_device = max(devices, default=-1)
        if on_device < 0 and getattr(given, "type", "") == "cuda":
            on_device = self.state.local.device
        collective = func.namespace in ("c10d", "_c10d_functional")
        if on_device < 0 and not collective:
            return call(func, types, args, kwargs)
        self.device = max(on_device, 0)
        with self._alone():
            self.strike("operator", name)
        if collective and isinstance(self.state.failure, Lost):
            self.state.failure.surface()  # NCCL launches its kernel, and learns of it
        out = call(func, types, args, kwargs)
        with self._alone():
            self.written = tensors_in((out,)) or (tensors_in(args) if collective else [])
            if any(tensor.numel() for tensor in self.written):
                self.strike("operator", name, after=True)
            self.written = []
        return out

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """What a fault does itself is no moment of the program."""
        self._spare.busy = True
        try:
            yield
        finally:
            self._spare.busy = False

    # ------------------------------------------------------------------ hands

    def refuse_memory(self, until_freed: bool) -> None:
        """Let the next request for device memory fail, or all until some is given back."""
        device = self.state.device(self.device)
        turns, allocator = self.state.machine.turns, device.allocator

        def end() -> None:
            turns.unwatch(allocator, ("malloc",), malloc)
            if until_freed:
                turns.unwatch(allocator, ("free",), free)

        def malloc(verb: Callable[..., object], requested: int, stream: int = 0, context: object = None) -> object:
            if requested <= 0:
                return verb(requested, stream, context)
            if not until_freed:
                end()
            raise allocator.refused(requested, stream)

        def free(verb: Callable[..., object], block: object) -> object:
            end()
            return verb(block)

        turns.watch(allocator, ("malloc",), malloc)
        if until_freed:
            turns.watch(allocator, ("free",), free)

    def raise_error(self, text: str) -> None:
        """Raise a RuntimeError at the program's line."""
        raise RuntimeError(text)

    def leave(self, code: int) -> None:
        """End the process with an exit code, past Python's end."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def kill(self, signal: int) -> None:
        """End the process by a signal."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.kill(os.getpid(), signal)

    def hang(self) -> None:
        """Let this thread wait for ever."""
        threading.Event().wait()

    def slow_down(self, factor: float) -> None:
        """Let kernels take `factor` times as long from now on."""
        if not 0 < factor < float("inf"):
            raise UsageError(f"factor of the fault 'slow' cannot be {factor:g}: it must be a positive number")
        if self._factor == 1.0:
            self.state.machine.turns.watch(self.state.machine, ("launch",), self._slow_launch)
        self._factor *= factor
        self._slowed.clear()

    def _slow_launch(
        self, verb: Callable[..., int], host: HostThread, stream: Stream, cost: Cost, site: int = 0
    ) -> int:
        found = self._slowed.get(id(cost))
        if found is None or found[0] is not cost:
            slow = cost.taking(cost.dispatch_ns, round(cost.duration_ns * self._factor))
            found = self._slowed[id(cost)] = cost, slow
        return verb(host, stream, found[1], site)

    def lose_device(self, xid: int, text: str, name: str) -> None:
        """Let CUDA fail with an error from the next wait on, until the process ends, and NVML show an Xid."""
        self.state.device(self.device).driver.xid = xid
        if self.state.failure is None:
            self.state.failure = Lost(self.mode, self.state.local.streams[self.device], text, name)

    def set_element(self, value: float, draw: random.Random) -> None:
        """Write a value into an element of the operator's result."""
        tensor = next((one for one in self.written if one.is_floating_point()), self.written[0])
        with torch._C._DisableTorchDispatch():
            flat = tensor.detach().reshape(-1)
            index = draw.randrange(flat.numel())
            if not tensor.is_floating_point() and value != value:
                raise UsageError("the fault 'nan' needs an operator whose result has floats: name one by operation=")
            tensor.detach()[_place(tensor, index)] = value

    def flip_bit(self, bit: int, draw: random.Random) -> None:
        """Flip a bit of an element of the operator's result; -1 for any."""
        tensor = next((one for one in self.written if one.numel()), self.written[0])
        width = 8 * tensor.element_size()
        if bit >= width or tensor.element_size() not in WIDTHS:
            raise UsageError(f"bit of the fault 'bit-flip' cannot be {bit}: an element of {tensor.dtype} has {width}")
        with torch._C._DisableTorchDispatch():
            whole = tensor.detach().view(WIDTHS[tensor.element_size()])
            place = _place(tensor, draw.randrange(tensor.numel()))
            chosen = draw.randrange(width) if bit < 0 else bit
            mask = 1 << chosen
            if chosen == width - 1 and width > 8:
                mask -= 1 << width  # the sign's
            whole[place] = int(whole[place].item()) ^ mask

    def delay(self, duration_ns: int) -> None:
        """Let the host wait."""
        self.state.local.host.advance(duration_ns)

    def kill_worker(self) -> None:
        """Kill the worker process that would deliver the next batch."""
        workers = getattr(self.iterator, "_workers", [])
        if workers:
            task = self.iterator._task_info.get(self.iterator._rcvd_idx, (0,))
            os.kill(workers[task[0]].pid, signal.SIGKILL)
            workers[task[0]].join(1)

    def fill_disk(self) -> None:
        """Let the file that is being saved end in the middle, as on a full disk."""
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _place(tensor: Tensor, index: int) -> tuple[int, ...]:
    """The indices of an element by its number."""
    found = []
    for size in reversed(tensor.shape):
        found.append(index % size)
        index //= size
    return tuple(reversed(found))


def patches(state: State) -> list[Patch]:
    """What delivers batches and saves files, where some fault happens there."""
    strikes: Strikes | None = state.strikes
    kinds = set() if strikes is None else {fault.kind for fault in strikes.faults}
    found = []
    if strikes is not None and "batch" in kinds:
        for kind in (dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter):
            found.append(Patch(kind, "_next_data", _delivering(strikes, kind._next_data)))
    if strikes is not None and "save" in kinds:
        found.append(Patch(torch, "save", _saving(strikes, torch.save)))
        if importlib.util.find_spec("safetensors") is not None:
            library = importlib.import_module("safetensors.torch")
            found.append(Patch(library, "serialize_file", _serializing(strikes, library.serialize_file)))
    return found


def _delivering(strikes: Strikes, stock: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(stock)
    def next_data(self: object) -> object:
        strikes.iterator = self
        try:
            strikes.strike("batch")
        finally:
            strikes.iterator = None
        data = stock(self)
        strikes.strike("batch", after=True)
        return data

    return next_data


def _saving(strikes: Strikes, stock: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(stock)
    def save(obj: object, f: Any, *args: object, **kwargs: object) -> object:
        if isinstance(f, io.BytesIO):  # which is on no disk
            return stock(obj, f, *args, **kwargs)
        try:
            strikes.strike("save")
        except OSError as error:
            whole = io.BytesIO()
            stock(obj, whole, *args, **kwargs)
            half = whole.getvalue()[: len(whole.getvalue()) // 2]
            if hasattr(f, "write"):
                f.write(half)
            else:
                Path(f).write_bytes(half)
            raise RuntimeError(FULL) from error
        return stock(obj, f, *args, **kwargs)

    return save


def _serializing(strikes: Strikes, stock: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(stock)
    def serialize_file(tensors: object, filename: str | Path, *args: object, **kwargs: object) -> object:
        try:
            strikes.strike("save")
        except OSError as error:
            stock(tensors, filename, *args, **kwargs)
            os.truncate(filename, os.path.getsize(filename) // 2)
            refused: type[Exception] = importlib.import_module("safetensors").SafetensorError
            raise refused(FULL_OF_TENSORS) from error
        return stock(tensors, filename, *args, **kwargs)

    return serialize_file


FULL_OF_TENSORS = (
    'Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })'
)
"""What safetensors says of it (`serialize_file` of bindings/python/src/lib.rs, with Rust's text of the error)."""
FULL = "[enforce fail at inline_container.cc:664] . PytorchStreamWriter failed writing file data/0: file write failed"
"""What `torch.save` says of a full disk (`PyTorchStreamWriter::valid` of caffe2/serialize/inline_container.cc)."""
