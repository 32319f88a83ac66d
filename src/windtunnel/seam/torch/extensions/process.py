"""PyTorch's emulation, as the emulated CUDA driver needs it."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from windtunnel import exits
from windtunnel.machine.clock import HostThread
from windtunnel.machine.memory.blocks import Block
from windtunnel.machine.stream import Stream
from windtunnel.seam.cuda_runtime import errors
from windtunnel.seam.cuda_runtime.driver import HostCodeDriver
from windtunnel.seam.cuda_runtime.limits import LaunchShape
from windtunnel.seam.cuda_runtime.memory import Pages
from windtunnel.seam.cuda_runtime.modules import KernelFunction, Modules
from windtunnel.seam.sites import from_line
from windtunnel.seam.torch.extensions.launches import Launcher, words
from windtunnel.seam.torch.extensions.tensors import TensorAddresses
from windtunnel.seam.torch.plans.messages import cuda_error
from windtunnel.seam.torch.state.state import State, stream_by_id
from windtunnel.seam.torch.state.stream_ids import device_of_handle, handle
from windtunnel.seam.torch.tags import Storage, Tag, device_of

CPU_DEVICE = torch.device("cpu")
PER_THREAD = 2
"""cudaStreamPerThread; 1 is cudaStreamLegacy."""


class TorchProcess:
    """One emulation, for the driver; it also answers what the library asks for PyTorch's own functions."""

    def __init__(self, state: State, modules: Modules) -> None:
        self.state = state
        self.machine = state.machine
        self.addresses = TensorAddresses(state)
        self.driver = HostCodeDriver(self, modules)
        self.launcher = Launcher(state, self.addresses, self.driver.memory)
        self.native = False  # whether the program is host code alone, so that its lines are the program's
        state.notes.at_end.append(self.driver.tell)
        state.memory.outside = self.memory_at
        self.driver.calls.update(
            tensor_device=self.tensor_device,
            torch_error=self.torch_error,
            current_stream=self.current_stream,
            new_stream=self.pool_stream,
            external_stream=self.external_stream,
            set_stream=self.set_stream,
            stream_handle=self.stream_handle,
            leaving=self.leaving,
        )

    def answer(self, name: str, arguments: tuple[int, ...]) -> int:
        """What the library's call gives; PyTorch's exception of a context that is lost is CUDA's error."""
        lines = self.launcher.lines
        where = lines.running() if lines is not None and name.startswith("cuda") else None
        try:
            if where is not None:
                return from_line(*where, lambda: self.driver.answer(name, arguments))
            return self.driver.answer(name, arguments)
        except RuntimeError:
            if self.lost() and name.startswith("cuda"):
                return self.lost()
            raise

    # ------------------------------------------------------------------ what the driver needs

    def begin(self) -> None:
        """CUDA is used."""
        if self.state.visible is None:
            torch.cuda._lazy_init()
        self.state.use(self.state.local.device)

    def device(self) -> int:
        """This thread's current device."""
        return int(self.state.local.device)

    def set_device(self, index: int) -> None:
        """Make another one current."""
        self.begin()
        self.state.local.device = index

    def device_count(self) -> int:
        """How many devices the program sees."""
        return int(self.state.device_count())

    def host(self) -> HostThread:
        """This thread's clock."""
        return self.state.host()

    def site(self) -> int:
        """The program's line."""
        return self.state.site()

    def at_line(self, file: str, line: int, call: Callable[[], int]) -> int:
        """Call a function for a line of host code."""
        return from_line(file, line, call) if self.native else call()

    def note(self, code: str, site: int, **detail: str | int) -> None:
        """Record a fact at a line of the program."""
        self.state.notes.note(code, site, **detail)

    def stream(self, handle: int) -> Stream:
        """The stream behind a handle, which may be another device's."""
        if handle in (1, PER_THREAD):
            handle = 0
        return self.state.external_stream(device_of_handle(handle, self.device_count(), self.device()), handle)

    def new_stream(self, priority: int, blocking: bool) -> int:
        """A new stream, as its handle."""
        self.begin()
        return handle(self.state.own_stream(self.device(), priority, blocking))

    def lost(self) -> int:
        """The error of a context that is lost, once the host has heard of it."""
        failure = self.state.failure
        if failure is None or not getattr(failure, "surfaced", False):
            return 0
        known = errors.by_name().get(getattr(failure, "name", ""))
        return errors.LAUNCH_FAILURE if known is None else known.code

    def launch(self, function: KernelFunction, shape: LaunchShape, arguments: bytes, stream: Stream) -> None:
        """Compute a kernel, and put it on a stream."""
        given = bytearray(arguments)
        for offset, address in words(function.kernel, arguments):
            real = self.addresses.real(address)
            if real != address:
                struct.pack_into("<Q", given, offset, real)
        self.launcher.launch(function, shape, bytes(given), stream)

    def memory_at(self, address: int) -> tuple[Storage, int] | None:
        """A storage over memory that host code took from the driver, and where it begins; its owner keeps it."""
        found = self.addresses.allocation(address)
        if found is None or not isinstance(found.owner, Pages):
            return None
        self.addresses.fill(found)  # nobody tells of what operators write
        if found.traced:  # PyTorch uses it from now on, in the order of its streams
            self.driver.memory.managed.forget(found)
            self.addresses.add(replace(found, traced=False))
        with torch._C._DisableTorchDispatch():
            made = torch._C._construct_storage_from_data_pointer(found.start, CPU_DEVICE, found.size)
        storage: Storage = made  # type: ignore[assignment]  # with a tag, as all have
        tag = storage._wt = Tag(found.device, found.size)
        tag.block = Block(found.start, found.size, None, None)  # type: ignore[arg-type]  # it is no allocator's
        return storage, found.start

    def watch(
        self, codes: tuple[str, str], pages: Sequence[tuple[int, int]], touched: tuple[int, int], written: bool,
        stream: Stream,
    ) -> None:  # fmt: skip
        """Notice the host's use of memory that the work just submitted uses, until it is ordered after that."""
        self.launcher.watch(codes, pages, touched, written, stream)

    def copied(self, source: int, destination: int, size: int, stream: Stream, values: bool = True) -> None:
        """Tell the order of accesses of a transfer."""
        if values:
            self.launcher.rehearsed.overwritten(destination)
            self.launcher.moved(source, destination, size)
        reads, writes = [[(a, a + size)] if a else [] for a in (source, destination)]
        self.launcher.ordered(reads, writes, stream)

    def leaving(self) -> int:
        """Host code ends the process without Python."""
        sys.stdout.flush()
        exits.run()
        return 0

    # ------------------------------------------------------------------ PyTorch's functions

    def tensor_device(self, address: int) -> int:
        """The emulated device of a tensor, by the address of its Python object."""
        return device_of(_tensor_at(address))

    def torch_error(self, code: int) -> int:
        """Raise what C10_CUDA_CHECK throws."""
        error = errors.table().get(code, errors.table()[999])
        failure = self.state.failure
        if failure is not None and self.lost() == code:
            failure.surface()
        raise cuda_error(error.text, error.name, blocking=self.machine.blocking)

    def current_stream(self, device: int) -> int:
        """The id of the current stream."""
        self.begin()
        return int(self.state.current_id(self.state.current_stream(device)))

    def pool_stream(self, device: int, priority: int) -> int:
        """The id of a stream of the pool."""
        self.begin()
        return int(self.state.stream_id(self.state.new_stream(device, max(-3, min(0, priority)))))

    def external_stream(self, device: int, handle: int) -> int:
        """The id of a stream that another library made."""
        return int(self.state.stream_id(self.state.external_stream(device, handle)))

    def set_stream(self, device: int, stream_id: int) -> int:
        """Make a stream current."""
        self.state.set_stream(device, stream_id)
        return 0

    def stream_handle(self, device: int, stream_id: int) -> int:
        """What the driver calls a stream."""
        found = stream_by_id(self.state, device, stream_id)
        return handle(found) if stream_id & 1 or not stream_id else stream_id


def _tensor_at(address: int) -> torch.Tensor:
    """A tensor by the address of its Python object."""
    found: torch.Tensor = ctypes.cast(address, ctypes.py_object).value
    return found
