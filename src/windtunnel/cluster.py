"""A cluster on this machine: some of its ranks are played by processes, which speak for the others.

An attempt ends early where a played rank meets something that only more ranks can answer, and at its end the ranks
that should do the same are compared. What that finds goes into the next attempt.
"""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from windtunnel import launch, variables
from windtunnel.errors import FileFormatError, UnsupportedError
from windtunnel.foreign import line, read_bytes
from windtunnel.ranks import rank_uses
from windtunnel.ranks.alike import difference, group_sizes, run_out, times
from windtunnel.ranks.decisions import decided
from windtunnel.ranks.fold import EVERY, MOST_WHOLE, Change, Fold, spans
from windtunnel.ranks.rank_uses import Uses
from windtunnel.reports.parts import job
from windtunnel.trace.operation import Note
from windtunnel.trace.trace import Trace

MOST_ATTEMPTS = 12
MOST_PROCESSES = 64
MOST_FILES = 500
MOST_NAMED = 3
LEAST_FOLDED = 3
"""Of fewer ranks each is played anyway."""
DOES_NOT_FIT = 65


@dataclass
class Played:
    """How a cluster was played: the last attempt, and what made the ones before it end."""

    ended: launch.Ended
    result: launch.Result
    fold: Fold
    reasons: list[str] = field(default_factory=list)


def play(
    fold: Fold,
    program: launch.Program,
    folder: Path,
    attempt: Callable[[Fold], launch.Ended],
    cwd: Path | None = None,
    *,
    told: bool = True,
) -> Played:
    """Play the ranks of a cluster: `attempt` runs the program as each rank that a fold plays, in a run's folder.

    The program is read from `cwd`; each attempt but the first is `told` on stderr.
    """
    texts = sources(program, cwd := cwd or Path.cwd())
    uses = rank_uses.uses(texts, fold.world, fold.per_node)
    fold = begin(fold, uses)
    reasons: list[str] = []
    differences: list[Note] = []
    began = time.time()
    while True:
        ended = attempt(fold)
        changes = changes_in(folder)
        if changes and not ended.interrupted and ended.code <= 128:  # else somebody ended it
            wanted, why = fold, changes[0].why
            for change in changes:
                wanted = change.apply(wanted)
        else:
            result = launch.collect(folder, 0 < ended.code <= 128 and not ended.interrupted, ended.interrupted)
            found = [] if ended.code or fold.world < LEAST_FOLDED else unlike(fold, result)
            if read(texts, found, cwd):
                uses = rank_uses.uses(texts, fold.world, fold.per_node)
            wanted, why = _after(fold, uses, ended, result, found)
            differences += [note for note in found if note not in differences]
            if wanted != fold and not ended.code and set(wanted.played) <= set(fold.played):
                fold, wanted, why = _settled(wanted, result)
            if wanted == fold:
                read_again = resumed(folder)
                if told and read_again:
                    print(f"windtunnel: it is assumed that {read_again}", file=sys.stderr)
                tell(fold, uses, result, differences, read_again)
                for trace in by_rank(result).values():
                    for note in decided(trace, texts, cwd):
                        trace.remark(note)
                return Played(ended, result, fold, reasons)
        if wanted == fold or len(reasons) == MOST_ATTEMPTS:
            if fold.world > MOST_WHOLE:
                raise UnsupportedError(f"{line(why)}, and more ranks do not help: give a smaller --cluster")
            wanted = fold.whole()
        reasons.append(why)
        if told:
            print(f"windtunnel: {line(why)}: starting anew, {wanted.words()}", file=sys.stderr)
        fold = wanted
        empty(folder)
        launch.prepare(folder)
        (folder / variables.EARLIER).write_text(repr(began))


def _settled(fold: Fold, result: launch.Result) -> tuple[Fold, Fold, str]:
    """A fold whose ranks all have been played: it needs no other attempt unless some of them still differ."""
    result.traces = [trace for trace in result.traces if int(trace.facts.get("rank", 0)) in fold.played]
    if unlike(fold, result) or (fold.world <= MOST_WHOLE and unequal_times(fold, result)):
        return fold, fold.whole() if fold.world <= MOST_WHOLE else fold, "ranks that are not played may differ"
    return fold, fold, ""


def uses_of(program: launch.Program, fold: Fold, folder: Path) -> Uses:
    """What the source of a program that runs in a folder does with the rank."""
    return rank_uses.uses(sources(program, folder), fold.world, fold.per_node)


def begin(fold: Fold, uses: Uses) -> Fold:
    """What is played at first: also a rank of each kind that the program's source sets apart."""
    if fold.checked in (0, EVERY):
        return fold
    if uses.unknown and fold.world <= MOST_WHOLE:
        return fold.whole()
    return fold.with_beside(sorted(uses.ranks)[:MOST_WHOLE])


