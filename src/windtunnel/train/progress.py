"""A progress bar that shows only what has reached the host, drawn by the training thread about twice a second."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Any

INTERVAL_S = 0.5


if TYPE_CHECKING:
    from rich.console import Console


class Progress:
    """On a terminal, a bar for the current epoch and a line per finished one; elsewhere only the lines (stderr).

    `draw` is called once `next_draw` (by time.monotonic) is reached; it never touches the device. The bar appears
    after half a second, so a short training does not pay for it.
    """

    def __init__(
        self, enabled: bool, max_epochs: int, steps_per_epoch: int | None, console: Console | None = None
    ) -> None:
        self.enabled = enabled
        self._max_epochs, self._steps = max_epochs, steps_per_epoch
        self._console = console
        self._lines: list[str] = []
        self._bar: Any = None
        self._task: object = None
        self._on_terminal = enabled and (console is not None or sys.stderr.isatty())
        self._drawn = (time.monotonic(), 0)
        self.next_draw = self._drawn[0] + INTERVAL_S if self._on_terminal else math.inf

    def _begin_bar(self) -> None:
        from rich.console import Console
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
        console = self._console or Console(stderr=True)
        self._bar = Bar(*columns, console=console, auto_refresh=False, transient=True)
        self._task = self._bar.add_task("", total=self._steps, epoch="", rate="", values="")
        self._bar.start()

    def draw(self, epoch: int, step_in_epoch: int, step: int, values: dict[str, float]) -> None:
        """Show `step_in_epoch` of `epoch` (counted from 0), steps per second, and the newest values on the host."""
        if self._bar is None:
            self._begin_bar()
        now = time.monotonic()
        elapsed = now - self._drawn[0]
        rate = f"{(step - self._drawn[1]) / elapsed:.0f}/s" if elapsed > 0 and step > self._drawn[1] else ""
        self._drawn = (now, step)
        self._print_lines()
        self._bar.update(
            self._task,
            completed=step_in_epoch,
            epoch=f"{epoch + 1}/{self._max_epochs}",
            rate=rate,
            values=_line(values),
        )
        self._bar.refresh()
        self.next_draw = time.monotonic() + INTERVAL_S

    def epoch_line(self, epoch: int, values: dict[str, float]) -> None:
        if not self.enabled:
            return
        self._lines.append(f"epoch {epoch + 1}/{self._max_epochs}  {_line(values)}")
        if not self._on_terminal or time.monotonic() >= self.next_draw:
            self._print_lines()

    def _print_lines(self) -> None:
        """Printing above a bar costs some ms: it is done once for all the lines of half a second."""
        text = "\n".join(self._lines)
        if self._lines and self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        elif self._lines:
            print(text, file=self._console.file if self._console is not None else sys.stderr)
        self._lines.clear()

    def note(self, text: str) -> None:
        if self.enabled:
            self._lines.append(text)
            self._print_lines()

    def close(self) -> None:
        self._print_lines()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self.next_draw = math.inf


def _line(values: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())
