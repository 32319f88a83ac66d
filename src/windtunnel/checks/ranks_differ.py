"""The check `ranks-differ`: ranks of a cluster that were taken to do the same, and do not."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NotedLine
from windtunnel.checks._ranks import PairCheck
from windtunnel.trace.finding import Severity
from windtunnel.trace.operation import written


class RanksDiffer(PairCheck):
    """Ranks of a cluster do different things, where one was taken to stand for the other.

    ## What it does
    With `--cluster` few processes play many ranks, and further ranks are played to compare them with those that stand
    for them: their operators, sizes, types, groups, peers, lines and peaks of memory. Reports the first difference,
    with both lines. It is information where each of the two was then played for itself, so that times and memory are
    right; it is an error where the cluster is too large for that.

    ## Why it is bad
    Times and memory of the ranks that were not played are not those that are reported. On hardware all ranks wait for
    the one that does most.

    ## Example
    ```python
    if rank == world_size - 1:
        evaluate(model)  # the others wait for it in the next collective
    ```

    ## Use instead
    ```python
    evaluate(model)  # on every rank, each with its part of the data
    ```
    """

    code: ClassVar = "ranks-differ"

    def judge(self, line: NotedLine) -> Severity:
        """Whether somebody's times are wrong."""
        return "info" if line.number("apart") else "error"

    def message(self, line: NotedLine) -> str:
        """What each of them does."""
        return (
            f"rank {line.number('rank')} {_does(line, 'does', '')}, where rank {line.number('other')} "
            f"{_does(line, 'other_does', 'other_')}"
        )

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        if line.number("apart"):
            return "nothing: ranks that do not do the same were played by processes of their own"
        return "let all ranks do the same, or give a smaller --cluster with --check-fold all, which plays each rank"


def _does(line: NotedLine, what: str, whose: str) -> str:
    file = line.word(f"{whose}file")
    return f"does {line.word(what)}" + (f" at or after {written(file, line.number(f'{whose}line'))}" if file else "")
