"""What is wrong between ranks, deduced from the calls of each: notes for the checks with the same codes.

Ranks disagree if calls that are matched with one another differ. There is a deadlock if every rank of a set waits for
another rank of the set, or for one that has ended. A running rank may still make any call, so waiting for it is not
reported, however slow it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from windtunnel.ranks.calls import ON_CPU, Call, Channel, Operation, Rank, State, listed
from windtunnel.trace.operation import UNKNOWN_SITE, Note, Site

MAKING = ("create", "join")
"""Kinds of calls that make a group or its communicators."""
Job = Mapping[int, Rank]
Detail = list[tuple[str, str | int]]


def judge(ranks: Sequence[Rank]) -> list[Note]:
    """What is wrong: only the causes, not what follows from them.

    `ranks` are those of one job, all read at the same moment.
    """
    job = {rank.rank: rank for rank in ranks}
    return mismatches(job, only_open=True) or unlike_messages(job) or blocked(job) or stalled(job)


# ---------------------------------------------------------------------------------------------- disagreement


def mismatches(job: Job, only_open: bool = False, group: str | None = None) -> list[Note]:
    """Calls that differ although they are matched: the first of each group, or of `group` alone.

    `only_open` leaves out calls that all of their ranks have completed.
    """
    found: dict[str, Note] = {}
    for channel in sorted({call.channel for rank in job.values() for call in rank.calls}):
        if channel.kind not in ("collective", "create") or channel.group in found:
            continue
        if group is not None and channel.group != group:
            continue
        by_number: dict[int, dict[int, Call]] = {}
        for rank in job.values():
            for call in rank.calls:
                if call.channel == channel:
                    by_number.setdefault(call.number, {})[rank.rank] = call
        for _, calls in sorted(by_number.items()):
            if only_open and all(call.state is State.DONE for call in calls.values()):
                continue
            made = channel.kind == "create"  # by those that take themselves for its members
            what = difference(calls, sorted(calls) if made else members(job, channel))
            if what:
                what = "members" if made else what
                found[channel.group] = _mismatch(job, what, calls)
                break
    return list(found.values())


def difference(calls: Mapping[int, Call], ranks: Sequence[int]) -> str:
    """How the matched calls of a group's `ranks` differ; "" if they agree as far as they are known."""
    operations = {rank: calls[rank].operation for rank in ranks if rank in calls}
    for what in ("name", "dtypes", "root", "reduction", "elements"):
        if len({_comparable(operation, what) for operation in operations.values()} - {""}) > 1:  # C++ names none
            return WORDS[what]
    known = [(number, rank) for number, rank in enumerate(ranks) if rank in operations]
    for number, rank in known:
        for other_number, other in known:
            sent, received = operations[rank].sent, operations[other].received
            whole = len(sent) == len(received) == len(ranks)
            if whole and sent[other_number] != received[number]:
                return WORDS["sent"]
    return ""


WORDS = {
    "name": "operation",
    "dtypes": "dtype",
    "root": "root",
    "reduction": "reduction",
    "elements": "size",
    "sent": "size of what one rank sends and the other expects",
}


def unlike_messages(job: Job, group: str | None = None) -> list[Note]:
    """Messages that are received as something else than is sent: the first of each group, or of `group` alone."""
    found: dict[str, Note] = {}
    for sender, rank in sorted(job.items()):
        for sent in rank.calls:
            channel = sent.channel
            if channel.kind != "send" or channel.group in found or group not in (None, channel.group):
                continue
            received = job[channel.peer].call(_answer(channel, sender), sent.number) if channel.peer in job else None
            if received is None or sent.state is received.state is State.DONE:
                continue
            what = _unlike(sent.operation, received.operation)
            if what:
                detail: Detail = [
                    ("what", what), ("group", _group(job, channel)), ("number", sent.number), ("sender", sender),
                    ("receiver", channel.peer),
                    *_lines({rank: f"{call.operation} at {call.site}"
                             for rank, call in ((sender, sent), (channel.peer, received))}),
                ]  # fmt: skip
                found[channel.group] = _note("collective-mismatch", received.site, sent.site, detail)
    return list(found.values())


