"""The check `ranks-differ`: ranks of a cluster that were taken to do the same, and do not."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Finding, Severity
from windtunnel.trace.operation import Note, Site, written
from windtunnel.trace.trace import Trace


class RanksDiffer(NoteCheck):
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

    def group(self, note: Note) -> str:
        """Each pair of ranks is a finding of its own."""
        return str(note.detail)

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding a pair, with the other rank's line."""
        return [
            finding._replace(other=Site(line.word("other_file"), line.number("other_line")), times=1)
            for finding, line in zip(super().findings(trace), self.lines.values(), strict=True)
        ]

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
