"""A progress bar that only shows what has reached the host, drawn by the training thread about twice a second."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

INTERVAL_S = 0.5


class Progress:
    """On a terminal a bar for the epoch and a line for each one that has ended; elsewhere the lines alone (stderr).

    `draw` is called where `due()` says so; it never touches the device.
    """

    def __init__(self, enabled: bool, max_epochs: int, steps_per_epoch: int | None, console: Any = None) -> None:
        self.enabled = enabled
        self._max_epochs, self._steps = max_epochs, steps_per_epoch
        self._console = console
        self._bar: Any = None
        self._task: Any = None
        self.next_draw = math.inf
        if not enabled:
            return
        if console is None:
            if not sys.stderr.isatty():
                return
            from rich.console import Console

            self._console = Console(stderr=True)
        self._begin_bar()

    def _begin_bar(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[values]}"),
        )
        self._bar = Bar(*columns, console=self._console, auto_refresh=False, transient=True)
        self._task = self._bar.add_task("", total=self._steps, epoch="", rate="", values="")
        self._bar.start()
        self._drawn = (time.monotonic(), 0)
        self.next_draw = self._drawn[0] + INTERVAL_S

    def draw(self, epoch: int, step_in_epoch: int, step: int, values: dict[str, float]) -> None:
        """Show `step_in_epoch` of `epoch` (counted from 0), steps per second, and the newest values on the host."""
        now = time.monotonic()
        elapsed = now - self._drawn[0]
        rate = f"{(step - self._drawn[1]) / elapsed:.0f}/s" if elapsed > 0 and step > self._drawn[1] else ""
        self._drawn = (now, step)
        self.next_draw = now + INTERVAL_S
        self._bar.update(
            self._task,
            completed=step_in_epoch,
            epoch=f"{epoch + 1}/{self._max_epochs}",
            rate=rate,
            values=_line(values),
        )
        self._bar.refresh()

    def epoch_line(self, epoch: int, values: dict[str, float]) -> None:
        if not self.enabled:
            return
        text = f"epoch {epoch + 1}/{self._max_epochs}  {_line(values)}"
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr)

    def note(self, text: str) -> None:
        if self.enabled:
            print(text, file=sys.stderr)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self.next_draw = math.inf


def _line(values: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())
