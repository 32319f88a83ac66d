"""How far long work is, on stderr: a bar on a terminal; elsewhere nothing, and of a plan a line a rehearsal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

import click
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from windtunnel.planning.demand import NOT_TRIED
from windtunnel.planning.planner import Planner, Question
from windtunnel.planning.result import named
from windtunnel.planning.rows import Work, rows_of
from windtunnel.reports.text import is_coloured
from windtunnel.trace.units import plural


@contextmanager
def progress_of(what: str, total: int | None = None) -> Iterator[Callable[[str], None]]:
    """A bar of so many parts while the block lasts; what is yielded is called with the name of each that begins.

    It is drawn when it is told something and by no thread, so that it may stand around an emulation: one thread more
    would be one of the emulated program's.
    """
    if not is_coloured(sys.stderr):
        yield lambda part: None
        return
    console = Console(file=sys.stderr)
    bar = Bar(TextColumn("{task.description}"), BarColumn(), console=console, transient=True, auto_refresh=False)
    begun = -1
    with bar:
        task = bar.add_task(what, total=total)

        def tell(part: str) -> None:
            nonlocal begun
            begun += 1
            bar.update(task, description=f"{what}: {part}", completed=begun, refresh=True)

        bar.refresh()
        yield tell


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
            click.echo(f"windtunnel: {text} ({plural(planner.rehearsals, 'rehearsal')})", err=True)
        self._known = known