def _after(
    fold: Fold, uses: Uses, ended: launch.Ended, result: launch.Result, found: Sequence[Note]
) -> tuple[Fold, str]:
    """What to play after an attempt that came to its end; the same fold where nothing is open."""
    if fold.is_whole or ended.interrupted:
        return fold, ""
    if ended.code and all(trace.is_idle for trace in result.traces):  # it failed before it used a GPU
        return fold, ""
    if ended.code and fold.world <= MOST_WHOLE and result.outcome != DOES_NOT_FIT and ended.code <= 128:
        return fold.whole(), f"a played rank ended with {ended.code}"
    if not found:
        why = unequal_times(fold, result)
        return (fold.whole() if why and fold.world <= MOST_WHOLE else fold), why
    pairs = [(int(detail["rank"]), int(detail["other"])) for detail in (dict(note.detail) for note in found)]
    why = f"ranks {pairs[0][0]} and {pairs[0][1]} do different things at {found[0].site}"
    wanted = fold
    for stride, count in uses.kinds:
        wanted = wanted.with_kind(stride, count)
    wanted = wanted.with_alone(uses.few)
    if wanted == fold:  # nothing says which other ranks differ as well
        wanted = fold.whole() if fold.world <= MOST_WHOLE else _cut(fold, uses, by_rank(result))
    if len(wanted.played) > MOST_PROCESSES or wanted == fold:
        wanted = fold.whole() if fold.world <= MOST_WHOLE else fold
    return wanted, why


def _cut(fold: Fold, uses: Uses, traces: Mapping[int, Trace]) -> Fold:
    """Where classes of a large cluster begin: between played neighbours that differ; others between them come first."""
    cuts: set[int] = set()
    between: set[int] = set()
    ends = {end for trace in traces.values() for end in run_out(trace, fold.world)}
    for members in fold.classes:
        played = [rank for rank in members if rank in traces]
        firsts = {bisect_left(members, end) for end in ends}
        for rank, other in pairwise(played):
            if difference(fold, (rank, other), (traces[rank], traces[other])) is None:
                continue
            low, high = members.index(rank), members.index(other)
            if high == low + 1:
                cuts.add(other)
            near = {low + 1, (low + high) // 2, high - 4, high - 2, high - 1}
            likely = {at for first in firsts for at in (first - 1, first) if low < at < high}
            near |= likely if len(likely) <= MOST_WHOLE else set()
            between |= {members[at] for at in near if low < at < high}
    if between:
        return fold.with_beside(between)
    return replace(fold, beside=frozenset(uses.ranks)).with_cuts(cuts) if len(fold.cuts | cuts) <= MOST_WHOLE else fold


def unexplained(fold: Fold, traces: Mapping[int, Trace]) -> set[int]:
    """Cuts at which no tensor's dimension runs out: ranks between those that were compared may differ just as well.

    That the first rank or the last one does more is common.
    """
    ends = {end for trace in traces.values() for end in run_out(trace, fold.world)}
    sizes = {size for trace in traces.values() for size in group_sizes(trace)} | {fold.world}
    known = {1, fold.world - 1} | ends
    if ends:  # in each of several groups
        known |= {cut for cut in fold.cuts for size in sizes if cut % size in ends | {0}}
    return set(fold.cuts - known)


def unlike(fold: Fold, result: launch.Result) -> list[Note]:
    """In what played ranks differ from the first of their class, which stands for them."""
    traces = by_rank(result)
    found = []
    for rank in fold.played:
        first = fold.first_of[rank]
        if first != rank and first in traces and rank in traces:
            found.append(difference(fold, (first, rank), (traces[first], traces[rank])))
    return [note for note in found if note is not None]


def unequal_times(fold: Fold, result: launch.Result) -> str:
    """Why ranks that do the same may do it at other times than those that stand for them; empty where they do not.

    A rank that does more delays the members of its groups, and their groups in turn: not every rank of a class alike.
    """
    traces = by_rank(result)
    if fold.alone or fold.kinds:
        parts = sorted({size for trace in traces.values() for size in group_sizes(trace) if 1 < size < fold.world})
        if parts:
            return f"ranks that do different things delay others by their groups of {parts[0]}"
    for rank in fold.played:
        first = fold.first_of[rank]
        if first != rank and first in traces and rank in traces and times(traces[first]) != times(traces[rank]):
            return f"ranks {first} and {rank} do the same at different times"
    return ""


def sources(program: launch.Program, folder: Path) -> dict[str, str]:
    """The text of a program, by file, with that of its own modules that it imports."""
    paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), str(folder)]
    if program.kind == "code":
        return {"<string>": program.name}
    if program.kind == "module":
        waiting = _module(program.name, paths)
    else:
        waiting = [folder / program.name]
        paths.insert(0, str(waiting[0].resolve().parent))
    texts: dict[str, str] = {}
    while waiting and len(texts) < MOST_FILES:
        path = waiting.pop()
        if str(path) in texts or path.suffix != ".py":
            continue
        with suppress(OSError, SyntaxError, ValueError):
            texts[str(path)] = path.read_text("utf-8")
            for name in rank_uses.imports(texts[str(path)]):
                waiting += _module(name, [*paths, str(path.parent)])
    return texts