def _unlike(sent: Operation, received: Operation) -> str:
    """How the two sides of a message differ; bytes may be received as what they are."""
    types = [operation.dtypes[:1] for operation in (sent, received)]
    if types[0] == types[1]:
        return "size" if sent.elements != received.elements else ""
    if _size(sent) != _size(received):
        return "size"
    return "" if any(one[0] in BYTES for one in types if one) else "dtype"


def _size(operation: Operation) -> int:
    """The bytes of a message."""
    bits = re.search(r"\d+", operation.dtypes[0]) if operation.dtypes else None
    return sum(operation.elements) * (int(bits[0]) if bits else 8) // 8


BYTES = frozenset({"uint8", "int8", "bool"})


def _answer(channel: Channel, rank: int) -> Channel:
    """The other side of a channel for messages, as the other rank has it."""
    return channel._replace(kind="recv" if channel.kind == "send" else "send", peer=rank)


def _comparable(operation: Operation, what: str) -> object:
    value = getattr(operation, what)
    if what == "dtypes":  # lists of tensors are as long as their ranks need, but of one type
        return frozenset(value) if operation.name != "barrier" else frozenset()
    return value


def _mismatch(job: Job, what: str, calls: Mapping[int, Call]) -> Note:
    usual, fewest = _sides(calls)
    first = next(iter(calls.values()))
    detail: Detail = [
        ("what", what),
        ("group", _group(job, first.channel)),
        ("number", first.number),
        ("threads", int(_mismatch_by_threads(job, calls))),
        *_lines({rank: f"{call.operation} at {call.site}" for rank, call in calls.items()}),
    ]
    return _note("collective-mismatch", fewest.site, usual.site, detail)


def _sides(calls: Mapping[int, Call]) -> tuple[Call, Call]:
    """A call of the majority and one of the minority; without a majority, those of the lowest and the highest rank."""
    kinds = Counter((call.operation, call.site) for _, call in sorted(calls.items()))
    (usual, _), *_, (fewest, _) = [*kinds.most_common(), *kinds.most_common()[-1:]]
    by_kind = {(call.operation, call.site): call for call in calls.values()}
    return by_kind[usual], by_kind[fewest]


# ---------------------------------------------------------------------------------------------- nobody can go on


def blocked(job: Job) -> list[Note]:
    """Ranks that wait for a call that can no longer come, by cause: ranks that ended, and cycles."""
    able = _can_go_on(job)
    stuck = {rank for rank in waiting(job) if not able[rank] and not _is_over(job, rank)}
    found: list[Note] = []
    told: set[int] = set()
    for gone in sorted({need for rank in stuck for need in needs(job, rank) if _is_over(job, need)}):
        victims = sorted(rank for rank in stuck if gone in needs(job, rank))
        found.append(_gone(job, gone, victims))
        told.update(_reached(job, victims, stuck))
    for rank in sorted(stuck - told):
        if rank not in told:
            circle = _circle(job, rank, stuck - told)
            found.append(_deadlock(job, circle))
            told.update(_reached(job, circle, stuck))
    return found


def stalled(job: Job) -> list[Note]:
    """No rank makes progress, and threads of some wait in calls that no other thread will answer."""
    calls = waiting(job)
    if not calls or not all(rank.stuck and rank.ending is None for rank in job.values()):
        return []
    first = min(calls)
    detail: Detail = [
        ("rank", first), ("group", _group(job, calls[first][0].channel)), ("all", 1),
        ("stack", " <- ".join(job[first].stuck[1:])), *_lines({rank: _waits(job, rank) for rank in calls}),
    ]  # fmt: skip
    return [_note("rank-stuck", _site_of(job[first].stuck[0]), calls[first][0].site, detail)]


