"""PyTorch's Flight Recorder: writes dumps of ranks' calls that fr_trace can read, and reads dumps from any source.

The format is that of `NCCLTraceBuffer::dump` (torch/csrc/distributed/c10d/FlightRecorder.hpp), a pickle of plain data;
`components/types.py` of `torch.distributed.flight_recorder` is what checks it. A dump is written when a watchdog gives
up, so a rank that was in no call at that time never made the call that the others wait for.
"""

from __future__ import annotations

import ast
import math
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from windtunnel import foreign
from windtunnel.errors import FileFormatError
from windtunnel.ranks.calls import Call, Channel, Ending, Group, Operation, Rank, State
from windtunnel.ranks.judge import MAKING, blocked, mismatches
from windtunnel.trace.operation import UNKNOWN_SITE, Note, Site

VERSION = "2.9"
"""The version of the format: entries that are coalesced end with one that says so since 2.7, which none here are."""
NAME = re.compile(r"(\d+)$")
NAMES = {
    "all_gather_into_tensor": "_all_gather_base", "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_to_all_single": "all_to_all", "barrier": "all_reduce_barrier", "all_reduce_coalesced": "allreduce_coalesced",
}  # fmt: skip
"""Flight Recorder's names of collectives that have others in `torch.distributed`."""
CALLED = {"_all_gather_base": "all_gather_into_tensor", "_reduce_scatter_base": "reduce_scatter_tensor",
          "all_reduce_barrier": "barrier", "allreduce_coalesced": "all_reduce_coalesced"}  # fmt: skip
