"""What the seam knows while an emulation runs: the machine, the devices that the program sees, each thread's place."""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from itertools import count
from typing import Any, Protocol
from weakref import ref

import torch

from windtunnel.machine.device import Device
from windtunnel.machine.machine import Machine
from windtunnel.machine.memory.host_allocator import HostAllocator
from windtunnel.machine.memory.oom_text import OutOfMemory
from windtunnel.machine.memory.settings import Settings
from windtunnel.machine.stream import Stream
from windtunnel.operators.card import CUDNN
from windtunnel.options import Options
from windtunnel.seam.sites import Sites
from windtunnel.seam.torch.plans.plan import Plan
from windtunnel.seam.torch.state.core import Core, Meter
from windtunnel.seam.torch.state.gpu_trace import GpuTrace
from windtunnel.seam.torch.state.history import History
from windtunnel.seam.torch.state.host_guard import HostGuard
from windtunnel.seam.torch.state.host_work import HostWork
from windtunnel.seam.torch.state.kernel_buffers import KernelBuffers
from windtunnel.seam.torch.state.late import Late
from windtunnel.seam.torch.state.leaks import Leaks
from windtunnel.seam.torch.state.loaded import Loaded
from windtunnel.seam.torch.state.memory import Memory
from windtunnel.seam.torch.state.notes import Notes
from windtunnel.seam.torch.state.observers import Observers
from windtunnel.seam.torch.state.order import Order
from windtunnel.seam.torch.state.positions import Generator, Position
from windtunnel.seam.torch.state.ranks import Ranks
from windtunnel.seam.torch.state.stream_ids import HANDLE_BASE, handle, place_of, pool_id
from windtunnel.seam.torch.state.unfilled import Unfilled
from windtunnel.seam.torch.tags import (
    CPU,
    FLOATING,
    UNTRACK,
    Storage,
    Tag,
    attach,
    bytes_in,
    parts_of,
    storage_of,
    tag_of,
    unwrapped,
)
from windtunnel.seam.visible import visible

EXPLICIT_WAITS = ("cudaDeviceSynchronize", "cudaEventSynchronize")
"""Waits of which `set_sync_debug_mode` does not warn; it does of those for a stream (c10/cuda/CUDAFunctions.h)."""

PRECISION = getattr(torch._C, "_get_fp32_precision_getter", None)
"""What the switches of `torch.backends.*.fp32_precision` say for a backend and an operation, where PyTorch has them."""
DEVICE = torch.device
"""PyTorch's own class, which an emulation puts another in the place of."""
SYNCHRONIZED = "called a synchronizing CUDA operation"


class StreamObject(Protocol):
    """One of PyTorch's streams, of whichever class."""

    device_index: int
    stream_id: int


class Registering(Protocol):
    """Kernels of the program under CUDA's keys (`kernels.registered`)."""

    def begin(self) -> None:
        """Take in what was registered before."""

    def unregister(self) -> None:
        """Take what calls them out of PyTorch."""


class Autocasting(Protocol):
    """What autocast does on devices (`kernels.autocast`)."""

    def is_on(self) -> bool:
        """Whether the program has turned it on."""

    def unregister(self) -> None:
        """Take its kernels out of PyTorch."""

    def without(self) -> AbstractContextManager[None]:
        """Operators that autocast does not look at."""


class Failure(Protocol):
    """A device-side assertion that has failed: every later call of CUDA gets its error (`dispatch.asserts`)."""

    def ordered(self) -> None:
        """The host has become ordered after more work."""

    def surface(self) -> None:
        """Raise its error, where the host has learned of it."""


