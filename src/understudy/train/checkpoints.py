"""When checkpoints are written, which are kept, and the thread that writes them."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from understudy.errors import UsageError
from understudy.train.checkpoint import Snapshot, folders, newest, remove_folder, write_checkpoint, write_small

BEST = "best.json"


class Checkpoints:
    """Checkpoints in `directory`: every `every_steps` updates and every `every_epochs` epochs (None: not).

    The newest `keep` and the best by `monitor` stay. With `asynchronous` the training goes on as soon as the state is
    copied; one checkpoint is written at a time. Processes on several machines need a `directory` that all can read.
    """

    def __init__(
        self,
        directory: str | Path = "checkpoints",
        *,
        every_steps: int | None = None,
        every_epochs: int | None = 1,
        keep: int = 3,
        monitor: str = "val_loss",
        mode: Literal["min", "max"] = "min",
        asynchronous: bool = True,
    ) -> None:
        if keep < 1 or (every_steps is not None and every_steps < 1) or (every_epochs is not None and every_epochs < 1):
            raise UsageError("keep, every_steps and every_epochs of Checkpoints are numbers of at least 1.")
        if mode not in ("min", "max"):
            raise UsageError(f"mode {mode!r} is unknown: choose 'min' or 'max'.")
        self.directory = Path(directory)
        self.every_steps, self.every_epochs, self.keep = every_steps, every_epochs, keep
        self.monitor, self.mode, self.asynchronous = monitor, mode, asynchronous
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    def exist(self) -> bool:
        return bool(folders(self.directory))

    def save(self, state: Mapping[str, object], step: int, epoch_ended: bool, metrics: Mapping[str, float]) -> None:
        """Copy `state` and begin to write it. Waits for, and raises the error of, the write before."""
        snapshot = Snapshot(state)
        self.wait()
        folder = self.directory / f"step-{step:010d}{'-end' if epoch_ended else ''}"
        if not self.asynchronous:
            self._write(folder, snapshot, dict(metrics))
            return
        if self._writer is None:
            self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing = self._writer.submit(self._write, folder, snapshot, dict(metrics))

    def _write(self, folder: Path, snapshot: Snapshot, metrics: dict[str, float]) -> None:
        write_checkpoint(folder, snapshot)
        best = self.best()
        value = metrics.get(self.monitor)
        if value is not None and math.isfinite(value) and (best is None or self._is_better(value, best[1])):
            best = (folder, value)
            content = {"checkpoint": folder.name, "monitor": self.monitor, "value": value}
            write_small(self.directory / BEST, content)
        for old in folders(self.directory)[: -self.keep]:
            if best is None or old != best[0]:
                remove_folder(old)
        for left in (*self.directory.glob(".draft-*"), *self.directory.glob(".trash-*")):
            shutil.rmtree(left) if left.is_dir() else left.unlink()

    def _is_better(self, value: float, former: float) -> bool:
        return value < former if self.mode == "min" else value > former

    def best(self) -> tuple[Path, float] | None:
        """The folder of the best checkpoint and its value of `monitor`; None where there is none yet."""
        path = self.directory / BEST
        if not path.exists():
            return None
        content = json.loads(path.read_text())
        folder = self.directory / content["checkpoint"]
        return (folder, float(content["value"])) if folder.exists() else None

    def load(self) -> dict[str, Any]:
        """The newest checkpoint that is whole: see `newest`."""
        return newest(self.directory)

    def wait(self) -> None:
        """Wait until what was saved is on disk."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        try:
            self.wait()
        finally:
            if self._writer is not None:
                self._writer.shutdown()
                self._writer = None


def make_checkpoints(checkpoint: bool | str | Path | Checkpoints) -> Checkpoints | None:
    """What the Trainer's `checkpoint` asks for."""
    if isinstance(checkpoint, bool):
        return Checkpoints() if checkpoint else None
    return checkpoint if isinstance(checkpoint, Checkpoints) else Checkpoints(checkpoint)
