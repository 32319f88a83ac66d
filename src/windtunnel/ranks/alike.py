"""Whether two ranks of one class did the same: what they ran, on what, for whom, and the memory that they took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from windtunnel.ranks.fold import Fold
from windtunnel.trace.operation import LIBRARYS_SLEEP, UNKNOWN_SITE, Kind, Note, Signature, Site, without_reuse
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_bytes

CODE = "ranks-differ"
COMPARED = frozenset(
    {
        Kind.KERNEL, Kind.COPY, Kind.COLLECTIVE, Kind.EVENT_RECORD, Kind.EVENT_WAIT, Kind.SYNCHRONIZE, Kind.STEP,
        Kind.BARRIER, Kind.BATCH, Kind.POST, Kind.HOST,
    }
)  # fmt: skip
"""Rows that do not depend on when the other ranks come."""
SIZED = frozenset({Kind.KERNEL, Kind.COPY, Kind.COLLECTIVE, Kind.BATCH, Kind.HOST})
MEMORY = ("peak_allocated_bytes", "peak_reserved_bytes")

Step = tuple[object, ...]


class Steps:
    """What a rank did, row by row, without what tells two ranks of one class apart: its GPU, its groups' names."""

    def __init__(self, fold: Fold, trace: Trace) -> None:
        self.fold = fold
        self.trace = trace
        self._devices: dict[int, int] = {-1: -1}
        self._groups: dict[object, int] = {}
        self._signatures: dict[int, Step] = {}
        self._near = UNKNOWN_SITE

    def __iter__(self) -> Iterator[tuple[Step, int, Site]]:
        """Each step, with the number of its signature and its line: the last that is known, where it has none."""
        trace, devices = self.trace, self._devices
        for kind, lane_number, signature, site_number, _, _, _, value in trace.rows:
            if kind not in COMPARED:
                continue
            lane, site = trace.lanes[lane_number], trace.sites[site_number]
            device = devices.setdefault(lane.device, len(devices))
            named = self._signatures.get(signature)
            if named is None:
                named = self._signatures[signature] = self._named(trace.signatures[signature])
            if named[0] == LIBRARYS_SLEEP:  # how often it polls depends on other processes
                continue
            size = value if kind in SIZED else 0
            self._near = site if site.file else self._near
            yield (kind, device, lane.stream, lane.thread, site.file, site.line, size, named), signature, self._near

    def _named(self, signature: Signature) -> Step:
        signature = without_reuse(signature)  # that the first rank's shard begins where the parameter does, say
        detail = tuple((key, self._detail(key, value)) for key, value in signature.detail)
        return (*signature[:-1], detail)

    def _detail(self, key: str, value: str | int) -> object:
        if key == "group":
            return self._groups.setdefault(value, len(self._groups))
        if key == "peer" and isinstance(value, int) and 0 <= value < self.fold.world:
            return self.fold.class_of(value)[2:]
        return value

    def words(self, step: tuple[Step, int, Site] | None) -> tuple[str, Site]:
        """A step in words, and its line."""
        if step is None:
            return "nothing more", self._near
        (kind, *_), signature, site = step
        found = self.trace.signatures[signature]
        shapes = ", ".join(str(list(shape)) for shape in found.shapes[: found.inputs or None][:3])
        name = found.name or Kind(int(str(int(kind)))).name.lower()  # type: ignore[call-overload]
        return name + (f" of {shapes}" if shapes else ""), site


def difference(fold: Fold, ranks: Sequence[int], traces: Sequence[Trace]) -> Note | None:
    """The first thing in which two ranks, taken to do the same, differ; None where there is none."""
    steps = [Steps(fold, trace) for trace in traces]
    for pair in zip_longest(*steps):
        if pair[0] is None or pair[1] is None or pair[0][0] != pair[1][0]:
            said = [one.words(step) for one, step in zip(steps, pair, strict=True)]
            return _note(ranks, said)
    memory = [_memory(trace) for trace in traces]
    if memory[0] != memory[1]:
        worst = [max(found, default=(0, 0)) for found in memory]
        return _note(ranks, [(f"a peak of {format_bytes(peak)}", UNKNOWN_SITE) for peak, _ in worst])
    return None


def _memory(trace: Trace) -> list[tuple[int, int]]:
    found = [tuple(int(device.get(name) or 0) for name in MEMORY) for device in trace.facts.get("devices", ())]
    return sorted((allocated, reserved) for allocated, reserved in found if reserved)


def _note(ranks: Sequence[int], said: Sequence[tuple[str, Site]]) -> Note:
    (one, here), (other, there) = said
    site = here if here.file else there
    detail = (
        ("rank", ranks[0]), ("other", ranks[1]), ("does", one), ("other_does", other),
        ("other_file", there.file), ("other_line", there.line), ("file", here.file), ("line", here.line),
    )  # fmt: skip
    return Note(CODE, site, detail)


def times(trace: Trace) -> list[int]:
    """When a rank's work ends on its devices."""
    return [row[6] for row in trace.rows if row[0] in (Kind.KERNEL, Kind.COPY, Kind.COLLECTIVE)]


def run_out(trace: Trace, world: int) -> set[int]:
    """The ranks from which on a tensor's first dimension, divided among a group's ranks, has less for each, or nothing.

    `torch.chunk`, by which FSDP2 and DTensor divide, gives each as many as the first, as long as there are any.
    """
    found: set[int] = set()
    dimensions = {shape[0] for one in trace.signatures for shape in one.shapes if shape and shape[0] > 1}
    for ranks in (group_sizes(trace) | {world}) - {1}:
        for size in dimensions:
            full, rest = divmod(size, -(-size // ranks))
            ends = (full, full + bool(rest))
            found |= {end * stride for end in ends if 0 < end < ranks for stride in (1, world // ranks)}
    return {rank for rank in found if 0 < rank < world}


def group_sizes(trace: Trace) -> set[int]:
    """The numbers of ranks that a rank's collectives are of."""
    return {int(value) for one in trace.signatures for key, value in one.detail if key == "ranks"}
