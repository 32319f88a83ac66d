"""Random programs of several streams, beside an oracle that knows nothing of vector clocks: `make race-oracle`.

    python -m tools.races --programs 1000 --seed 7
    python -m tools.races --seed 7 --one 112    # one program again, with its text

A program reads and writes tensors on up to four streams, orders some of it by events, waits and synchronizations, and
frees memory that the allocator hands out again. The oracle has every piece of work as a node of a graph and asks of
each two that touch the same bytes whether a path leads from one to the other. Every pair that is reported must be a
race, and of every piece of work that races with any before it something must be reported.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

import windtunnel

STREAMS, EVENTS, KEPT = 4, 3, 3
FILE = "<races>"
BYTES = 4
ELEMENTS = (128, 1000, 4096, 300_000)
KINDS = {
    "write": 8, "part": 5, "read": 5, "make": 9, "free": 7, "marked": 2, "item": 1,
    "record": 4, "wait": 4, "stream": 3, "synchronize": 1, "event": 1, "all": 0.5,
}  # fmt: skip
"""What a line may do, and how often it does."""
LONG = "[kept0 * 2 for _ in range(300)] and None"
"""A beginning on one stream, after which only writes are kept, by storage, until there is another stream."""


# ---------------------------------------------------------------------------------------------------- the programs


def program(draw: random.Random) -> list[str]:
    """The lines of a random program: one call a line, so that a line is a piece of work."""
    size = draw.choice(ELEMENTS)
    names = [f"kept{number}" for number in range(KEPT)]
    lines = [f"{name} = torch.zeros({size}, device='cuda')" for name in names]
    if draw.random() < 0.3:
        lines.append(LONG)
    if draw.random() < 0.7:  # what comes before the first side stream races with what it does, or is all known
        lines.append("torch.cuda.synchronize()")
    early = draw.random() < 0.5
    made = [0]
    if early:
        made += range(1, STREAMS)
        lines += [f"streams[{number}] = torch.cuda.Stream()" for number in range(1, STREAMS)]
    number = 0
    for _ in range(draw.randint(6, 40)):
        if len(made) < STREAMS and draw.random() < 0.2:
            lines.append(f"streams[{len(made)}] = torch.cuda.Stream()")
            made.append(len(made))
        stream, other, event = draw.choice(made), draw.choice(made), draw.randrange(EVENTS)
        one, two = draw.choice(names), draw.choice(names)
        start = draw.randrange(size // 2)
        part, rest = f"[{start}:{start + size // 4}]", f"[{size - size // 4}:]"
        temporary = f"made{number}"
        (kind,) = draw.choices(list(KINDS), list(KINDS.values()))
        within = f"with torch.cuda.stream(streams[{stream}]): "
        temporaries = [name for name in names if name.startswith("made")]
        match kind:
            case "write":
                lines.append(f"{within}{one}.add_(1)")
            case "part":
                lines.append(f"{within}{one}{part}.add_({two}{rest})")
            case "read":
                lines.append(f"{within}torch.add({one}, 1, out={two})")
            case "make":
                lines.append(f"{within}{temporary} = {one} * 2")
                names.append(temporary)
                number += 1
            case "free" if temporaries:
                gone = draw.choice(temporaries)
                names.remove(gone)
                lines.append(f"del {gone}")
            case "marked" if temporaries:
                lines.append(f"{draw.choice(temporaries)}.record_stream(streams[{stream}])")
            case "record":
                lines.append(f"events[{event}].record(streams[{stream}])")
            case "wait":
                lines.append(f"streams[{stream}].wait_event(events[{event}])")
            case "stream":
                lines.append(f"streams[{stream}].wait_stream(streams[{other}])")
            case "synchronize":
                lines.append(f"streams[{stream}].synchronize()")
            case "event":
                lines.append(f"events[{event}].synchronize()")
            case "all":
                lines.append("torch.cuda.synchronize()")
            case "item":
                lines.append(f"{within}{one}[:1].item()")
    return lines


# ---------------------------------------------------------------------------------------------------- the oracle


class Touched(NamedTuple):
    """The bytes from `start` to `end` of a tensor, and whether they are written."""

    start: int
    end: int
    write: bool
    tensor: str


@dataclass
class Work:
    """One piece of work: its line, its bytes, and what surely comes before it."""

    line: int
    touched: list[Touched]
    before: set[int]
    """All nodes from which a path leads here."""
    watched: bool
    """Whether its reads are kept; its writes always are."""


@dataclass
class Oracle:
    """The graph, as the lines are followed. Nodes are numbers; `host` and `streams` hold what the latest node of each
    comes after, itself included."""

    work: dict[int, Work] = field(default_factory=dict)
    host: set[int] = field(default_factory=set)
    streams: list[set[int]] = field(default_factory=lambda: [set() for _ in range(STREAMS)])
    events: list[set[int]] = field(default_factory=lambda: [set() for _ in range(EVENTS)])
    watched: bool = True
    owners: dict[str, int] = field(default_factory=dict)
    """The stream that each tensor was made on, which need not be marked for it."""
    marks: dict[str, list[int]] = field(default_factory=dict)
    freed: dict[str, set[int]] = field(default_factory=dict)
    """By tensor that is gone, what its memory's next owner comes after: the work of the streams it was marked for."""

    def submit(self, line: int, stream: int, touched: list[Touched]) -> None:
        """Work on a stream, after all before it there and all that the host knew."""
        node = len(self.work)
        before = self.streams[stream] | self.host
        self.work[node] = Work(line, touched, before, self.watched)
        self.streams[stream] = before | {node}

    def mark(self, tensor: str, stream: int) -> None:
        """`record_stream`, which does nothing for the stream that the tensor was made on."""
        if stream != self.owners[tensor]:
            self.marks.setdefault(tensor, []).append(stream)

    def free(self, tensor: str) -> None:
        """The tensor's memory goes back to its stream."""
        self.freed[tensor] = set().union(*(self.streams[stream] for stream in self.marks.get(tensor, [])))

    def races(self) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
        """By the line of the second piece of work, the lines of those that it races with, and of them the ones that
        must be named.

        Where `first` races with a write that comes before `second`, by a path or since its memory is handed on only
        after that write, that write is what has to wait: mending it mends `second` too, and naming it is enough.
        """
        every: dict[int, set[int]] = {}
        due: dict[int, set[int]] = {}
        races = {
            number: [one for one in range(number) if one not in second.before and self.conflicts(one, number)]
            for number, second in self.work.items()
        }
        for number, firsts in races.items():
            second = self.work[number]
            for first in firsts:
                every.setdefault(second.line, set()).add(self.work[first].line)
                between = [
                    (piece.start, piece.end)
                    for one in range(number)
                    if first in races[one]
                    for piece in self.work[one].touched
                    if piece.write
                    and (one in second.before or any(self.handed_on(one, piece, other) for other in second.touched))
                ]
                if any(not _within(piece, between) for piece in self.conflicts(first, number, kept=True)):
                    due.setdefault(second.line, set()).add(self.work[first].line)
        return every, due

    def conflicts(self, one: int, two: int, kept: bool = False) -> list[tuple[int, int]]:
        """The bytes that two pieces of work touch and one of them writes; `kept`: where the first access is kept."""
        return [
            (max(first.start, second.start), min(first.end, second.end))
            for first in self.work[one].touched
            for second in self.work[two].touched
            if (first.write or second.write) and _meet(first, second)
            and (first.write or self.work[one].watched or not kept)
            and not self.handed_on(one, first, second)
        ]  # fmt: skip

    def handed_on(self, one: int, first: Touched, second: Touched) -> bool:
        """Whether `second` has memory of what the work `one` touched first, handed on by the allocator after it."""
        return first.tensor != second.tensor and _meet(first, second) and one in self.freed.get(first.tensor, ())