def waiting(job: Job) -> dict[int, list[Call]]:
    """The calls that ranks wait in, by rank; a rank with a thread that still works is left out."""
    found = {}
    for rank in job.values():
        calls = [call for call in rank.calls if call.state is State.WAITING]
        if calls:
            found[rank.rank] = calls
    return found


def needs(job: Job, rank: int) -> list[int]:
    """The other ranks that have not yet made the calls that `rank` waits for."""
    return sorted({other for call in waiting(job).get(rank, ()) for other in missing(job, rank, call)})


def missing(job: Job, rank: int, call: Call) -> list[int]:
    """The ranks that have not yet made their part of a call."""
    channel = call.channel
    if channel.kind == "join" and channel.peer >= 0:
        return [] if channel.peer in job and _count(job[channel.peer], channel._replace(peer=rank)) else [channel.peer]
    if channel.kind in ("collective", "create", "join"):
        others = [other for other in members(job, channel) if other != rank]
        return [other for other in others if other not in job or not _takes_part(job, other, call)]
    if channel.peer < 0:
        return [] if _has_any_sender(job, rank, call) else [o for o in members(job, channel) if o != rank]
    answer = _answer(channel, rank)
    if channel.peer not in job:
        return [channel.peer]
    peer = job[channel.peer]
    any_source = Channel(channel.group, "recv", -1, channel.tag)
    if channel.kind == "send" and _count(peer, any_source):
        return []
    return [channel.peer] if _count(peer, answer) < call.number else []


def _takes_part(job: Job, rank: int, call: Call) -> bool:
    """Whether a rank has made its part of a call and did not end during it."""
    if _count(job[rank], call.channel) < call.number:
        return False
    mine = job[rank].call(call.channel, call.number)
    return mine is None or mine.state is State.DONE or not _is_over(job, rank)


def _has_any_sender(job: Job, rank: int, call: Call) -> bool:
    answer = Channel(call.channel.group, "send", rank, call.channel.tag)
    return sum(_count(other, answer) for other in job.values()) >= call.number


def _count(rank: Rank, channel: Channel) -> int:
    return rank.counts.get(channel, 0)


def members(job: Job, channel: Channel) -> tuple[int, ...]:
    """The ranks of a channel's group, as recorded by any of them."""
    return next((rank.groups[channel.group].ranks for rank in job.values() if channel.group in rank.groups), ())


def _is_over(job: Job, rank: int) -> bool:
    return rank in job and (job[rank].ending is not None or bool(job[rank].stuck))


def _can_go_on(job: Job) -> dict[int, bool]:
    """Whether each rank may still make a call: it runs, or waits for ranks that may."""
    found = {rank: (rank not in waiting(job) or job[rank].working > 0) and not _is_over(job, rank) for rank in job}
    grown = True
    while grown:
        grown = False
        for rank, calls in waiting(job).items():
            if not found[rank] and not _is_over(job, rank) and any(_may_end(job, found, rank, call) for call in calls):
                found[rank] = grown = True
    return found


def _may_end(job: Job, able: Mapping[int, bool], rank: int, call: Call) -> bool:
    wanted = missing(job, rank, call)
    if call.channel.kind == "recv" and call.channel.peer < 0 and wanted:
        return any(able.get(other, True) for other in wanted)
    return all(able.get(other, True) for other in wanted)


def _reached(job: Job, causes: Iterable[int], stuck: set[int]) -> set[int]:
    """The ranks that wait, directly or indirectly, for one of `causes`."""
    found = set(causes)
    grown = True
    while grown:
        more = {rank for rank in stuck - found if found & set(needs(job, rank))}
        found |= more
        grown = bool(more)
    return found


def _circle(job: Job, start: int, stuck: set[int]) -> list[int]:
    """A cycle of ranks: each waits for the next, and the last for the first."""
    path = [start]
    while True:
        following = next((rank for rank in needs(job, path[-1]) if rank in stuck), None)
        if following is None:
            return path
        if following in path:
            return path[path.index(following) :]
        path.append(following)


