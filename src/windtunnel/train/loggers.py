"""Loggers for the numbers of a training: a CSV file, TensorBoard's event files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO


class Logger(Protocol):
    """Anything with these two methods."""

    def log(self, values: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


if TYPE_CHECKING:
    from _csv import Writer as CSVWriter


class CSVLogger:
    """One row per (step, name) in `directory/metrics.csv`: step, name, value. Rows of an earlier run are kept."""

    def __init__(self, directory: str | Path) -> None:
        self.path = Path(directory) / "metrics.csv"
        self._file: TextIO | None = None
        self._writer: CSVWriter | None = None

    def log(self, values: dict[str, float], step: int) -> None:
        if self._file is None or self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            begins = not self.path.exists()
            self._file = self.path.open("a", newline="", encoding="utf-8")
            self._writer = csv.writer(self._file)
            if begins:
                self._writer.writerow(("step", "name", "value"))
        self._writer.writerows((step, name, repr(value)) for name, value in values.items())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorBoardLogger:
    """Scalars in TensorBoard's event files: `tensorboard --logdir DIRECTORY` shows them."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._writer: Any = None

    def log(self, values: dict[str, float], step: int) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # takes 0.15 s to import

            writer: Any = SummaryWriter
            self._writer = writer(log_dir=str(self.directory))
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def make_loggers(logger: bool | str | Path | Logger | list[Logger]) -> list[Logger]:
    """The loggers for the Trainer's `logger` argument: none, CSV and TensorBoard in a folder, or those given."""
    if logger is False:
        return []
    if logger is True:
        logger = "logs"
    if isinstance(logger, str | Path):
        return [CSVLogger(logger), TensorBoardLogger(logger)]
    return list(logger) if isinstance(logger, list) else [logger]