def _meet(first: Touched, second: Touched) -> bool:
    return first.start < second.end and second.start < first.end


def _within(piece: tuple[int, int], ranges: list[tuple[int, int]]) -> bool:
    return any(start <= piece[0] and piece[1] <= end for start, end in ranges)


def follow(oracle: Oracle, lines: list[str]) -> None:
    """Run a program line by line, and tell the oracle what each line does."""
    names: dict[str, object] = {
        "torch": torch,
        "streams": [torch.cuda.default_stream(), *[None] * (STREAMS - 1)],
        "events": [torch.cuda.Event() for _ in range(EVENTS)],
    }
    for number, line in enumerate(lines, 1):
        if line.startswith("del "):
            oracle.free(line.removeprefix("del "))
        exec(compile("\n" * (number - 1) + line, FILE, "exec"), names)
        tell(oracle, number, line, names)


def parts(line: str) -> tuple[int, str]:
    """The stream that a line works on, and the call."""
    if line.startswith("with "):
        head, _, call = line.partition(": ")
        return int(head.partition("streams[")[2].partition("]")[0]), call
    return 0, line


def number_in(line: str, what: str) -> list[int]:
    """The numbers of the streams or events in a line."""
    return [int(piece.partition("]")[0]) for piece in line.split(f"{what}[")[1:]]


