"""Damaged and hostile files of every format that windtunnel reads: `make fuzz`.

    python -m tools.fuzz                             # ten minutes, seed 0
    python -m tools.fuzz --seed 7 --seconds 60 --only trace --only snapshot
    python -m tools.fuzz --seed 7 --one trace/112    # that file again, written to the current folder, with what it does

Small files of each format are made by running a program, then mutated: bits, bytes and slices, and inside of JSON,
pickles, TOML and rows the values themselves. Each mutant goes through the commands that read its format. What is not
an answer (a result, or one sentence and exit code 2) counts: a traceback, more than TIME seconds of the processor, more
than MEMORY.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tools import ROOT
from tools.fuzz.formats import FORMATS, Seeds
from tools.fuzz.mutants import mutant
from tools.fuzz.trial import Outcome, batch

BATCH = 25
"""Mutants a process."""


def main() -> int:
    """Run as asked and print the counts; the exit status: 0 when every file got an answer, else 1."""
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="windtunnel-fuzz-") as folder:
        os.chdir(ROOT)
        os.environ["OMP_NUM_THREADS"] = "1"
        seeds = Seeds(Path(folder) / "seeds")
        if options.one:
            return again(seeds, options.seed, options.one)
        failed = run(seeds, Path(folder), options)
    for outcome in failed:
        print(f"{outcome.name}: {outcome.what}; again: make fuzz ARGS='--seed {options.seed} --one {outcome.name}'")
    return 1 if failed else 0


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="decides the mutants (0)")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to go on (600)")
    parser.add_argument("--files", type=int, default=1 << 30, help="the most files of each format")
    parser.add_argument("--only", action="append", choices=sorted(FORMATS), help="a format; all when none is named")
    parser.add_argument("--one", metavar="FORMAT/N", help="one mutant again")
    return parser.parse_args()


def run(seeds: Seeds, folder: Path, options: argparse.Namespace) -> list[Outcome]:
    """Mutants of the formats in turn until the time is over; those that got no answer."""
    begin, counts, failed = time.monotonic(), Counter[str](), list[Outcome]()
    names = options.only or list(FORMATS)
    for first in range(0, options.files, BATCH):
        for name in names:
            if time.monotonic() - begin > options.seconds:
                break
            numbers = range(first, min(first + BATCH, options.files))
            outcomes = batch(FORMATS[name], seeds, folder / "work", [(options.seed, number) for number in numbers])
            counts[name] += len(outcomes)
            failed += [outcome for outcome in outcomes if outcome.what]
        else:
            continue
        break
    bad = Counter(outcome.name.partition("/")[0] for outcome in failed)
    for name in names:
        print(f"{name:14} {counts[name]:6} files, {bad[name]} without an answer")
    print(f"{sum(counts.values())} files, {len(failed)} without an answer, in {time.monotonic() - begin:.0f} s")
    return failed


def again(seeds: Seeds, seed: int, name: str) -> int:
    """Write one mutant to the current folder, and read it."""
    kind, _, number = name.partition("/")
    file = Path(f"{seed}-{number}-{FORMATS[kind].file}").absolute()
    file.write_bytes(mutant(FORMATS[kind], seeds, seed, int(number)))
    print(f"written to {file}", file=sys.stderr)
    FORMATS[kind].read(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