DTYPES = {
    "float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long", "int32": "Int",
    "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool", "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}  # fmt: skip
"""C++'s names of dtypes (`toString(ScalarType)`)."""
TYPES = {name: dtype for dtype, name in DTYPES.items()}
STATES = {State.ISSUED: "scheduled", State.WAITING: "started", State.DONE: "completed"}
UNEVEN = frozenset({"all_to_all", "scatter"})
"""Collectives to which ranks bring different sizes as a rule."""
TOGETHER = frozenset({"coalesced", "ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced"})
"""Entries that end calls which are put together."""
LIBRARIES = ("/site-packages/", "/dist-packages/", "/torch/", "<")


# ---------------------------------------------------------------------------------------------- writing


def dump(rank: Rank) -> bytes:
    """A rank's calls, as a pickle that `torch.distributed.flight_recorder` reads."""
    configured = {
        name: {"name": name, "desc": group.description or "undefined", "ranks": str(list(group.ranks))}
        for name, group in rank.groups.items()
    }
    calls = [call for call in rank.calls if call.channel.kind not in MAKING]
    entries = [_entry(rank, call, number) for number, call in enumerate(calls)]
    status = {name: _status(rank, name) for name in rank.groups}
    content = {"version": VERSION, "pg_config": configured, "pg_status": status, "entries": entries}
    return pickle.dumps(content, protocol=2)


def _status(rank: Rank, group: str) -> dict[str, int]:
    mine = [call for call in rank.calls if call.channel == Channel(group)]
    done = max((call.number for call in mine if call.state is State.DONE), default=-1)
    last = max((call.number for call in mine), default=-1)
    return {"last_enqueued_collective": last, "last_started_collective": last, "last_completed_collective": done}


def _entry(rank: Rank, call: Call, number: int) -> dict[str, Any]:
    group = rank.groups[call.channel.group]
    message = call.channel.kind != "collective"
    inputs, outputs = sizes(call.operation, group)
    dtypes = [DTYPES.get(name, name.capitalize()) for name in call.operation.dtypes]
    site = call.site
    done = call.state is State.DONE
    return {
        "record_id": number,
        "pg_id": int(call.channel.group) if call.channel.group.isdecimal() else 0,
        "process_group": (call.channel.group, group.description or "undefined"),
        "collective_seq_id": 0 if message else call.number,
        "p2p_seq_id": call.number if message else 0,
        "op_id": number + 1,
        "profiling_name": f"nccl:{_name(rank, call, group)}",
        "time_created_ns": call.issued_ns,
        "input_sizes": inputs,
        "input_dtypes": dtypes[:1] * len(inputs),
        "output_sizes": outputs,
        "output_dtypes": dtypes[:1] * len(outputs),
        "state": STATES[call.state],
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": call.ended_ns if done else None,
        "retired": done,
        "timeout_ms": 600_000,
        "is_p2p": message,
        "frames": [{"name": site.function, "filename": site.file, "line": site.line}] if site.file else [],
    }


def _name(rank: Rank, call: Call, group: Group) -> str:
    name = NAMES.get(call.operation.name, call.operation.name)
    if call.channel.kind == "collective":
        return name
    me = group.ranks.index(rank.rank)
    other = group.ranks.index(call.channel.peer) if call.channel.peer in group.ranks else -1
    return f"send {me}->{other}" if call.channel.kind == "send" else f"recv {me}<-{other}"


def sizes(operation: Operation, group: Group) -> tuple[list[list[int]], list[list[int]]]:
    """The shapes of inputs and outputs; for lists, the numbers of elements."""
    ranks = len(group.ranks)
    shapes = [list(shape) for shape in operation.shapes]
    match operation.name:
        case "all_gather_into_tensor":
            return shapes, [[ranks * math.prod(shape)] for shape in shapes]
        case "reduce_scatter_tensor":
            return shapes, [[math.prod(shape) // ranks] for shape in shapes]
        case "all_to_all_single" | "all_to_all":
            return [[sum(operation.sent)]], [[sum(operation.received)]]
        case "all_gather":  # NCCL's group records the one tensor that it gathers into, and scatters from
            return shapes, [[sum(operation.received)]]
        case "gather":
            return shapes, [[size] for size in operation.received if size]
        case "reduce_scatter":
            return [[sum(operation.sent)]], [[size] for size in operation.received[:1]]
        case "scatter":
            return [[size] for size in operation.sent if size], [[size] for size in operation.received if size]
        case "barrier":
            return [[1]], [[1]]
    return shapes, shapes


# ---------------------------------------------------------------------------------------------- reading


def is_dump(data: bytes) -> bool:
    """Whether a pickle begins as a dump does."""
    return b"pg_config" in data or b"profiling_name" in data


def load(paths: Sequence[str | Path]) -> list[Rank]:
    """The ranks of a job from their dumps; the number at the end of each file's name is the rank.

    Raises:
        FileFormatError: a file is not a dump, or two files belong to the same rank.
        OSError: a file cannot be read.
    """
    found: dict[int, Rank] = {}
    for path in paths:
        number = NAME.search(Path(path).name)
        if number is None:
            raise FileFormatError(f"{path} has no rank at the end of its name, as nccl_trace_rank_0 has")
        rank = int(number[1])
        if rank in found:
            raise FileFormatError(f"{path} is a second dump of rank {rank}: give the dumps of one job")
        content = foreign.printable(foreign.from_pickle(foreign.read_bytes(path), path), path)
        try:
            found[rank] = _rank(rank, content)
        except foreign.UNFIT as error:
            raise FileFormatError(
                f"{path} is not a dump of Flight Recorder ({type(error).__name__}: {error})"
            ) from None
    return [found[rank] for rank in sorted(found)]


def wrong(ranks: Sequence[Rank]) -> list[Note]:
    """What is wrong between the ranks of dumps: where their calls differ, otherwise which ranks they wait for."""
    job = {rank.rank: rank for rank in ranks}
    differing = [*mismatches(job), *_unbalanced(job)] or _unsound(job)
    if differing:
        return differing
    absent = {
        number: rank if any(call.state is State.WAITING for call in rank.calls) else rank._replace(ending=ABSENT)
        for number, rank in job.items()
    }
    return blocked(absent)


ABSENT = Ending("absent")


def missing(ranks: Sequence[Rank]) -> list[int]:
    """The ranks of the groups that have no dump."""
    known = {rank.rank for rank in ranks}
    return sorted({one for rank in ranks for group in rank.groups.values() for one in group.ranks} - known)


def _rank(number: int, content: Mapping[str, Any]) -> Rank:
    groups = {
        str(name): Group(str(group["desc"]), _ranks(group["ranks"])) for name, group in content["pg_config"].items()
    }
    calls: list[Call] = []
    counts: dict[Channel, int] = {}
    waits: set[str] = set()
    for entry in content["entries"]:
        call = _call(entry, groups, counts)
        if call is None:
            continue
        counts[call.channel] = max(counts.get(call.channel, 0), call.number)
        if call.state is State.WAITING:
            if call.channel.group in waits:  # queued behind another one of its group
                call = call._replace(state=State.ISSUED)
            waits.add(call.channel.group)
        calls.append(call)
    return Rank(number, groups, calls, counts)


def _int64(value: object) -> int:
    """A number as C++ has written it, and no other: Python's have no end."""
    number = int(str(value))
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError("a number is too large")
    return number


def _ranks(text: object) -> tuple[int, ...]:
    try:
        found = ast.literal_eval(str(text))
    except (SyntaxError, MemoryError) as error:  # the latter of what is nested too deeply
        raise ValueError("its ranks are no list") from error
    return tuple(_int64(rank) for rank in found)


def _call(entry: Mapping[str, Any], groups: Mapping[str, Group], counts: Mapping[Channel, int]) -> Call | None:
    name, _, pair = str(entry["profiling_name"]).partition(":")[2].partition(" ")
    if name in TOGETHER:
        return None
    group = str(entry["process_group"][0])
    if group not in groups:
        raise ValueError(f"a call belongs to group {group}, which is none of its groups")
    operation = _operation(CALLED.get(name, name), entry)
    channel, number = Channel(group), _int64(entry["collective_seq_id"])
    if name in ("send", "recv"):
        peer = int(re.split(r"->|<-", pair)[1])
        channel = Channel(group, name, groups[group].ranks[peer] if peer >= 0 else -1)
        number = counts.get(channel, 0) + 1
    state = State.DONE if entry["state"] == "completed" else State.WAITING
    return Call(channel, number, operation, _site(entry.get("frames") or ()), state, _int64(entry["time_created_ns"]))


def _operation(name: str, entry: Mapping[str, Any]) -> Operation:
    inputs, outputs = ([tuple(map(_int64, shape)) for shape in entry[side]] for side in ("input_sizes", "output_sizes"))
    dtypes, results = (
        tuple(TYPES.get(str(dtype), str(dtype)) for dtype in entry.get(f"{side}_dtypes") or ())
        for side in ("input", "output")
    )
    if name not in MOVING and any(inputs[:1]) and any(outputs[:1]):
        dtypes += tuple(dtype for dtype in results if dtype not in dtypes)
    elements = tuple(map(math.prod, inputs))
    if name in UNEVEN:
        return Operation(name, tuple(inputs), dtypes, sent=elements, received=tuple(map(math.prod, outputs)))
    if name == "barrier":
        return Operation(name)
    return Operation(name, tuple(inputs), dtypes, elements, received=tuple(map(math.prod, outputs)))


def _site(frames: Iterable[Mapping[str, Any]]) -> Site:
    """The innermost line of the program, or of a library if the program has none."""
    sites = [Site(str(one["filename"]), _int64(one["line"]), str(one["name"])) for one in frames]
    own = [site for site in sites if not any(part in site.file for part in LIBRARIES)]
    return next(iter([*own, *sites]), UNKNOWN_SITE)


def _unbalanced(job: Mapping[int, Rank]) -> list[Note]:
    """All-to-all exchanges in which the elements sent and expected differ, summed over all ranks that have dumps."""
    found = []
    calls: dict[tuple[str, int], dict[int, Call]] = {}
    for rank in job.values():
        for call in rank.calls:
            if call.operation.name == "all_to_all":
                calls.setdefault((call.channel.group, call.number), {})[rank.rank] = call
    for (group, number), those in sorted(calls.items()):
        ranks = next(rank.groups[group].ranks for rank in job.values() if group in rank.groups)
        sent, received = (sum(sum(getattr(call.operation, way)) for call in those.values()) for way in WAYS)
        if len(those) == len(ranks) and sent != received:
            first, *_, last = those.values()
            detail: list[tuple[str, str | int]] = [
                ("what", "size of what one rank sends and the other expects"), ("group", f"group {group}"),
                ("number", number),
                *((f"rank {rank}", f"{call.operation} at {call.site}") for rank, call in those.items()),
            ]  # fmt: skip
            found.append(Note("collective-mismatch", last.site, (*detail, *_other(first.site))))
    return found


def _unsound(job: Mapping[int, Rank]) -> list[Note]:
    """A group's first call whose result does not have the size that its input implies, or that other ranks have."""
    found: dict[str, Note] = {}
    first: dict[tuple[str, int], Call] = {}
    for rank in job.values():
        for call in rank.calls:
            group, operation = call.channel.group, call.operation
            if call.channel.kind != "collective" or operation.name in UNEVEN or group in found:
                continue
            other = first.setdefault((group, call.number), call)
            into = operation.elements[:1], operation.received[:1]
            size = len(rank.groups[group].ranks)
            wrong = operation.name in GATHERING and into[1] != tuple(one * size for one in into[0])
            wrong |= operation.name in SCATTERING and into[0] != tuple(one * size for one in into[1])
            wrong |= operation.name in REDUCING and operation.elements != operation.received
            wrong |= operation.name != "gather" and operation.received != other.operation.received
            if wrong:
                detail: list[tuple[str, str | int]] = [
                    ("what", "size of the result"), ("group", f"group {group}"), ("number", call.number),
                    (f"rank {rank.rank}", f"{operation} into {list(operation.received)} elements at {call.site}"),
                ]  # fmt: skip
                found[group] = Note("collective-mismatch", call.site, (*detail, *_other(other.site)))
    return list(found.values())


GATHERING = frozenset({"all_gather", "all_gather_into_tensor_coalesced"})
MOVING = frozenset({"scatter", "gather", "broadcast"})
"""Collectives whose results PyTorch's analysis lets have other types."""
SCATTERING = frozenset({"reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"})
REDUCING = frozenset({"all_reduce", "all_reduce_coalesced"})
"""What fr_trace holds against one another of a call's own sizes (`Op.match` of its components/types.py)."""
WAYS = ("sent", "received")


def _other(site: Site) -> list[tuple[str, str | int]]:
    return [("other_file", site.file), ("other_line", site.line)] if site.file else []
