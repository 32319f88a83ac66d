"""A launch of a CUDA kernel: its values, the one kernel that it is on the machine, and what it did wrong."""

from __future__ import annotations

import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from windtunnel import ptx
from windtunnel.cost.families.cuda_kernels import signature
from windtunnel.machine.order import Access
from windtunnel.machine.stream import Stream
from windtunnel.seam.cuda_runtime import errors
from windtunnel.seam.cuda_runtime.addresses import Allocation
from windtunnel.seam.cuda_runtime.driver import registers_of
from windtunnel.seam.cuda_runtime.host_lines import HostLines
from windtunnel.seam.cuda_runtime.limits import LaunchShape, together
from windtunnel.seam.cuda_runtime.managed import ClosedPages, PendingWork
from windtunnel.seam.cuda_runtime.memory import MemoryCalls, Pages
from windtunnel.seam.cuda_runtime.modules import KernelFunction
from windtunnel.seam.cuda_runtime.names import demangled, parameter_names
from windtunnel.seam.sites import from_line
from windtunnel.seam.torch.dispatch import asserts
from windtunnel.seam.torch.dispatch.launched import Again, LaunchPlan
from windtunnel.seam.torch.dispatch.mode import Dispatch, emulation
from windtunnel.seam.torch.dispatch.recorder import Recorder
from windtunnel.seam.torch.extensions.tensors import Reachable, TensorAddresses, tag_in
from windtunnel.seam.torch.extensions.without_data import Rehearsed
from windtunnel.seam.torch.state.blank import wrote_bytes
from windtunnel.seam.torch.state.reuse import reusing_ranges
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import Tag
from windtunnel.trace.operation import Note, Site

WHOLE = 2
"""How many launches of each shape are looked at whole; later ones by a sample of their blocks."""
CODES = {
    "out-of-bounds": "cuda-out-of-bounds",
    "other-allocation": "cuda-out-of-bounds",
    "other-device": "cuda-out-of-bounds",
    "shared-out-of-bounds": "cuda-out-of-bounds",
    "local-out-of-bounds": "cuda-out-of-bounds",
    "uninitialized-read": "cuda-uninitialized",
    "shared-uninitialized-read": "cuda-uninitialized",
    "partly-uninitialized-read": "cuda-uninitialized",
    "shared-race": "cuda-shared-race",
    "warp-race": "cuda-shared-race",
    "copy-under-way": "cuda-shared-race",
    "block-conflict": "cuda-block-conflict",
    "same-value": "cuda-block-conflict",
    "global-race": "cuda-shared-race",
    "global-warp-race": "cuda-shared-race",
    "read-only-cache": "cuda-block-conflict",
    "divergent-barrier": "cuda-divergent-barrier",
    "missed-barrier": "cuda-divergent-barrier",
    "missing-lanes": "cuda-divergent-barrier",
    "absent-lane": "cuda-absent-lane",
    "deadlock": "cuda-divergent-barrier",
    "endless-loop": "cuda-endless-loop",
    "endless-wait": "cuda-endless-loop",
    "misaligned": "cuda-misaligned",
    "assertion": "device-assert",
}
"""The checks that report what an executor finds; a trap is the program's own doing."""
Ranges = Iterable[tuple[int, int]]


