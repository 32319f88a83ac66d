"""Out of memory as plain data, and the sentence that PyTorch makes of it, by version."""

from __future__ import annotations

from typing import NamedTuple

from windtunnel.machine.memory.driver import Holder

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class OutOfMemory(Exception):  # noqa: N818 - the name of the event, not an error of ours
    """The allocator cannot serve a request. All numbers are bytes.

    `size` is the rounded request, `alloc_size` the segment that was asked for (what PyTorch's text prints),
    `allowed_bytes` the limit of the memory fraction (None without one), `pool_bytes` what private pools hold free,
    `others` are the other processes on the GPU, `rejected` says that `throw_on_cudamalloc_oom` refused before the
    driver was asked.
    """

    def __init__(self, **facts: int | bool | tuple[Holder, ...] | None) -> None:
        self.facts = OutOfMemoryFacts(**facts)  # type: ignore[arg-type]
        super().__init__(message(self.facts))


class OutOfMemoryFacts(NamedTuple):
    """What is known at the moment of the failure."""

    device: int
    requested: int
    size: int
    alloc_size: int
    stream: int
    device_total: int
    device_free: int
    allocated: int
    reserved: int
    process_bytes: int
    allowed_bytes: int | None = None
    pool_bytes: int = 0
    rejected: bool = False
    expandable_segments: bool = False
    others: tuple[Holder, ...] = ()


def format_size(size: int) -> str:
    """`size` bytes as c10's `format_size` prints them: "512 bytes", "20.00 MiB"."""
    if size <= KIB:
        return f"{size} bytes"
    if size <= MIB:
        return f"{size / KIB:.2f} KiB"
    if size <= GIB:
        return f"{size / MIB:.2f} MiB"
    return f"{size / GIB:.2f} GiB"


_FRAGMENTATION = (
    " If reserved but unallocated memory is large try setting {variable}=expandable_segments:True to avoid"
    " fragmentation.  See documentation for Memory Management  ({url})"
)
_NOTES = "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables"
_NEW_NOTES = "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
_ADVICE: tuple[tuple[tuple[int, int], str, str], ...] = (
    ((2, 11), "PYTORCH_CUDA_ALLOC_CONF", _NEW_NOTES),
    ((2, 10), "PYTORCH_ALLOC_CONF", _NOTES),
    ((0, 0), "PYTORCH_CUDA_ALLOC_CONF", _NOTES),
)
"""First version, variable, address. Sources: pytorch#172327 for 2.11, messages of 2.10 and older in public issues."""

_SILENT_WHEN_EXPANDABLE = (2, 14)
"""From here on the advice is left out where it is already followed (pytorch#191105)."""


def message(facts: OutOfMemoryFacts, version: tuple[int, int] = (2, 6)) -> str:
    """The text of `torch.OutOfMemoryError` that PyTorch `version` (major, minor) raises for these facts."""
    if facts.rejected:
        return (
            "CUDA out of memory. Allocation was preemptively rejected because it would exceed"
            f" per_process_memory_fraction limit. Requested size: {format_size(facts.requested)}"
        )
    allowed = "" if facts.allowed_bytes is None else f"{format_size(facts.allowed_bytes)} allowed; "
    others = "".join(f"Process {pid} has {format_size(used)} memory in use. " for pid, used in facts.others)
    process = f"Including non-PyTorch memory, this process has {format_size(facts.process_bytes)} memory in use. "
    pools = ""
    if facts.pool_bytes:
        pools = f"with {format_size(facts.pool_bytes)} allocated in private pools (e.g., CUDA Graphs), "
    used = facts.allocated + facts.pool_bytes
    return (
        f"CUDA out of memory. Tried to allocate {format_size(facts.alloc_size)}. GPU {facts.device} has a total"
        f" capacity of {format_size(facts.device_total)} of which {format_size(facts.device_free)} is free."
        f" {others}{process}{allowed}Of the allocated memory {format_size(used)} is allocated by PyTorch, {pools}and"
        f" {format_size(facts.reserved - used)} is reserved by PyTorch but unallocated." + _advice(facts, version)
    )


def _advice(facts: OutOfMemoryFacts, version: tuple[int, int]) -> str:
    if facts.expandable_segments and version >= _SILENT_WHEN_EXPANDABLE:
        return ""
    variable, url = next((variable, url) for first, variable, url in _ADVICE if version >= first)
    return _FRAGMENTATION.format(variable=variable, url=url)
