"""Compare PyTorch on emulated GPUs with plain PyTorch: `make differential-operators`.

    python -m tools.differential operators                       # every operator of PyTorch's database, and programs
    python -m tools.differential operators --only 'linalg.*'     # some operators
    python -m tools.differential operators --one-case            # of every operator one call alone, and no programs
    python -m tools.differential operators --refusals            # what CUDA refuses alone: errors, types, no kernels
    python -m tools.differential operators --programs 0:2000     # random programs of these seeds alone
    python -m tools.differential operators --found FILE          # writes the differences as JSON lines

Every operator of `op_db` is called as a function, method, in place, with `out=`, with conjugate and negative views,
with empty and non-contiguous tensors, in inference mode and with gradients: on an emulated GPU, and on the host while
GPUs are emulated. Values, types, shapes, strides, devices, `requires_grad`, gradients, errors and shared memory are
compared. Before that come the errors, types and missing kernels that PyTorch's databases name for CUDA (`refusals`). A
difference that `tools/differential/expected.toml` does not explain makes the exit status 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.differential import workers
from tools.differential.found import Found, reasons, unexpected
from tools.differential.seeds import seeds_of

CHUNK = 24
"""Operators a process."""
SECONDS = 120
"""How long a call may take."""


def main(words: Sequence[str]) -> int:
    """Run what was asked for and print the counts; the exit status: 0 when nothing is unexplained, else 1."""
    options = arguments(words)
    if options.refusals:
        return 1 if refusals(options) else 0
    wrong = 0
    if options.programs is None or options.only:
        wrong += 0 if options.one_case else refusals(options)
        wrong += operators(options)
    if options.programs or not (options.only or options.one_case):
        wrong += programs(seeds_of(options.programs or "0:2000"))
    return 1 if wrong else 0


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="operators, as fnmatch has them")
    parser.add_argument(
        "--dtypes", default="float32,complex64,int64,float64,bfloat16,float16,bool", help="types, by name"
    )
    parser.add_argument("--samples", type=int, default=3, help="samples of an operator and type (3)")
    parser.add_argument("--one-case", action="store_true", help="one call of each operator, of a type that varies")
    parser.add_argument("--part", default="0/1", metavar="K/N", help="every Nth operator from the Kth on")
    parser.add_argument("--refusals", action="store_true", help="what CUDA refuses, and nothing else")
    parser.add_argument(
        "--kinds", default="operators,modules,optimizers,kernels,types", help="kinds of refusals (all of them)"
    )
    parser.add_argument("--programs", metavar="FIRST:END", help="seeds of random programs (0:2000)")
    parser.add_argument("--found", type=Path, help="where to write the differences, a JSON object a line")
    return parser.parse_args(words)


def gathered(work: workers.Work, seconds: float, options: argparse.Namespace) -> tuple[int, list[Found]]:
    """(comparisons, differences) of a piece of work in a process of its own, where one in which it ended is one."""
    tally = workers.run(work, seconds)
    new = [Found(**one) for one in tally.found] + [Found.death(call, how) for call, how in tally.deaths]
    if options.found:
        with options.found.open("a") as file:
            file.writelines(json.dumps(asdict(one)) + "\n" for one in new)
    return tally.comparisons, new


def refusals(options: argparse.Namespace) -> int:
    """Compare what is refused, and print what differs; the number of unexplained differences."""
    first, _, step = options.part.partition("/")
    number, found = 0, []
    for kind in options.kinds.split(","):

        def work(announce: Any, skip: list[str], kind: str = kind) -> dict[str, Any]:
            from tools.differential.refusals import Choice, refusals  # its databases ask for a GPU when imported

            choice = Choice(tuple(options.only or ["*"]), int(first), int(step))
            comparisons, ones = refusals(kind, choice, skip, announce)
            return {"comparisons": comparisons, "found": [asdict(one) for one in ones]}

        comparisons, new = gathered(work, 5 * SECONDS, options)
        number += comparisons
        found += new
        print(f"{kind}: {comparisons} refusals, {len(new)} differ, {len(unexpected(new))} unexplained")
    report(unexpected(found))
    print(f"{number} refusals: {len(unexpected(found))} differences unexplained")
    return len(unexpected(found))


def operators(options: argparse.Namespace) -> int:
    """Compare operators, and print what differs; the number of unexplained differences."""
    from tools.differential import operators  # after the refusals, whose databases it would freeze

    first, _, step = options.part.partition("/")
    ops = operators.chosen(options.only or ["*"])[int(first) :: int(step)]
    number, found, start = 0, [], time.monotonic()
    for place in range(0, len(ops), CHUNK):
        chunk = ops[place : place + CHUNK]

        def work(announce: Any, skip: list[str], chunk: list[Any] = chunk) -> dict[str, Any]:
            dtypes, single = options.dtypes.split(","), options.one_case
            comparisons, ones = operators.compare(chunk, dtypes, options.samples, skip, single, announce)
            return {"comparisons": comparisons, "found": [asdict(one) for one in ones]}

        comparisons, new = gathered(work, SECONDS, options)
        number += comparisons
        found += new
        print(f"{min(place + CHUNK, len(ops))} of {len(ops)} operators, {len(found)} differences", file=sys.stderr)
    wrong = unexpected(found)
    report(wrong)
    for reason, count in sorted(reasons(found).items()):
        print(f"{count:6}  {reason}")
    seconds = time.monotonic() - start
    print(f"{len(ops)} operators, {number} comparisons in {seconds:.0f} s: {len(wrong)} differences unexplained")
    return len(wrong)


def report(wrong: list[Any]) -> None:
    """One line for an operator and kind of difference, with the variants and the first detail."""
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for one in wrong:
        groups.setdefault((one.operator, one.kind, one.axis), []).append(one)
    for (operator, kind, axis), ones in groups.items():
        variants = Counter(f"{one.variant} [{one.dtype}]" for one in ones)
        print(f"{operator} on {axis}: {kind}; {', '.join(list(variants)[:6])}: {ones[0].detail}")


def programs(seeds: range) -> int:
    """Compare random programs, and print the seeds that differ; their number."""
    from tools.differential.programs import compare

    wrong = compare(seeds)
    for line in wrong:
        print(line)
    print(f"{len(seeds)} random programs: {len(wrong)} differ")
    return len(wrong)
