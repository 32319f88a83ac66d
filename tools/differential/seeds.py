"""Random cases that a seed decides, judged one after the other: what compiled functions, kernels and programs share."""

from __future__ import annotations

import argparse
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence

EVERY_S = 20.0
"""How often a run says how far it is: one that ends early goes on from there with `FIRST:END`."""
RAISED = "raised"
"""How a line begins that says what a case raised."""


def seeds_of(text: str) -> range:
    """The seeds of FIRST:END, or of one number."""
    first, _, end = text.partition(":")
    return range(int(first), int(end or int(first) + 1))


def arguments(words: Sequence[str], what: str, most: int, doc: str) -> range:
    """The seeds that a command line asks for with `--WHAT FIRST:END`."""
    parser = argparse.ArgumentParser(prog=f"make differential-{what}", description=doc.splitlines()[0])
    parser.add_argument(f"--{what}", default=f"0:{most}", metavar="FIRST:END", dest="seeds", help=f"seeds (0:{most})")
    return seeds_of(parser.parse_args(words).seeds)


def judged(
    what: str, seeds: range, judge: Callable[[int], Sequence[str]], described: Callable[[int], object]
) -> Counter[str]:
    """Judge each seed's case and print what is wrong; how many cases have a line that begins so, by its first word.

    The count of "" is that of cases with a line at all.
    """
    counts: Counter[str] = Counter()
    begin = said = time.monotonic()
    for seed in seeds:
        if time.monotonic() - said > EVERY_S:
            said = time.monotonic()
            print(f"{what}s before {seed} of {seeds.stop}: {counts['']} differ", flush=True)
        try:
            told = judge(seed)
        except (RuntimeError, TypeError, ValueError, AssertionError):  # the finding is that it raises
            told = [f"{RAISED} {traceback.format_exc(limit=-3)}"]
        for one in told:
            print(f"{what} {seed} {described(seed)}: {one}", flush=True)
        counts.update({one.split()[0] for one in told} | ({""} if told else set()))
    print(f"{len(seeds)} {what}s in {(time.monotonic() - begin) / 60:.1f} minutes, {counts['']} of them differ")
    return counts
