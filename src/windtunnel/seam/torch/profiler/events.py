"""The events of a window: PyTorch's own in modelled time, and those of the devices.

The classes answer to the names of PyTorch's `_KinetoEvent` (torch/csrc/autograd/init.cpp), which is all that
`torch.autograd.profiler` asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch._C._autograd import DeviceType

from windtunnel.seam.sites import OURS
from windtunnel.seam.torch.profiler.times import Taken

if TYPE_CHECKING:
    from torch._C._autograd import _KinetoEvent

MEMORY = "[memory]"
HIDDEN = frozenset({"PythonDispatchMode"})
"""What newer versions of PyTorch record of the emulation itself."""
OWN_FILES = (OURS, "windtunnel/")
"""How the names of the emulation's own Python functions begin: the profiler leaves out what is on `sys.path`."""

NEUTRAL: dict[str, object] = {
    "overload_name": "", "is_async": False, "external_id": 0, "shapes": [], "dtypes": [], "concrete_inputs": [],
    "kwinputs": {}, "fwd_thread_id": 0, "stack": [], "scope": 0, "sequence_nr": -1, "flops": 0, "cuda_elapsed_us": -1,
    "privateuse1_elapsed_us": -1, "is_user_annotation": False, "is_python_function": False, "is_hidden_event": False,
    "flow_id": 0, "flow_type": 0, "flow_start": False, "structured_input_shapes": [], "structured_input_strides": [],
    "python_id": -1, "python_parent_id": -1, "python_module_id": -1, "nbytes": 0, "module_hierarchy": [],
    "extra_meta": {}, "typed_metadata": {},
}  # fmt: skip
"""What an event of a device answers to questions that are about operators."""


class Around:
    """What answers as one of PyTorch's own objects does, but where it says otherwise."""

    _stock: object

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)


class HostEvent(Around):
    """An event of PyTorch's profiler, in modelled time; `elapsed_us` is what CUDA events round it would say."""

    def __init__(self, stock: _KinetoEvent, start_ns: int, end_ns: int) -> None:
        self._stock = stock
        self._start_ns = start_ns
        self._end_ns = end_ns
        self.elapsed_us: int | None = None

    def start_ns(self) -> int:
        """When it began, in ns since the epoch."""
        return self._start_ns

    def end_ns(self) -> int:
        """When it ended, in ns since the epoch."""
        return self._end_ns

    def duration_ns(self) -> int:
        """How long it took, in ns."""
        return self._end_ns - self._start_ns

    def stack(self) -> list[str]:
        """The Python frames that led here, without the emulation's own."""
        entries: list[str] = self.__getattr__("stack")()
        return [entry for entry in entries if not entry.startswith(OWN_FILES)]

    def cuda_elapsed_us(self) -> int:
        """The devices' time for it, where operators are timed by events; -1 otherwise."""
        return -1 if self.elapsed_us is None else self.elapsed_us


class MemoryEvent(HostEvent):
    """A "[memory]" event of a tensor that lives on a device: the caching allocator's, not the host's."""

    def __init__(self, stock: _KinetoEvent, time_ns: int, taken: Taken, sign: int) -> None:
        super().__init__(stock, time_ns, time_ns)
        self.taken = taken
        self._sign = sign

    def nbytes(self) -> int:
        """The block's size; negative when it was given back."""
        return self._sign * self.taken.size_bytes

    def device_type(self) -> object:
        """CUDA."""
        return DeviceType.CUDA

    def device_index(self) -> int:
        """The device's index."""
        return self.taken.device


class DeviceEvent:
    """A runtime call on the host, or a kernel, copy or range on a device; `answers` hold what it says of itself."""

    def __init__(self, *, start_ns: int, duration_ns: int, **answers: object) -> None:
        self._answers = NEUTRAL | answers | {"start_ns": start_ns, "duration_ns": duration_ns}
        self._end_ns = start_ns + duration_ns

    def __getattr__(self, name: str) -> Callable[[], Any]:
        try:
            value = self._answers[name]
        except KeyError:
            raise AttributeError(name) from None
        return lambda: value

    def end_ns(self) -> int:
        """When it ended, in ns since the epoch."""
        return self._end_ns


class Link:
    """Where in the host's events one mark lies: its operator's number (0: none), thread and enclosing events.

    `start_ns` is when it began, in ns since the epoch.
    """

    def __init__(self, correlation: int, thread: int, start_ns: int, around: tuple[HostEvent, ...]) -> None:
        self.correlation = correlation
        self.thread = thread
        self.start_ns = start_ns
        self.around = around


NOWHERE = Link(0, 1, 0, ())