class Launched:
    """One launch with the values of its arguments, which a graph keeps."""

    def __init__(self, launcher: Launcher, function: KernelFunction, shape: LaunchShape, arguments: bytes) -> None:
        self.launcher = launcher
        self.function = function
        self.shape = shape
        self.arguments = arguments

    def submit(self, stream: Stream) -> set[int]:
        """Compute it and hand it to the machine; returns where the allocations begin that it wrote."""
        launcher, state = self.launcher, self.launcher.state
        machine = state.machine
        site = state.site()
        state.arrive()
        result = launcher.compute(self.function, self.shape, self.arguments, stream)
        result = launcher.kept_out(result, stream, machine.trace.sites[site])
        found = signature(demangled(self.function.name), result.counters)
        cost = machine.price(machine.devices[stream.device], found)
        if machine.watching and result.variables:
            launcher.use_variables(self.function, result.variables)
        touched, device = (*result.accesses, *result.variables), stream.device
        reads = launcher.ranges((access.span for access in touched if access.read), device)
        writes = launcher.ranges((access.span for access in touched if access.written), device)
        cost = reusing_ranges(machine, stream, cost, (*reads, *writes))
        machine.launch(state.host(), stream, cost, site if machine.watching else 0)
        state.order.kernel(reads, writes, stream, state.site())
        for access in result.accesses:
            if access.pages:
                reach = access.low, access.high
                launcher.watch(("cuda-early-use", "cuda-early-use"), access.pages, reach, True, stream)
        launcher.judge(self.function, result, stream)
        if result.trap is None:
            launcher.left_unwritten(self.function, result, site)
        return {access.start for access in result.accesses if access.written}

    def repeat(self, stream: Stream, captured: Sequence[Allocation], tensors: Sequence[torch.Tensor]) -> None:
        """Compute the values once more, in a graph's replay: a graph has memory of its own for what died meanwhile."""
        launcher, arguments = self.launcher, bytearray(self.arguments)
        again: dict[int, Allocation] = {}
        for offset, address in words(self.function.kernel, self.arguments):
            for memory, tensor in zip(captured, tensors, strict=True):
                if memory.start <= address < memory.start + max(memory.size, 1):
                    start = int(tensor.data_ptr())
                    struct.pack_into("<Q", arguments, offset, start + address - memory.start)
                    again[start] = Allocation(start, memory.size, device=memory.device)
        with launcher.addresses.holding(again.values()):
            result = launcher.compute(self.function, self.shape, bytes(arguments), stream)
            launcher.judge(self.function, result, stream)


def words(kernel: ptx.Kernel, arguments: bytes) -> Iterator[tuple[int, int]]:
    """Where an argument may be a pointer, and to where: structures are looked through word by word."""
    for parameter in kernel.parameters:
        for offset in range(parameter.offset, parameter.offset + parameter.size - 7, 8):
            yield offset, struct.unpack_from("<Q", arguments, offset)[0]


