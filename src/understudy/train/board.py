"""The documents' board: a small line chart that grows while a model trains, live in a notebook, else a PNG file.

Drawn with Pillow, which TensorBoard brings along, so that no plotting library is needed.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 40
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")


class Board:
    """Points by curve. `xlim`, `ylim` are (low, high), or None to fit. `save` writes a PNG, `show` updates a cell."""

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
        """Add a point to curve `label`; with `every_n`, the mean of each n of them. `y` is a number on the host."""
        waiting = self._waiting.setdefault(label, [])
        waiting.append((float(x), float(y)))
        if len(waiting) < every_n:
            return
        mean = tuple(sum(values) / len(values) for values in zip(*waiting, strict=True))
        self.curves.setdefault(label, []).append((mean[0], mean[1]))
        waiting.clear()

    def png(self) -> bytes:
        """The chart as a PNG file."""
        from PIL import Image, ImageDraw

        scale = 2  # drawn larger and shrunk, which smooths the lines
        image = Image.new("RGB", (WIDTH * scale, HEIGHT * scale), "white")
        pen = ImageDraw.Draw(image)
        x_low, x_high = self._limits(self.xlim, 0)
        y_low, y_high = self._limits(self.ylim, 1)

        def place(x: float, y: float) -> tuple[float, float]:
            across = LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
            down = HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
            return across * scale, down * scale

        self._draw_axes(pen, place, scale)
        for index, (label, points) in enumerate(self.curves.items()):
            colour = COLOURS[index % len(COLOURS)]
            path = [place(x, y) for x, y in points if math.isfinite(y)]
            if len(path) > 1:
                pen.line(path, fill=colour, width=2 * scale, joint="curve")
            for x, y in path if len(path) < 40 else ():
                pen.ellipse((x - 2 * scale, y - 2 * scale, x + 2 * scale, y + 2 * scale), fill=colour)
            spot = ((WIDTH - RIGHT - 8) * scale, (TOP + 8 + 16 * index) * scale)
            pen.text(spot, label, fill=colour, anchor="rt", font_size=12 * scale)
        file = io.BytesIO()
        image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).save(file, "PNG")
        return file.getvalue()

    def _draw_axes(self, pen: Any, place: Any, scale: int) -> None:
        x_limits, y_limits = self._limits(self.xlim, 0), self._limits(self.ylim, 1)
        size = 11 * scale
        for value in _ticks(*y_limits):
            left, right = place(x_limits[0], value), place(x_limits[1], value)
            pen.line((left, right), fill="#e4e4e4", width=scale)
            pen.text((left[0] - 6 * scale, left[1]), f"{value:g}", fill="#444444", anchor="rm", font_size=size)
        for value in _ticks(*x_limits):
            spot = place(value, y_limits[0])
            pen.text((spot[0], spot[1] + 6 * scale), f"{value:g}", fill="#444444", anchor="mt", font_size=size)
        corners = (place(x_limits[0], y_limits[1]), place(x_limits[0], y_limits[0]), place(x_limits[1], y_limits[0]))
        pen.line(corners, fill="#444444", width=scale)
        middle = ((LEFT + WIDTH - RIGHT) / 2 * scale, (HEIGHT - 4) * scale)
        pen.text(middle, self.xlabel, fill="#444444", anchor="mb", font_size=size)
        pen.text((4 * scale, 2 * scale), self.ylabel, fill="#444444", anchor="lt", font_size=size)

    def _limits(self, given: Sequence[float] | None, axis: int) -> tuple[float, float]:
        values = [point[axis] for points in self.curves.values() for point in points if math.isfinite(point[axis])]
        low, high = given if given else (min(values, default=0.0), max(values, default=1.0))
        if low == high:
            low, high = low - 0.5, high + 0.5
        margin = 0.0 if given else (high - low) * 0.05
        return low - margin, high + margin

    def save(self, path: str | Path) -> Path:
        """Write the chart to `path` as a PNG file."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.png())
        return path

    def show(self) -> bool:
        """Draw or update the chart in the notebook's cell; False where there is no notebook."""
        if not in_notebook():
            return False
        from IPython.display import Image, display

        image = Image(data=self.png())
        if self._cell is None:
            self._cell = display(image, display_id=True)
        else:
            self._cell.update(image)
        return True


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel, which can show pictures."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return type(get_ipython()).__name__ == "ZMQInteractiveShell"


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers from low to high."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step)
    return [round(index * step, 12) for index in range(first, math.floor(high / step) + 1)]
