"""Whether a candidate fits, by a rehearsal of its own, with its memory or with more, or on a GPU of the same family."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from windtunnel import gpus
from windtunnel.analysis.retime import retime
from windtunnel.gpus import versions
from windtunnel.planning import layout
from windtunnel.planning.measurement import NO_MEMORY, RAN, DeviceNeed, Measurement, measure
from windtunnel.planning.rehearsal import Rehearsed
from windtunnel.trace.trace import Trace

FITS, TIGHT, DOES_NOT_FIT, PRUNED, FAILED, NOT_TRIED = "fits", "tight", "does not fit", "pruned", "failed", "not tried"
"""A candidate's status. "tight" fits by the model, and not by the upper end of its band."""


@dataclass(frozen=True)
class Verdict:
    """What is known about a candidate. `need` is that of the GPU with the least room; `how` is the numbers' origin."""

    status: str
    need: DeviceNeed | None = None
    measurement: Measurement | None = None
    how: str = ""
    why: str = ""

    @property
    def fits(self) -> bool:
        """Whether it ran, with or without a margin."""
        return self.status in (FITS, TIGHT)


Family = tuple[tuple[object, ...], ...]


def family_of(spec: str, cuda_version: str) -> Family:
    """What GPUs have in common if a program takes the same memory on all; they differ in time and memory size.

    That is the architecture, the memory of a CUDA context and of NCCL, peer access, and how many GPUs and machines.
    """
    found = layout.models(spec)
    cuda = versions.parse_version(cuda_version)
    return tuple(
        (
            gpu.compute_capability,
            cuda,
            versions.context_bytes(gpu, cuda),
            versions.communicator_bytes(gpu, len(found)),
            gpu.peer_access or len(found) == 1,
            layout.nodes(spec),
        )
        for gpu in found
    )


def worst(needs: Sequence[DeviceNeed]) -> DeviceNeed | None:
    """The need of the GPU with the least room."""
    return max(needs, key=lambda need: need.needed_bytes - need.memory_bytes, default=None)


def on_spec(measurement: Measurement, spec: str) -> tuple[DeviceNeed, ...]:
    """The needs of a rehearsal, applied to other GPUs of its family."""
    memory = [gpu.memory_bytes for gpu in layout.models(spec)]
    return tuple(need.on(memory[min(index, len(memory) - 1)]) for index, need in enumerate(measurement.devices))


def judged(measurement: Measurement, needs: Sequence[DeviceNeed], how: str) -> Verdict:
    """The verdict of a rehearsal that ran within the GPU's memory."""
    tight = any(need.upper_bytes > need.memory_bytes for need in needs)
    return Verdict(TIGHT if tight else FITS, worst(needs), replace(measurement, devices=tuple(needs)), how)


def too_large(needs: Sequence[DeviceNeed]) -> bool:
    """Whether a GPU would have to hold more at once than it has."""
    return any(need.needed_bytes > need.memory_bytes for need in needs)


def undisturbed(needs: Sequence[DeviceNeed]) -> bool:
    """Whether everything that the allocator reserves fits, so that it never has to release cached memory."""
    return all(need.taken_bytes <= need.memory_bytes for need in needs)


def had_room(measurement: Measurement) -> bool:
    """Whether a rehearsal ran without a request for which cached memory had to be released."""
    return measurement.status == RAN and not any(need.retries for need in measurement.devices)


def may_be_shared(measurement: Measurement) -> bool:
    """Whether the program takes the same memory on other GPUs of the family: it queried no fact of this one."""
    return not measurement.asked


def may_be_retimed(rehearsed: Rehearsed) -> bool:
    """Whether only times differ on another GPU of the family: one process, one stream, no cached memory released.

    With several streams the order in which memory is reused depends on times.
    """
    found = rehearsed.measurement
    calm = found.streams == 1 and found.processes == 1 and not any(need.retries for need in found.devices)
    return calm and found.status == RAN and rehearsed.trace is not None and may_be_shared(found)


def retimed(rehearsed: Rehearsed, spec: str) -> Measurement:
    """The measurement of a rehearsal on other GPUs of its family: every kernel and copy is priced again."""
    assert rehearsed.trace is not None
    with tempfile.NamedTemporaryFile(prefix="windtunnel-", suffix=".trace") as file:
        Path(file.name).write_bytes(rehearsed.trace)
        trace = Trace.load(file.name)
    models = gpus.parse(spec)
    found = measure([retime(trace, models if len(models) == len(trace.facts["gpus"]) else models[:1])])
    before = rehearsed.measurement
    return replace(found, seconds=0.0, resident_bytes=before.resident_bytes, files=before.files)


def misfit(measurement: Measurement, needs: Sequence[DeviceNeed], how: str) -> Verdict:
    """The verdict of a rehearsal that needs more memory than the GPU has."""
    why = measurement.message if measurement.status == NO_MEMORY else ""
    return Verdict(DOES_NOT_FIT, worst(needs), replace(measurement, devices=tuple(needs)), how, why)
