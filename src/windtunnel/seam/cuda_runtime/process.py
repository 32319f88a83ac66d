"""What the driver needs of the emulation that it belongs to; `seam/torch/extensions` has PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from windtunnel.machine.clock import HostThread
from windtunnel.machine.machine import Machine
from windtunnel.machine.stream import Stream
from windtunnel.seam.cuda_runtime.addresses import AddressMap
from windtunnel.seam.cuda_runtime.limits import LaunchShape
from windtunnel.seam.cuda_runtime.modules import KernelFunction


class Process(Protocol):
    """One process's emulation."""

    machine: Machine

    @property
    def addresses(self) -> AddressMap:
        """The memory of its devices."""

    def begin(self) -> None:
        """CUDA is used: make its context, where there is none."""

    def device(self) -> int:
        """This thread's current device."""

    def set_device(self, index: int) -> None:
        """Make another one current."""

    def device_count(self) -> int:
        """How many devices the program sees."""

    def host(self) -> HostThread:
        """This thread's clock."""

    def site(self) -> int:
        """The number of the program's line that is running."""

    def at_line(self, file: str, line: int, call: Callable[[], int]) -> int:
        """Call a function for a line of host code."""

    def note(self, code: str, site: int, **detail: str | int) -> None:
        """Record a fact at a line of the program."""

    def stream(self, handle: int) -> Stream:
        """The stream behind one of CUDA's handles."""

    def new_stream(self, priority: int, blocking: bool) -> int:
        """A new stream of the current device, as its handle."""

    def lost(self) -> int:
        """The error of a context that is lost, else 0."""

    def launch(self, function: KernelFunction, shape: LaunchShape, arguments: bytes, stream: Stream) -> None:
        """Compute a kernel, and put it on a stream."""

    def watch(
        self, codes: tuple[str, str], pages: Sequence[tuple[int, int]], touched: tuple[int, int], written: bool,
        stream: Stream,
    ) -> None:  # fmt: skip
        """Note a hazard where the host reads (the first code) or writes pages that the work just submitted writes, or
        writes those that it reads, before it is ordered after that."""

    def copied(self, source: int, destination: int, size: int, stream: Stream, values: bool = True) -> None:
        """Bytes were copied by a transfer just submitted, or (without `values`) something counts as one."""