def late(job: Job, calls: Mapping[int, Call], waits_ms: Mapping[int, tuple[int, int]]) -> Note:
    """A call in which ranks exceeded their timeout: each one's wait for the last rank, and its limit (0: none)."""
    overdue = [rank for rank, (waited_ms, limit_ms) in waits_ms.items() if 0 < limit_ms < waited_ms]
    first = max(overdue, key=lambda rank: (waits_ms[rank][0], -rank))
    last = min(waits_ms, key=lambda rank: (waits_ms[rank][0], rank))
    some = next(iter(calls.values()))
    detail: Detail = [
        ("rank", first),
        ("group", _group(job, some.channel)),
        ("number", some.number),
        ("made_by", _maker(job, some.channel)),
        ("waited_ms", waits_ms[first][0]),
        ("limit_ms", waits_ms[first][1]),
        *_lines({rank: f"{call.operation} at {call.site}" for rank, call in calls.items()}),
    ]
    nearest = calls.get(last, some)
    return _note("collective-timeout", calls.get(first, some).site, nearest.site, detail)


# ---------------------------------------------------------------------------------------------- notes


def _gone(job: Job, gone: int, victims: Sequence[int]) -> Note:
    """A rank that has ended or is stuck while others wait for it."""
    rank = job[gone]
    call = _awaited(job, gone, victims)
    mine = [one for one in rank.calls if one.channel.group == call.channel.group and one.channel.kind not in MAKING]
    detail: Detail = [
        ("rank", gone),
        ("group", _group(job, call.channel)),
        ("number", call.number),
        ("calls", rank.counts.get(call.channel, 0) if call.channel.kind == "collective" else len(mine)),
        ("kind", call.channel.kind),
        ("last", f"{mine[-1].operation.name} at {mine[-1].site}" if mine else ""),
        ("backward", int(call.operation.name == "all_reduce" and bool(mine) and mine[-1].site == call.site)),
        *_lines({one: _waits(job, one) for one in victims}),
    ]
    if rank.stuck:
        detail.append(("stack", " <- ".join(rank.stuck[1:])))
        return _note("rank-stuck", _site_of(rank.stuck[0]), call.site, detail)
    assert rank.ending is not None
    detail += [("how", rank.ending.how), ("text", rank.ending.text)]
    last = mine[-1].site if mine else UNKNOWN_SITE
    if rank.ending.how in ("finished", "absent"):
        return _note("collective-missing", call.site, last, detail)
    where = rank.ending.site if rank.ending.site.file else last
    return _note("rank-ended", where if where.file else call.site, call.site, detail)


def _awaited(job: Job, gone: int, victims: Sequence[int]) -> Call:
    """The call in which the first of `victims` waits for the rank `gone`."""
    return next(call for call in waiting(job)[victims[0]] if gone in missing(job, victims[0], call))


def _deadlock(job: Job, circle: Sequence[int]) -> Note:
    first = waiting(job)[circle[0]][0]
    second = waiting(job)[circle[-1]][0]
    joins = [call for rank in circle for call in waiting(job)[rank] if call.channel.kind == "join"]
    detail: Detail = [
        ("group", _group(job, first.channel)),
        ("messages", sum(call.channel.kind in ("send", "recv") for call in (first, second))),
        ("communicators", int(any(_on_another(job, rank, waiting(job)[rank][0]) for rank in circle))),
        ("join", int(bool(joins))),
        ("moved", int(any(call.channel.peer < 0 for call in joins))),
        ("backends", int(_crosses_backends(job, circle))),
        *_lines({rank: _waits(job, rank) for rank in circle}, together=False),
    ]
    return _note("collective-deadlock", first.site, second.site, detail)