def tell(oracle: Oracle, number: int, line: str, names: dict[str, object]) -> None:
    """Tell the oracle what a line did."""

    def touched(text: str, write: bool) -> Touched:
        whole = write and not oracle.watched  # so it is kept
        tensor = eval(text.partition("[")[0] if whole else text, names)
        assert isinstance(tensor, torch.Tensor)
        start = tensor.data_ptr()  # on the emulated GPU
        return Touched(start, start + tensor.numel() * BYTES, write, text.partition("[")[0])

    stream, call = parts(line)
    if line == LONG:
        oracle.submit(number, 0, [touched("kept0", False)])
        oracle.watched = False
        return
    oracle.watched |= call.endswith(".Stream()")
    if line.startswith("del ") or call.endswith(".Stream()"):
        return
    if ".record_stream(" in call:
        oracle.mark(call.partition(".")[0], number_in(call, "streams")[0])
    elif ".record(" in call:
        oracle.events[number_in(call, "events")[0]] = set(oracle.streams[number_in(call, "streams")[0]])
    elif ".wait_event(" in call:
        oracle.streams[number_in(call, "streams")[0]] |= oracle.events[number_in(call, "events")[0]]
    elif ".wait_stream(" in call:
        one, two = number_in(call, "streams")
        oracle.streams[one] |= oracle.streams[two]
    elif call == "torch.cuda.synchronize()":
        oracle.host = oracle.host.union(*oracle.streams)
    elif call.endswith("].synchronize()"):
        kind = call.partition("[")[0]
        oracle.host |= (oracle.streams if kind == "streams" else oracle.events)[number_in(call, kind)[0]]
    elif call.endswith(".item()"):
        oracle.submit(number, stream, [touched(call.removesuffix(".item()"), False)])
        oracle.host |= oracle.streams[stream]
    elif call.startswith("torch.add("):
        read, _, target = call.removeprefix("torch.add(").removesuffix(")").replace("out=", "").split(", ")
        oracle.submit(number, stream, [touched(read, False), touched(target, True)])
    elif ".add_(" in call:
        target, _, source = call.removesuffix(")").partition(".add_(")
        read_too = [] if source == "1" else [touched(source, False)]
        oracle.submit(number, stream, [touched(target, True), *read_too])
    elif " = " in call:
        target, _, source = call.partition(" = ")
        oracle.owners[target] = stream
        read_too = [] if source.startswith("torch.") else [touched(source.partition(" ")[0], False)]
        oracle.submit(number, stream, [touched(target, True), *read_too])


# ---------------------------------------------------------------------------------------------------- the comparison


@dataclass
class Outcome:
    """What one program showed: pieces of work that race, those of them that were reported, and what is wrong."""

    racing: int
    reused: int
    reported: int
    wrong: list[str]


def compare(lines: list[str]) -> Outcome:
    """Run a program under emulation and compare."""
    oracle = Oracle()
    with windtunnel.emulate("1xV100") as session:
        follow(oracle, lines)
        hazards = [(hazard.first.line, hazard.second.line, hazard.code) for hazard in session.trace.hazards]
    races, due = oracle.races()
    wrong = [
        f"line {second} is said to race with line {first} ({code}): a path orders them"
        for first, second, code in hazards
        if (first not in races.get(second, ()) if first else not races.get(second))  # 0: it was not watched
    ]
    said = {second for _, second, _ in hazards}
    wrong += [
        f"line {second} races with {', '.join(map(str, sorted(firsts)))}: nothing was said"
        for second, firsts in due.items()
        if second not in said
    ]
    return Outcome(len(due), sum(code == "freed-in-use" for *_, code in hazards), len(said & due.keys()), wrong)


def programs(seed: int, count: int, one: int | None) -> Iterator[tuple[int, list[str]]]:
    """The programs of a seed, each from a generator of its own."""
    for number in range(count) if one is None else (one,):
        yield number, program(random.Random(f"{seed}/{number}"))


def main() -> int:
    """Compare; the exit status is 1 where anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--seed", type=int, default=0, help="what they are drawn by (0)")
    parser.add_argument("--one", type=int, metavar="N", help="only program N, with its text")
    options = parser.parse_args()
    total, failed = Outcome(0, 0, 0, []), 0
    count = 0
    for number, lines in programs(options.seed, options.programs, options.one):
        outcome = compare(lines)
        count += 1
        total.racing += outcome.racing
        total.reused += outcome.reused
        total.reported += outcome.reported
        failed += bool(outcome.wrong)
        if outcome.wrong or options.one is not None:
            if options.one is not None:
                print("\n".join(f"{at:4} {line}" for at, line in enumerate(lines, 1)))
            print(f"program {number} of seed {options.seed}:", *outcome.wrong[:4], sep="\n  ")
    print(
        f"{count} programs: {total.racing} pieces of work race with earlier ones, {total.reported} of them reported; "
        f"{total.reused} reports of memory freed in use; {failed} programs where the two differ"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