def read(texts: dict[str, str], differences: Sequence[Note], folder: Path) -> bool:
    """Read the files too at whose lines ranks differ, installed packages' among them; whether there are any."""
    known = len(texts)
    for detail in (dict(note.detail) for note in differences):
        for name in (str(detail["file"]), str(detail["other_file"])):
            path = folder / name
            if path.suffix == ".py" and not {name, str(path)} & texts.keys():
                with suppress(OSError, ValueError):
                    texts[str(path)] = path.read_text("utf-8")
    return len(texts) > known


def _module(name: str, folders: Sequence[str]) -> list[Path]:
    """The file of a module below these folders, if it is there."""
    parts = name.split(".")
    places = [Path(folder, *parts) for folder in folders]
    files = [
        file for place in places for file in (place.with_suffix(".py"), place / "__init__.py", place / "__main__.py")
    ]
    return [file for file in files if file.is_file()][:2]


def tell(fold: Fold, uses: Uses, result: launch.Result, differences: Sequence[Note], read_again: str = "") -> None:
    """Write into the traces how the ranks were played, and into the first one in what they differed."""
    traces = by_rank(result)
    firsts = {members[0]: spans(members) for members in fold.classes if members[0] in traces}
    lines = job.describe({rank: traces[rank] for rank in firsts}, fold.words(), firsts, fold.world)
    if not fold.is_whole and (why := unequal_times(fold, result)):
        lines["assumed"] = f"that all ranks of a class are equally late, though {why}"
    if read_again:
        lines["assumed"] = "; ".join([*filter(None, [lines.get("assumed")]), f"that {read_again}"])
    guessed = set() if fold.is_whole else unexplained(fold, traces)
    if guessed:
        lines["not compared"] = f"why ranks differ from {spans(sorted(guessed))} on is not known, so others may as well"
    elif uses.unknown and not fold.is_whole:
        lines["not compared"] = f"what the ranks do at {', '.join(uses.unknown[:MOST_NAMED])} is known when they run"
    elif uses.seeded and not fold.is_whole:
        seeds = ", ".join(uses.seeded[:MOST_NAMED])
        lines["not compared"] = f"what others do by random numbers of their own, from {seeds}"
    for rank, trace in traces.items():
        trace.facts.update(played=fold.words(), job=lines, world_size=fold.world, nodes=fold.world // fold.per_node)
        trace.facts["fold"] = fold.to_json()
        model = next((gpu.get("name") for gpu in trace.facts.get("gpus", ())), "GPU")
        trace.facts["cluster"] = f"{fold.world} x {model}"
        for device in trace.facts.get("devices", ()):  # GPUs of other nodes are other GPUs
            device["node"], device["local"] = rank // fold.per_node, int(device.get("physical", 0))
            device["physical"] = device["node"] * fold.per_node + device["local"]
    for note in differences if result.traces else ():
        detail = dict(note.detail)
        pair = int(detail["rank"]), int(detail["other"])
        apart = fold.is_whole or (not guessed and fold.first_of[pair[0]] != fold.first_of[pair[1]])
        result.traces[0].remark(note._replace(detail=(*note.detail, ("apart", int(apart)))))


def by_rank(result: launch.Result) -> dict[int, Trace]:
    """The trace of each rank: of its processes the one that did most, which comes first."""
    traces: dict[int, Trace] = {}
    for trace in result.traces:
        traces.setdefault(int(trace.facts.get("rank", 0)), trace)
    return traces


def changes_in(folder: Path) -> list[Change]:
    """What the ranks of an attempt found that needs another one."""
    found = []
    for path in sorted(folder.glob("*.fold")):
        with suppress(OSError, FileFormatError, ValueError, KeyError, TypeError):
            found.append(Change.from_json(read_bytes(path).decode()))
    return found


def resumed(folder: Path) -> str:
    """What a rank has read that an earlier attempt had written, as a clause; empty where none has."""
    for path in sorted(folder.glob("*.resumed")):
        with suppress(OSError, FileFormatError, ValueError):
            what = line(read_bytes(path).decode())
            return (
                f"what the program read from {what} does not change its steps, though an earlier attempt of this run "
                "has written it (where the program resumes from it: remove it, and let the program save nothing)"
            )
    return ""


def empty(folder: Path) -> None:
    """Remove what the processes of an attempt left in the run's folder."""
    for path in folder.iterdir():
        if path.is_file() or path.is_symlink():
            path.unlink()