def _crosses_backends(job: Job, circle: Sequence[int]) -> bool:
    """Whether ranks wait in both backends of one group, of which NCCL does not hold up the host on hardware."""
    groups = {call.channel.group for rank in circle for call in waiting(job)[rank]}
    return any(group + ON_CPU in groups for group in groups)


def crosses_backends(notes: Sequence[Note]) -> bool:
    """Whether what is wrong may be the emulation's, whose hosts wait in NCCL's calls."""
    return any(("backends", 1) in note.detail for note in notes)


def _mismatch_by_threads(job: Job, calls: Mapping[int, Call]) -> bool:
    """Whether some rank makes the calls of a channel from several threads, whose order differs from run to run."""
    channel = next(iter(calls.values())).channel
    if len({call.thread == job[rank].main for rank, call in calls.items() if job[rank].main}) > 1:
        return True
    return any(len({call.thread for call in job[rank].calls if call.channel == channel}) > 1 for rank in calls)


def _waits(job: Job, rank: int) -> str:
    """Where a rank waits, and for which ranks."""
    call = next((call for call in waiting(job)[rank] if missing(job, rank, call)), waiting(job)[rank][0])
    awaited = missing(job, rank, call)
    where = f"{call.operation} of {_group(job, call.channel)} at {call.site}"
    if call.channel.kind == "create":
        where = f"making {_group(job, call.channel)} at {call.site}"
    if call.channel.kind == "join":
        whose = _group(job, call.channel) if call.channel.peer < 0 else listed([rank, call.channel.peer])
        use = "use of another GPU" if call.channel.peer < 0 else "message"
        where = f"making the NCCL communicator of {whose} for its first {use} at {call.site}"
    apart = ", on another communicator than that one uses" if _on_another(job, rank, call) else ""
    return f"waits in {where}" + (f" for {listed(awaited)}" if awaited else "") + apart


def _on_another(job: Job, rank: int, call: Call) -> bool:
    """Whether the other rank of a message that never comes has made its part of it in another communicator."""
    channel = call.channel
    if channel.kind not in ("send", "recv") or channel.peer not in job or not missing(job, rank, call):
        return False
    other = _answer(channel, rank)._replace(pair=not channel.pair)
    return _count(job[channel.peer], other) > _count(job[rank], channel._replace(pair=not channel.pair))


def _group(job: Job, channel: Channel) -> str:
    group = next((rank.groups[channel.group] for rank in job.values() if channel.group in rank.groups), None)
    if group is None:
        return f"group {channel.group}"
    name = group.description if group.description not in ("", "undefined") else f"group {channel.group}"
    return "the default group" if name == "default_pg" else f"{name} ({listed(group.ranks)})"


def _maker(job: Job, channel: Channel) -> str:
    """Which function made a channel's group, by the name that PyTorch gives it: its timeout is set there."""
    group = next((rank.groups[channel.group] for rank in job.values() if channel.group in rank.groups), None)
    description = "" if group is None else group.description
    if description == "default_pg":
        return "init_process_group"
    return "init_device_mesh" if description.startswith("mesh_") else "new_group"


def _lines(texts: Mapping[int, str], together: bool = True) -> Detail:
    """One line per rank; ranks with the same text share one."""
    if not together:
        return [(listed([rank]), text) for rank, text in texts.items()]
    ranks: dict[str, list[int]] = {}
    for rank, text in sorted(texts.items()):
        ranks.setdefault(text, []).append(rank)
    return [(listed(those), text) for text, those in ranks.items()]


def _note(code: str, site: Site, other: Site, detail: Detail) -> Note:
    more: Detail = [("other_file", other.file), ("other_line", other.line)] if other.file and other != site else []
    return Note(code, site, (*detail, *more))


def _site_of(frame: str) -> Site:
    """The line of a frame of a stack, "file:line function"."""
    place, _, function = frame.partition(" ")
    file, _, line = place.rpartition(":")
    return Site(file, int(line), function) if line.isdecimal() else UNKNOWN_SITE
