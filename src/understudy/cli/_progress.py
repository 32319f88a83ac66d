"""How far a plan is: a bar on a terminal with the best so far, a line a rehearsal elsewhere; on stderr."""

from __future__ import annotations

import sys
from types import TracebackType

import click
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from understudy.planning.demand import NOT_TRIED
from understudy.planning.planner import Planner, Question
from understudy.planning.result import named
from understudy.planning.rows import Work, rows_of
from understudy.reports.text import is_coloured


class Progress:
    """Shows a plan's progress while a `with` block lasts."""

    def __init__(self, question: Question, work: Work, quiet: bool = False) -> None:
        self.question = question
        self.work = work
        self.quiet = quiet
        self._known = -1
        self._bar: Bar | None = None
        if not quiet and is_coloured(sys.stderr):
            console = Console(file=sys.stderr)
            self._bar = Bar(
                TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True
            )
            self._task = self._bar.add_task("rehearsing", total=None)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, planner: Planner) -> None:
        """Say how many candidates are known and which is the best of them."""
        if self.quiet:
            return
        answers = planner.answers()
        known = sum(answer.verdict.status != NOT_TRIED for answer in answers)
        text = f"{known} of {len(answers)} candidates"
        rows = rows_of(answers, self.question, Work(self.work.steps, None, self.work.prices, self.work.goal))
        if rows and rows[0].fits:
            text += f", best so far {named(rows[0])}"
        if self._bar is not None:
            self._bar.update(self._task, description=text, total=len(answers), completed=known)
        elif known != self._known:
            click.echo(f"understudy: {text} ({planner.rehearsals} rehearsals)", err=True)
        self._known = known