class State(Core):
    """One emulation's state in PyTorch.

    `visible` lists the machine's devices that the program sees; it is fixed at CUDA's first use, as the driver fixes
    it. From then on everything speaks of the program's numbers.
    """

    generation = 0
    bad_fork = False
    on_first_use: Callable[[], object] = staticmethod(lambda: None)
    only_driver = False  # whether C++ has used CUDA, but not yet Python, whose `torch.cuda.is_initialized()` is False

    def __init__(
        self,
        machine: Machine,
        host_allocator: HostAllocator,
        sites: Sites,
        cuda_version: tuple[int, int],
        options: Options,
    ) -> None:
        self.generation = State.generation = State.generation + 1
        super().__init__(machine, sites)
        self.host_allocator = host_allocator
        self.cuda_version = cuda_version
        self.no_data, self.assume = options.no_data, options.assume
        self.check_kernels, self.cuda_compiler = options.check_kernels, options.cuda_compiler
        self.stuck_after_s = options.stuck_after  # how long a rank may do nothing while others wait for it
        self.stale = options.async_copies == "stale"  # whether readers not ordered after a write get the older bytes
        if options.host_time == "measured":
            self.meter = Meter(options.host_factor)
        elif not options.no_data:
            self.work = HostWork(machine)
        self.visible: list[int] | None = None
        self.process = os.getpid()
        self.cuda_devices = [torch.device("cuda", i) for i in range(len(machine.devices))]
        self.generators: tuple[Generator, ...] = ()
        self.generator_devices: dict[int, int] = {}
        self.pool_numbers = count(1)  # second numbers of pools that the program asks for, (0, n)
        self.capture_numbers = count(1)  # first numbers of those that captures make for themselves, (n, 0)
        self.dropout_states: dict[int, tuple[object, torch.Tensor]] = {}  # of cuDNN: whose place they were drawn at
        self.positions: dict[int, Position] = {}  # where a device's generator is, by the generator's address
        self.default_generator = threading.RLock()  # held while the CPU's default generator stands for another
        self.differences: dict[int, tuple[int, tuple[int, ...], tuple[int, ...]]] = {}  # see `broadcast_losses`
        self.sync_debug_mode = 0
        self.blas_repeatable: bool | None = None  # whether cuBLAS's workspace is one that gives the same bits again
        self.observers = Observers(machine)
        self.placed = self.observers.placed
        self.gpu_trace = GpuTrace(self.observers)
        self.late = Late(self, options.async_copies == "clock")
        self.notes = Notes(self, options.stop_after)
        self.order = Order(self, Unfilled(self.notes))
        self.history = History(self, self.observers)
        self.leaks = Leaks(self)
        self.ranks = Ranks(self, self.notes, options.share_gpus)
        self.memory = Memory(self, host_allocator, self.notes, self.history, self.ranks, Loaded(self.observers))
        self.guard = HostGuard(self, self.memory, options.host_memory_limit, options.no_data)
        self.room = self.guard.room
        self.kernels = KernelBuffers(machine, self.memory.out_of_memory, self.memory.lt_workspace)
        self.autocast: Autocasting
        self.registered: Registering
        self.overridden: set[str] = set()  # operators of PyTorch's with one
        self.plans: dict[int, Plan] = {}  # by identity: an operator's hash is a call of Python
        self.groups: Any = None
        self.assumptions: Any = None  # of a rehearsal without data
        self.new_generators: Callable[[], list[Generator]]
        self.wrap_stream: Callable[[Stream], torch.cuda.Stream]
        self.external: dict[tuple[int, int], Stream] = {}
        self.pointers: dict[Stream, int] = {}
        self.failure: Failure | None = None
        self.strikes: Any = None  # faults on purpose
        machine.on_order = self._ordered
        machine.turns.guard(host_allocator, self.late, self.order)

    # ------------------------------------------------------------------ devices

    def device_count(self) -> int:
        """How many devices the program sees; the environment decides until the first use of CUDA."""
        return len(self.machine.devices if self.visible is not None else visible(self.machine.devices))

    def initialize(self) -> None:
        """CUDA's first use: the visible devices are fixed."""
        if self.visible is not None:
            return
        self.visible = visible(self.machine.devices)
        if not self.visible:
            self.visible = None
            raise RuntimeError("No CUDA GPUs are available")
        machine = self.machine
        machine.devices = [machine.devices[i] for i in self.visible]
        for index, device in enumerate(machine.devices):
            device.renumber(index)
        self.local.streams = [device.default_stream for device in machine.devices]
        self.generators = tuple(self.new_generators())
        self.on_first_use()

    def index(self, device: object) -> int:
        """The emulated device's index for anything that PyTorch takes as a device, CPU for the others.

        Raises what PyTorch raises for an ordinal that is not there.
        """
        if device is None:
            return CPU
        if isinstance(device, int) and not isinstance(device, bool):
            index = device
            self.notes.device_named(device)
        else:
            place: torch.device = (
                device if isinstance(device, DEVICE) else torch.device(device)  # type: ignore[call-overload]
            )
            if place.type != "cuda":
                return CPU
            index = self.local.device if place.index is None else place.index
        if self.visible is None or self.only_driver:
            self.only_driver = False
            torch.cuda._lazy_init()
        if not 0 <= index < len(self.machine.devices):
            raise invalid_ordinal()
        return index

    # ------------------------------------------------------------------ memory

    def let_float(self, storage: Storage) -> None:
        """Memory that C++ made adopts the first device that it meets, or its leaf at the end of a backward pass."""
        storage._wt = tag = Tag(FLOATING, 0)
        if self.local.floated is not None:
            self.local.floated.append(ref(tag))

    def place(self, storage: Storage | None, index: int, size: int = 0) -> Tag:
        """Give a storage memory on a device, on the current stream; raises torch's OutOfMemoryError.

        Without a storage, memory of `size` bytes is given to one that is to be, and nobody is told.
        """
        if storage is not None:
            size = storage.nbytes()
        tag = Tag(index, size)
        device = self.machine.devices[index]
        if size:
            stream = self.local.streams[index]
            frees = device.frees
            if frees:
                device.allocator.drain(frees)
            if not device.context:
                self.memory.create_context(device)
            try:
                tag.block = device.allocator.malloc(size, stream.index)
            except OutOfMemory as error:
                raise self.memory.out_of_memory(error) from None
            tag.frees = frees
            tag.stream = stream
            if not self.machine.watching:
                tag.epoch = stream.epoch + 1
        if storage is not None:
            storage._wt = tag
            if UNTRACK is not None:
                UNTRACK(storage)
        leaks = self.leaks
        leaks.left -= 1
        if leaks.left < 0:
            leaks.sample(tag, index)
        room = self.room
        room.left -= size
        if room.left < 0:
            self.guard.placed(index, size)
        if self.placed and storage is not None:
            for told in self.placed:
                told(storage, index, tag)
        return tag

    def settle(self, tensor: torch.Tensor, index: int) -> None:
        """Place what C++ made of nothing for a tensor of a device there, also beneath torch.func's wrappers."""
        if index < 0 or tag_of(tensor).device != FLOATING:
            return
        tensor = unwrapped(tensor)
        for part in parts_of(tensor) or [tensor]:
            self.place(storage_of(part), index)

    def host_memory_ended(self, error: RuntimeError, index: int) -> None:
        """The host cannot hold a device's tensor: out of memory there too, or more than this machine can emulate."""
        asked = re.search(r"tried to allocate (\d+) bytes", str(error))
        size = int(asked[1]) if asked else 0
        if size >= 1 << 60:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate more than 1EB memory.") from None
        raise self.guard.refusal(index, size) from error

    def use(self, index: int) -> Device:
        """The device that the driver is asked to work on; its first use makes the process a context there."""
        device: Device = self.device(index)
        if not device.context:
            self.memory.create_context(device)
        return device

    def resized(self, storage: Storage) -> None:
        """A device's storage changed its size: it has new memory."""
        old = storage._wt
        made = self.place(storage, old.device)
        made.number, made.version = old.number, old.version

    def pin(self, tensor: torch.Tensor) -> None:
        """Make a new host tensor page-locked: its bytes move into the pinned allocator's memory."""
        storage = storage_of(tensor)
        place = tensor.storage_offset(), tensor.shape, tensor.stride()
        with torch._C._DisableTorchDispatch():
            tensor.set_(self.pinned_copy(storage), *place)

    def pinned_copy(self, storage: Storage) -> Storage:
        """A page-locked storage with a host storage's bytes, in memory that was pinned before where some is free."""
        tag = Tag(CPU, storage.nbytes())
        tag.pinned = True
        if tag.size and not any(device.context for device in self.machine.devices):
            torch.cuda._lazy_init()
            self.use(self.local.device)  # page-locking needs a context, whichever: getDeviceIndexWithPrimaryContext
        block = tag.block = self.host_allocator.malloc(tag.size)
        if block is not None:
            tag.frees = self.host_allocator.frees
            if not self.no_data and block is not None:
                if block.memory is None:
                    block.memory = bytearray(block.size)
                with torch._C._DisableTorchDispatch():
                    made = torch.frombuffer(block.memory, dtype=torch.uint8, count=tag.size)
                    made.copy_(bytes_in(storage))
                storage = storage_of(made)
        attach(storage, tag)
        return storage

    def unpin_fixed(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give pinned tensors memory of their own, since that of the pinned allocator cannot change its size."""
        for tensor in tensors:
            if tensor.layout is not torch.strided:
                continue
            storage = storage_of(tensor)
            if storage._wt.pinned and not storage.resizable():
                place = tensor.storage_offset(), tensor.shape, tensor.stride()
                with torch._C._DisableTorchDispatch():
                    tensor.set_(_plain(storage), *place)

    @property
    def alloc_conf(self) -> Settings:
        """The allocator settings in force."""
        return self.machine.devices[0].allocator.settings

    def set_alloc_conf(self, settings: Settings) -> None:
        """Change the allocator settings of all devices."""
        for device in self.machine.devices:
            device.allocator.set_settings(settings)

    # ------------------------------------------------------------------ streams

    def set_stream(self, device: int, stream_id: int) -> None:
        """Make the stream of an id the current one of its device, on this thread; PyTorch keeps the id."""
        stream = stream_by_id(self, device, stream_id)
        self.order.switch(device, stream)
        if stream_id == self.stream_id(stream):
            self.local.handles.pop(stream, None)
        else:
            self.local.handles[stream] = stream_id

    def current_stream(self, device: int) -> Stream:
        """This thread's current stream of a device: in a backward function, that of its forward."""
        stream: Stream = self.local.streams[device]
        return self.order.current(device, stream) if self.machine.concurrent else stream

    def current_id(self, stream: Stream) -> int:
        """PyTorch's id of a stream that is this thread's current one."""
        return self.local.handles.get(stream) or self.stream_id(stream)

    def new_stream(self, index: int, priority: int) -> Stream:
        """The next stream of a device's pool; from the first one on, accesses are ordered."""
        device = self.use(index)
        self.order.begin_streams()
        known = len(device.streams)
        found: Stream = device.pool_stream(priority)
        if len(device.streams) > known:
            self.gpu_trace.made(self.wrap_stream(found).cuda_stream)
        # Streams of a pool come round again: the last who asked for one has it.
        made_by: dict[str, str] = self.machine.trace.facts.setdefault("library_streams", {})
        made_by.pop(f"{index}:{found.index}", None)
        if library := self.sites.library():
            made_by[f"{index}:{found.index}"] = library
        return found

    def external_stream(self, index: int, pointer: int) -> Stream:
        """The stream behind a raw handle: one of ours, or one that another library made."""
        device = self.device(index)
        number = (pointer - HANDLE_BASE - (index << 20)) // 16 if pointer else 0
        if pointer == 0 or (0 < number < len(device.streams) and pointer >= HANDLE_BASE):
            return device.streams[number]
        self.order.begin_streams()
        if (index, pointer) not in self.external:
            self.external[index, pointer] = made = device.external_stream()
            self.pointers[made] = pointer
        return self.external[index, pointer]

    def own_stream(self, index: int, priority: int, blocking: bool) -> Stream:
        """A stream that host code makes itself, of no pool."""
        device = self.use(index)
        self.order.begin_streams()
        made: Stream = device.external_stream(priority, blocking)
        self.external[index, handle(made)], self.pointers[made] = made, handle(made)
        self.gpu_trace.made(handle(made))
        return made

    def stream_id(self, stream: Stream) -> int:
        """PyTorch's id of a stream."""
        return self.pointers[stream] if stream in self.pointers else pool_id(stream)

    def capturing(self, stream: Stream) -> bool:
        """Whether a CUDA graph is being captured on a stream."""
        return stream.capture is not None

    # ------------------------------------------------------------------ the program's doings

    def synchronized(self, name: str, stream: Stream | None = None) -> None:
        """The host waited, for `stream`, because of `name`: warn or raise when the program asked for that."""
        if stream is not None and self.gpu_trace.active:
            self.gpu_trace.synchronized_stream(self.wrap_stream(stream).cuda_stream)
        if not self.sync_debug_mode or name in EXPLICIT_WAITS:
            return
        if self.sync_debug_mode == 2:
            raise RuntimeError(SYNCHRONIZED)
        frame = self.sites.frame(2)
        if frame is not None:
            registry = frame.f_globals.setdefault("__warningregistry__", {})
            file, module = frame.f_code.co_filename, frame.f_globals.get("__name__", "<string>")
            warnings.warn_explicit(SYNCHRONIZED, UserWarning, file, frame.f_lineno, module, registry)

    def tf32(self, library: str) -> bool:
        """Whether cuBLAS or cuDNN may use TF32 for numbers of float32; no other library does."""
        if not library:
            return False
        if PRECISION is not None:  # the older switches refuse to answer where the program set these (PyTorch 2.9)
            return bool(PRECISION("cuda", "conv" if library == CUDNN else "matmul") == "tf32")
        allowed = torch._C._get_cudnn_allow_tf32 if library == CUDNN else torch._C._get_cublas_allow_tf32
        return bool(allowed())

    def in_bad_fork(self) -> bool:
        """Whether this process was forked from one that had used CUDA already."""
        return self.bad_fork

    def _ordered(self) -> None:
        if self.failure is not None:
            self.failure.ordered()
        late = self.late
        if late.landings or late.sources or late.waiting:
            late.land()
        if not self.machine.concurrent:
            self.order.synchronized()


def _plain(storage: Storage) -> Storage:
    made = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cpu")
    made.copy_(bytes_in(storage))
    plain = storage_of(made)
    attach(plain, storage._wt)
    return plain


def invalid_ordinal() -> RuntimeError:
    """What CUDA says of a device that is not there."""
    error = getattr(torch, "AcceleratorError", RuntimeError)
    made: RuntimeError = error(
        "CUDA error: invalid device ordinal\n"
        "GPU device may be out of range, do you have enough GPUs?\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
    return made


def stream_of(state: State, stream: StreamObject) -> Stream:
    """The machine's stream behind one of PyTorch's, whichever class it came back as."""
    return stream_by_id(state, stream.device_index, stream.stream_id)


def stream_by_id(state: State, index: int, stream_id: int) -> Stream:
    """The machine's stream of a device that has this id in PyTorch.

    Raises:
        RuntimeError: no stream has the id.
    """
    place = place_of(stream_id)
    if place is None:
        return state.external_stream(index, stream_id)
    state.order.begin_streams()
    found: Stream = state.device(index).pooled(*place)
    return found
