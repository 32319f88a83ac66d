"""The Trainer against a hand-written loop, on random configurations: they agree, or the Trainer refuses in a sentence.

    python -m tools.differential trainer --seed 1 --cpu 500 --gpu 200 --dp 100 --ddp 100 --fsdp 100
    python -m tools.differential trainer --seed 1 --one ddp/17

Prints the counts of every strategy, and the configuration of each difference; exits with 1 where there is one.
"""

from __future__ import annotations

import argparse
import collections
import time
from collections.abc import Sequence

from tools.differential.trainer.compare import described
from tools.differential.trainer.ranks import Name, verdicts
from tools.differential.trainer.space import STRATEGIES, draw


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    for strategy, count in zip(STRATEGIES, (500, 200, 100, 100, 100), strict=True):
        parser.add_argument(f"--{strategy}", type=int, default=count, metavar="COUNT")
    parser.add_argument("--one", metavar="STRATEGY/NUMBER", nargs="+", help="these configurations of that seed alone")
    parser.add_argument("--quiet", action="store_true", help="no line for refusals")
    options = parser.parse_args(words)
    names = [Name(strategy, number) for strategy in STRATEGIES for number in range(getattr(options, strategy))]
    if options.one:
        names = [Name(strategy, int(number)) for strategy, number in (one.split("/") for one in options.one)]
    return report(options.seed, names, bool(options.one), options.quiet)


def report(seed: int, names: list[Name], one: bool, quiet: bool) -> int:
    counts: dict[str, collections.Counter[str]] = {name.strategy: collections.Counter() for name in names}
    begun = time.monotonic()
    for name, verdict in verdicts(seed, names):
        counts[name.strategy][verdict.kind] += 1
        counts[name.strategy]["resumes"] += verdict.resumes
        if verdict.kind == "agrees" and not one:
            continue
        if one or verdict.kind == "differs":
            print(f"{verdict.kind}: --seed {seed} --one {name}\n    {described(draw(*name, seed))}")
            for line in verdict.lines:
                print(f"    {line}", flush=True)
        elif not quiet:
            print(f"refused: --seed {seed} --one {name}: {verdict.lines[0]}", flush=True)
    for strategy, count in counts.items():
        kinds = "agrees", "refused", "differs", "resumes"
        print(f"{strategy:5}", ", ".join(f"{count[kind]} {kind}" for kind in kinds))
    print(f"{time.monotonic() - begun:.0f} s")
    return int(any(count["differs"] for count in counts.values()))