class Launcher:
    """Launches of one emulation."""

    def __init__(self, state: State, addresses: TensorAddresses, memory: MemoryCalls) -> None:
        self.state = state
        self.addresses = addresses
        self.reachable = Reachable(addresses, memory.pinned)
        self.memory = memory
        self.managed = memory.managed
        self.rehearsed = Rehearsed(state, addresses)
        self._seen: Counter[tuple[str, LaunchShape]] = Counter()
        self.output: Callable[[str], None] = _print
        self.lines: HostLines | None = None
        """Of a program that is host code alone."""

    def launch(self, function: KernelFunction, shape: LaunchShape, arguments: bytes, stream: Stream) -> None:
        """Compute a kernel, and put it on a stream: now, and in each replay of the graph that is captured."""
        launched = Launched(self, function, shape, arguments)
        dispatch = emulation()
        if self.state.no_data or dispatch is None or dispatch.recorder is None or stream.capture is None:
            written = launched.submit(stream)  # nothing is captured, or only the machine's work is, or another stream
            if dispatch is not None and dispatch.recorder is not None:
                self._happened(dispatch.recorder, function, arguments, written)
            return
        pointers = self._pointers(function.kernel, arguments)
        with torch._C._DisableTorchDispatch():  # these are no operators of the program
            pairs = [(allocation, self.addresses.tensor(allocation)) for allocation in pointers]
        captured = [allocation for allocation, tensor in pairs if tensor is not None]
        tensors = tuple(tensor for _, tensor in pairs if tensor is not None)

        def compute(*_: torch.Tensor) -> list[int]:
            written = launched.submit(stream)
            return [at for at, memory in enumerate(captured) if memory.start in written]

        def repeat(*replayed: torch.Tensor) -> None:
            launched.repeat(stream, captured, replayed)

        again = LaunchPlan(Again(f"cuda::{demangled(function.name)}", repeat))
        dispatch.recorder.launched(again, compute, tensors)

    def _happened(self, recorder: Recorder, function: KernelFunction, arguments: bytes, written: set[int]) -> None:
        """A stream that is not captured has run a kernel."""
        memory = [one for one in self._pointers(function.kernel, arguments) if one.start in written]
        with torch._C._DisableTorchDispatch():  # these are no operators of the program
            found = map(self.addresses.tensor, memory)
            recorder.happened([tensor for tensor in found if tensor is not None])

    def compute(self, function: KernelFunction, shape: LaunchShape, arguments: bytes, stream: Stream) -> ptx.Launch:
        """The values of a launch, and what it did."""
        pointers = self._pointers(function.kernel, arguments)
        absent = self.rehearsed.absent(pointers)
        if absent:
            found = list(words(function.kernel, arguments))
            result = self.rehearsed.compute(function, shape, arguments, found, absent, stream.device)
            self._fill(result, ())
            return result
        checks = self._checks(function, shape)
        marked = pointers if checks != "none" else []
        for allocation in marked:
            self.addresses.mark_unwritten(allocation)
        kernel, gpu = function.kernel, self.state.machine.devices[stream.device].gpu
        local = self.state.local
        inner, local.inner = local.inner, True
        try:
            with self.managed.opened():
                result = kernel.launch(
                    shape.grid, shape.block, shape.shared_bytes, arguments,
                    memory=self.reachable, checks=checks, output=self.output, cooperative=shape.cooperative,
                    most_resident=together(shape, kernel.shared_bytes, registers_of(kernel), gpu),
                )  # fmt: skip
            if self._seen[function.name, shape] <= WHOLE:
                self.rehearsed.counted(function, shape, arguments, list(words(kernel, arguments)), result)
            self._fill(result, marked)
            return result
        finally:
            local.inner = inner
            for allocation in marked:
                self.addresses.take_back(allocation)

    def _fill(self, result: ptx.Launch, marked: Sequence[Allocation]) -> None:
        """What a launch has written of memory where nobody looked for that counts as written."""
        looked_at = {allocation.start for allocation in marked}
        for access in result.accesses:
            known = self.addresses.allocation(access.start) if access.written else None
            if known is not None and known.start not in looked_at:
                self.addresses.fill(known)

    def _checks(self, function: KernelFunction, shape: LaunchShape) -> ptx.Checks:
        key = function.name, shape
        self._seen[key] += 1
        asked: ptx.Checks = self.state.check_kernels
        return "all" if asked == "sample" and self._seen[key] <= WHOLE else asked

    def _pointers(self, kernel: ptx.Kernel, arguments: bytes) -> list[Allocation]:
        """The memory that parameters point to."""
        found = [self.addresses.allocation(address) for _, address in words(kernel, arguments)]
        return list({known.start: known for known in found if known is not None}.values())

    def ordered(self, reads: Ranges, writes: Ranges, stream: Stream) -> None:
        """Tell the order of accesses what the work just submitted reads and writes, as ranges of addresses here."""
        device = stream.device
        self.state.order.kernel(self.ranges(reads, device), self.ranges(writes, device), stream, self.state.site())

    def moved(self, source: int, destination: int, size: int) -> None:
        """A copy or a fill has written bytes, and may have read some that a kernel has left to be written."""
        known, to = (self.addresses.allocation(address) for address in (source, destination))
        tag, target = (None if one is None else tag_in(one) for one in (known, to))
        if known is not None and tag is not None and to is None:
            low = source - known.start
            self.state.order.unfilled.copied(tag, low, low + size, self.state.site())
        if to is not None and target is not None and target.blank is not None:
            wrote_bytes(target, destination - to.start, size)

    def use_variables(self, function: KernelFunction, touched: Iterable[ptx.TouchedRange]) -> None:
        """A launch has used variables of its module."""
        starts = {one.start for one in touched}
        for variable in function.binary.module.variables.values():
            if variable.address in starts:
                self.memory.use(variable)

    def ranges(self, spans: Ranges, device: int) -> list[tuple[Tag, int, int]]:
        """Ranges of addresses here as ranges of storages; what is in none is left out. Of a variable, the device's."""
        found: list[tuple[Tag, int, int]] = []
        for start, end in spans:
            known = self.addresses.allocation(start)
            tag = None if known is None else tag_in(known, device)
            if known is not None and tag is not None:
                found.append((tag, start - known.start, end - known.start))
        return found

    def watch(
        self, codes: tuple[str, str], pages: Sequence[tuple[int, int]], touched: tuple[int, int], written: bool,
        stream: Stream,
    ) -> None:  # fmt: skip
        """Notice the host's touch of memory that the work just submitted uses, until it is ordered after that."""
        state, machine = self.state, self.state.machine
        first = Access(stream.agent, stream.epoch, *touched, written, machine.lane(state.host(), stream), state.site())

        def noted(write: bool) -> int:
            own = machine.lane(state.host(), machine.devices[0].default_stream)
            machine.hazard(codes[write], first, Access(0, 0, *touched, write, own, state.site()))
            return 0

        def met(write: bool, instruction: int) -> None:
            where = None if self.lines is None else self.lines.running(instruction)
            if where is None:
                noted(write)
            else:
                from_line(*where, lambda: noted(write))

        work = PendingWork(stream.agent, stream.epoch)
        if not machine.host_knows(*work):
            self.managed.watch([ClosedPages(low, high, work, met, not written) for low, high in pages])
            if self.managed.release not in state.late.waiting:
                state.late.waiting.append(self.managed.release)

    # ------------------------------------------------------------------ what is wrong

    def kept_out(self, result: ptx.Launch, stream: Stream, site: Site) -> ptx.Launch:
        """A launch that uses another device's memory, to which its own has no access, ends in an error."""
        peers = self.state.machine.devices[stream.device].peers
        for access in result.accesses:
            known = self.addresses.allocation(access.start)
            tag = None if known is None or isinstance(known.owner, Pages) else tag_in(known, stream.device)
            if tag is None or tag.device in (stream.device, *peers) or tag.device < 0:
                continue
            message = (
                f"it runs on cuda:{stream.device} and uses memory of cuda:{tag.device}, to which that has no access: "
                "host code without a `c10::cuda::CUDAGuard guard(x.device())`"
            )
            fault = ptx.KernelFault(
                "other-device", message, site.file, site.line, (0, 0, 0), (0, 0, 0), None, access.low
            )
            return replace(result, faults=(*result.faults, fault), trap="cudaErrorIllegalAddress")
        return result

    def left_unwritten(self, function: KernelFunction, result: ptx.Launch, site: int) -> None:
        """Watch for operators that read of a result what the launch has not written."""
        for access in result.accesses:
            known = self.addresses.allocation(access.start) if access.written else None
            tag = None if known is None else tag_in(known)
            if tag is not None and isinstance(tag.blank, np.ndarray):
                self.state.order.unfilled.left_by_kernel(tag, demangled(function.name), site)

    def judge(self, function: KernelFunction, result: ptx.Launch, stream: Stream) -> None:
        state, machine = self.state, self.state.machine
        launched = str(machine.trace.sites[state.site()])
        name = demangled(function.name)
        for fault in result.faults:
            if fault.kind not in CODES:
                continue
            # Code from before Volta relies on lockstep, and says so by `volatile`.
            kind = "lockstep" if fault.kind == "warp-race" and fault.volatile else fault.kind
            argument = parameter_names(fault.file, function.name, fault.argument)
            message = fault.message.replace(fault.argument, argument) if fault.argument else fault.message
            detail = (
                ("kernel", name), ("kind", kind), ("argument", argument), ("found", message),
                ("launched", launched), ("count", fault.count), ("operator", f"cuda::{name}"),
            )  # fmt: skip
            site = Site(fault.file, fault.line)
            machine.note(state.host(), Note(CODES[fault.kind], site, detail), machine.trace.sites.number(site))
        if result.trap is not None and state.failure is None:
            self._fail(name, result, stream)

    def _fail(self, name: str, result: ptx.Launch, stream: Stream) -> None:
        """The kernel ended with an error, which surfaces where the host next waits."""
        dispatch: Dispatch | None = emulation()
        if dispatch is None:
            return
        error = errors.by_name().get(result.trap or "", errors.table()[errors.LAUNCH_FAILURE])
        last = result.faults[-1] if result.faults else None
        note = f"in the CUDA kernel {name!r}"
        if last is not None:
            note = f"{last.file}:{last.line}: {last.message}, {note}"
        self.state.failure = asserts.AssertFailure(dispatch, stream, stream.epoch, error.text, error.name, note)


def _print(text: str) -> None:
    """What a kernel prints."""
    sys.stdout.write(text)
