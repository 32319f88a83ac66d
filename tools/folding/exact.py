"""Runs programs twice, as a cluster that few processes play and with a process a rank: both must agree exactly.

    python -m tools.folding.exact [--gpu H100] [--ranks N] [--checked N|all] PROGRAM ...

Each rank that was played is compared with the real one: every row with its times to the nanosecond, and what its
memory held to the byte. The ranks are forks of one process that has imported PyTorch.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from tools.folding.forks import fork, prepare, waited
from windtunnel import agent, checks, cluster, launch
from windtunnel.ranks.fold import EVERY, Fold
from windtunnel.trace.operation import Kind
from windtunnel.trace.trace import Trace

REMARKS = (Kind.NOTE, Kind.HAZARD)
MEMORY = ("peak_allocated_bytes", "peak_reserved_bytes", "allocated_bytes", "reserved_bytes", "context_bytes")
RANKS = re.compile(r"Runs with (\d) ranks\.")


@dataclass(frozen=True)
class Run:
    """How a program ended and what it said last, how its ranks were played, what each did, and what was found."""

    code: int
    said: str
    fold: Fold
    ranks: Mapping[int, Trace]
    codes: frozenset[str]
    reasons: Sequence[str]


def run(
    program: Sequence[str],
    fold: Fold,
    gpu: str,
    beside: Callable[[Set[int]], AbstractContextManager[None]] = lambda processes: nullcontext(),
) -> Run:
    """Run a program as the ranks that a fold plays, and as those that turn out to be needed.

    What is `beside` is given their processes, and lasts as long as they do.
    """
    folder = Path(tempfile.mkdtemp(prefix="folding-"))
    launch.prepare(folder)
    options = {"gpus": f"{fold.per_node}x{gpu}", "no_data": True}
    variables = launch.environment(options, folder, {**os.environ, "OMP_NUM_THREADS": "1"})

    def attempt(one: Fold) -> launch.Ended:
        with agent.reserve() as reserved:
            port = reserved.getsockname()[1]
            ranks = {fork(program, agent.environment(one, rank, port, variables), folder) for rank in one.played}
            with beside(ranks):
                return launch.Ended(waited(ranks))

    was = cluster.play(fold, launch.Program("script", program[0], tuple(program[1:])), folder, attempt)
    found = {finding.code for finding in checks.run_ranks(was.result.traces)} if was.result.traces else set()
    said = " / ".join(filter(None, (last_line(path) for path in sorted(folder.glob("*.out")))))
    shutil.rmtree(folder)
    ranks = {int(trace.facts.get("rank", 0)): trace.canonical() for trace in reversed(was.result.traces)}
    return Run(was.ended.code, said, was.fold, ranks, frozenset(found), was.reasons)


def last_line(path: Path) -> str:
    """The last line of what a rank said."""
    return path.read_text("utf-8", "replace").strip().rpartition("\n")[2]


def rows(trace: Trace) -> list[tuple[object, ...]]:
    """What a rank did and when."""
    return [tuple(record) for record in trace if record.kind not in REMARKS]


def memory(trace: Trace) -> list[list[object]]:
    """What a rank's GPUs held."""
    return [[device.get(name) for name in MEMORY] for device in trace.facts.get("devices", ())]


def differences(played: Run, real: Run) -> list[str]:
    """In what two runs differ, a sentence each; empty where they agree."""
    if played.code != real.code:
        ends = [f"{one.code} ({one.said})" if one.code else "0" for one in (played, real)]
        return [f"the cluster ended with {ends[0]}, the ranks with {ends[1]}"]
    found = []
    for rank, trace in played.ranks.items():
        mine, theirs = rows(trace), rows(real.ranks[rank])
        if len(mine) != len(theirs):
            found.append(f"rank {rank} has {len(mine)} rows, really {len(theirs)}")
        at = next((pair for pair in zip(mine, theirs, strict=False) if pair[0] != pair[1]), None)
        if at is not None:
            found.append(f"rank {rank}: {at[0]}\n    really {at[1]}")
        if memory(trace) != memory(real.ranks[rank]):
            found.append(f"rank {rank} holds {memory(trace)}, really {memory(real.ranks[rank])}")
    return found


def compare(program: Sequence[str], ranks: int, gpu: str, checked: int = 1) -> tuple[Run, Run, list[str]]:
    """Run a program both ways: the cluster, its ranks as processes, and in what these differ."""
    played = run(program, Fold(ranks, ranks, checked), gpu)
    real = run(program, Fold(ranks, ranks, EVERY), gpu)
    return played, real, differences(played, real)


def ranks_of(program: str) -> int:
    """How many ranks a program says that it runs with; two where it says nothing."""
    said = RANKS.search(Path(program).read_text("utf-8"))
    return int(said[1]) if said else 2


def main() -> int:
    """Compare the programs of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--ranks", type=int, help="in place of the number that the program says")
    parser.add_argument("--checked", default="1")
    parser.add_argument("programs", nargs="+")
    options = parser.parse_args()
    prepare()
    wrong = 0
    for program in options.programs:
        began = time.monotonic()
        ranks = options.ranks or ranks_of(program)
        checked = EVERY if options.checked == "all" else int(options.checked)
        played, _, unlike = compare(program.split(), ranks, options.gpu, checked)
        codes = ", ".join(sorted(played.codes & {"ranks-differ"}))
        took = time.monotonic() - began
        print(
            f"{'UNLIKE' if unlike else 'equal'} {Path(program).name}: {played.fold.words()} {codes} ({took:.1f} s)",
            flush=True,
        )
        for sentence in [*unlike, *(f"anew: {reason}" for reason in played.reasons)]:
            print(f"    {sentence}", flush=True)
        wrong += bool(unlike)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
