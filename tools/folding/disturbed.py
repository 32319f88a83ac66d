"""Runs programs again and again while their ranks are stopped at random moments: no run may differ from the first.

    python -m tools.folding.disturbed [--gpu H100] [--runs N] [--seed N] PROGRAM ...

What a machine does with its processes (which rank comes first, how long one does not run at all, when Python collects
garbage) is no part of what a program does, so every row, its times and what its memory held must be the same.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path

from tools.folding.exact import differences, ranks_of, run
from tools.folding.forks import prepare
from windtunnel.ranks.fold import EVERY, Fold

STOPPED_S = (0.01, 0.05, 0.3, 1.2, 2.5)
RUNNING_S = (0.001, 0.005, 0.02, 0.1, 0.4)
MOST_SAID = 4


@contextmanager
def stopping(processes: Set[int], chance: random.Random) -> Iterator[None]:
    """Meanwhile one process after the other is stopped, and goes on later."""
    over, ranks = threading.Event(), sorted(processes)

    def stop() -> None:
        while not over.wait(chance.choice(RUNNING_S)):
            rank = chance.choice(ranks)
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGSTOP)
                over.wait(chance.choice(STOPPED_S))
                os.kill(rank, signal.SIGCONT)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def main() -> int:
    """Disturb the programs of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("programs", nargs="+")
    options = parser.parse_args()
    prepare()
    usual, wrong = gc.get_threshold(), 0
    for program in options.programs:
        began, ranks = time.monotonic(), ranks_of(program)
        first, unlike = run([program], Fold(ranks, ranks, EVERY), options.gpu), list[str]()
        for number in range(options.seed, options.seed + options.runs):
            chance = random.Random(number)
            gc.set_threshold(chance.randrange(20, 3000), chance.randrange(2, 20), chance.randrange(2, 20))
            again = run([program], Fold(ranks, ranks, EVERY), options.gpu, lambda found: stopping(found, chance))  # noqa: B023  it is over before the next one
            gc.set_threshold(*usual)
            unlike += [f"seed {number}: {sentence}" for sentence in differences(again, first)]
        took = time.monotonic() - began
        print(
            f"{'UNLIKE' if unlike else 'equal'} {Path(program).name} in {options.runs} runs ({took:.1f} s)", flush=True
        )
        for sentence in unlike[:MOST_SAID]:
            print(f"    {sentence}", flush=True)
        wrong += bool(unlike)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
