"""The Trainer against a hand-written loop, on random configurations: they agree, or the Trainer refuses in a sentence.

    python tools/differential_trainer --seed 1 --cpu 500 --gpu 200 --dp 100 --ddp 100 --fsdp 100
    python tools/differential_trainer --seed 1 --one ddp/17

Prints the counts of every strategy, and the configuration of each difference; exits with 1 where there is one.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from ranks import verdicts
from space import STRATEGIES, draw


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    for strategy, count in zip(STRATEGIES, (500, 200, 100, 100, 100), strict=True):
        parser.add_argument(f"--{strategy}", type=int, default=count, metavar="COUNT")
    parser.add_argument("--one", metavar="STRATEGY/NUMBER", help="one configuration of that seed alone")
    parser.add_argument("--quiet", action="store_true", help="no line for refusals")
    options = parser.parse_args()
    chosen = {strategy: list(range(getattr(options, strategy))) for strategy in STRATEGIES}
    if options.one:
        strategy, number = options.one.split("/")
        chosen = {strategy: [int(number)]}
    return report(options.seed, chosen, bool(options.one), options.quiet)


def report(seed: int, chosen: dict[str, list[int]], one: bool, quiet: bool) -> int:
    from compare import described

    counts: dict[str, collections.Counter[str]] = {}
    for strategy, numbers in chosen.items():
        counts[strategy] = collections.Counter()
        begun = time.monotonic()
        for number, verdict in verdicts(seed, strategy, numbers):
            counts[strategy][verdict.kind] += 1
            if verdict.kind == "differs" or one or (verdict.kind == "refused" and not quiet):
                print(f"{verdict.kind}: --seed {seed} --one {strategy}/{number}", flush=True)
                if verdict.kind == "differs" or one:
                    print(f"    {described(draw(strategy, seed, number))}")
                for line in verdict.lines:
                    print(f"    {line}", flush=True)
        counts[strategy]["seconds"] = round(time.monotonic() - begun)
    for strategy, count in counts.items():
        kinds = ", ".join(f"{count[kind]} {kind}" for kind in ("agrees", "refused", "differs"))
        print(f"{strategy:5} {kinds} ({count['seconds']} s)")
    return int(any(count["differs"] for count in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
