"""The documents' board: a small line chart that grows while a model trains, live in a notebook or as a PNG file."""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.errors import UsageError

SIZE_INCHES, DOTS_PER_INCH = (4.8, 3.0), 100  # 480 by 300 points


if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Board:
    """Points of each curve. `xlim`, `ylim` are (low, high), or None to fit. `save` writes a PNG, `show` updates a cell.

    It is drawn with Matplotlib but without pyplot, so the program's figures and its choice of backend are left alone.
    """

    def __init__(
        self,
        xlabel: str = "epoch",
        ylabel: str = "",
        xlim: Sequence[float] | None = None,
        ylim: Sequence[float] | None = None,
    ) -> None:
        self.xlabel, self.ylabel = xlabel, ylabel
        self.xlim, self.ylim = xlim, ylim
        self.curves: dict[str, list[tuple[float, float]]] = {}
        self._waiting: dict[str, list[tuple[float, float]]] = {}
        self._cell: Any = None

    def draw(self, x: float, y: float, label: str, every_n: int = 1) -> None:
        """Add a point to curve `label`; with `every_n`, the mean of every n points. `y` is a number on the host."""
        waiting = self._waiting.setdefault(label, [])
        waiting.append((float(x), float(y)))
        if len(waiting) < every_n:
            return
        mean = tuple(sum(values) / len(values) for values in zip(*waiting, strict=True))
        self.curves.setdefault(label, []).append((mean[0], mean[1]))
        waiting.clear()

    def figure(self) -> Figure:
        """The chart as a `matplotlib.figure.Figure`. Raises UsageError where Matplotlib is not installed."""
        require_matplotlib()
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
        axes = figure.add_subplot(xlabel=self.xlabel, ylabel=self.ylabel, axisbelow=True)
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10]))
        axes.grid(axis="y", color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
        for label, points in self.curves.items():
            finite = [point for point in points if math.isfinite(point[1])]
            xs, ys = zip(*finite, strict=True) if finite else ((), ())
            axes.plot(xs, ys, label=label, marker="." if len(finite) < 40 else None)
        if self.xlim is not None:
            axes.set_xlim(*self.xlim)
        if self.ylim is not None:
            axes.set_ylim(*self.ylim)
        if self.curves:
            axes.legend(frameon=False)
        return figure

    def png(self) -> bytes:
        """The chart as a PNG file of 480 by 300 points."""
        file = io.BytesIO()
        self.figure().savefig(file, format="png")
        return file.getvalue()

    def save(self, path: str | Path) -> Path:
        """Write the chart to `path` as a PNG file."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.png())
        return path

    def show(self) -> bool:
        """Draw or update the chart in the notebook's cell; False outside notebooks."""
        if not in_notebook():
            return False
        from IPython.display import Image, display

        image = Image(data=self.png())
        if self._cell is None:
            self._cell = display(image, display_id=True)
        else:
            self._cell.update(image)
        return True


def require_matplotlib() -> None:
    """Raise UsageError if Matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "the board is drawn with Matplotlib, which is not installed: `pip install matplotlib`, or train with "
            "board=False."
        )


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel, which can show pictures."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return type(get_ipython()).__name__ == "ZMQInteractiveShell"
