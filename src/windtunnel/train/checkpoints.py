"""When checkpoints are written and which are kept, and the thread that writes them."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError

from windtunnel.errors import FileFormatError, UsageError
from windtunnel.train.checkpoint import (
    Snapshot,
    age,
    folder_name,
    folders,
    newest_whole,
    read_regular,
    read_state,
    remove_folder,
    write_checkpoint,
    write_small,
)
from windtunnel.train.lock import FolderLock

BEST = "best.json"


class Checkpoints:
    """Checkpoints in `directory`: every `every_steps` updates and every `every_epochs` epochs (None: never).

    The newest `keep` and the best by `monitor` are kept. With `asynchronous`, training continues as soon as the state
    has been copied; one checkpoint is written at a time. Processes on several machines need a `directory` that all can
    read. Checkpoints newer than the one from which a training resumes are moved to `branch-1` and so on when it writes
    its first.
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
            raise UsageError("keep, every_steps and every_epochs of Checkpoints must be at least 1.")
        if mode not in ("min", "max"):
            raise UsageError(f"mode {mode!r} is unknown: choose 'min' or 'max'.")
        self.directory = Path(directory)
        self.every_steps, self.every_epochs, self.keep = every_steps, every_epochs, keep
        self.monitor, self.mode, self.asynchronous = monitor, mode, asynchronous
        self._lock = FolderLock(self.directory)
        self._begun_at: Path | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    def exist(self) -> bool:
        return bool(folders(self.directory))

    def open(self) -> None:
        """Create the folder and lock other trainings out until `close`.

        Raises UsageError if another training writes there, or the folder cannot be written to.
        """
        self._lock.acquire()

    def save(self, state: Mapping[str, object], step: int, epoch_ended: bool, metrics: Mapping[str, float]) -> None:
        """Copy `state` and start writing it. Waits for the previous write first, and raises its error if it failed."""
        snapshot = Snapshot(state)
        self.wait()
        folder = self.directory / folder_name(step, epoch_ended)
        if not self.asynchronous:
            self._write(folder, snapshot, dict(metrics))
            return
        if self._writer is None:
            self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing = self._writer.submit(self._write, folder, snapshot, dict(metrics))

    def _write(self, folder: Path, snapshot: Snapshot, metrics: dict[str, float]) -> None:
        """Write a checkpoint; a rehearsal without data replaces this."""
        try:
            snapshot.wait()
            self._refuse_nan(folder, snapshot)
            self._put_later_ones_aside()
            write_checkpoint(folder, snapshot, metrics)
            self._note_best(folder, metrics.get(self.monitor))
            self._remove_old()
        except (OSError, SafetensorError) as error:
            raise UsageError(
                f"the checkpoint {folder.name} could not be written to {self.directory} ({_reason(error)}): make room, "
                "or let this process write to it, and go on from the previous checkpoint with resume=True."
            ) from error

    def _refuse_nan(self, folder: Path, snapshot: Snapshot) -> None:
        """Refuse a state with NaNs, so that it does not displace checkpoints that can be resumed from."""
        for name, tensor in snapshot.model.items():
            numbers = tensor.is_complex() or (tensor.is_floating_point() and tensor.element_size() > 1)
            if numbers and bool(tensor.isnan().any()):
                raise UsageError(
                    f"the checkpoint {folder.name} was not written, since {name} holds NaN: go on from the "
                    "previous checkpoint with resume=True, and lower the learning rate or set gradient_clip_val if it "
                    "happens again."
                )

    def _put_later_ones_aside(self) -> None:
        """Move the checkpoints newer than the one resumed from into a separate folder, newest first."""
        begun_at, self._begun_at = self._begun_at, None
        later = [folder for folder in folders(self.directory) if begun_at is not None and age(folder) > age(begun_at)]
        if not later:
            return
        branch = next(name for n in count(1) if not (name := self.directory / f"branch-{n}").exists())
        branch.mkdir()
        best = self.best()
        if best is not None and best[0] in later:
            (self.directory / BEST).rename(branch / BEST)
        for folder in reversed(later):
            folder.rename(branch / folder.name)
        left = self._best_of_those_there()
        if left is not None and best is not None and best[0] in later:
            self._write_best(*left)

    def _note_best(self, folder: Path, value: float | None) -> None:
        best, is_noted = self._find_best()
        if value is not None and math.isfinite(value) and (best is None or self._is_better(value, best[1])):
            best, is_noted = (folder, value), False
        if is_noted:
            return
        if best is None:
            (self.directory / BEST).unlink()
        else:
            self._write_best(*best)

    def _write_best(self, folder: Path, value: float) -> None:
        content = {"checkpoint": folder.name, "monitor": self.monitor, "value": value}
        write_small(self.directory / BEST, content)

    def _remove_old(self) -> None:
        best = self.best()
        for old in folders(self.directory)[: -self.keep]:
            if best is None or old != best[0]:
                remove_folder(old)
        for left in (*self.directory.glob(".draft-*"), *self.directory.glob(".trash-*")):
            shutil.rmtree(left) if left.is_dir() else left.unlink()

    def _is_better(self, value: float, former: float) -> bool:
        return value < former if self.mode == "min" else value > former

    def best(self) -> tuple[Path, float] | None:
        """The folder of the best checkpoint and its value of `monitor`; None if there is none yet.

        If the record of it is damaged, a warning says so, and the best of the existing checkpoints is returned.
        """
        return self._find_best()[0]

    def _find_best(self) -> tuple[tuple[Path, float] | None, bool]:
        """The best checkpoint, and whether its record is undamaged."""
        path = self.directory / BEST
        try:
            content = json.loads(read_regular(path))
            name, monitor, value = Path(content["checkpoint"]), content["monitor"], float(content["value"])
            if name.name != str(name):
                raise ValueError(f"{name} is not the name of a checkpoint")
        except FileNotFoundError:
            return None, True
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            warnings.warn(f"{path} is damaged: the best of the checkpoints that are there is taken.", stacklevel=3)
            return self._best_of_those_there(), False
        found = [folder for folder in folders(self.directory) if folder.name == str(name)]
        return ((found[0], value) if found and monitor == self.monitor else None), True

    def _best_of_those_there(self) -> tuple[Path, float] | None:
        best: tuple[Path, float] | None = None
        for folder in folders(self.directory):
            try:
                value = read_state(folder).get("metrics", {}).get(self.monitor)
            except FileFormatError:
                continue
            if value is not None and (best is None or self._is_better(value, best[1])):
                best = (folder, value)
        return best

    def load(self) -> dict[str, Any]:
        """The newest complete checkpoint (see `newest`), from which the training resumes."""
        folder, state = newest_whole(self.directory)
        self.go_on_from(folder)
        return state

    def go_on_from(self, folder: Path) -> None:
        """Let the next checkpoint follow `folder`, which is one of these."""
        self._begun_at = folder

    def holds(self, folder: Path) -> bool:
        """Whether `folder` is one of these checkpoints, whichever path leads to it."""
        return folder.resolve().parent == self.directory.resolve()

    def wait(self) -> None:
        """Wait until everything saved is on disk."""
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
            self._lock.release()


def _reason(error: Exception) -> str:
    """The system's message: safetensors wraps it in a text of its own."""
    number = re.search(r"os error (\d+)", str(error))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return os.strerror(int(number[1])) if number else str(error).rstrip(".")


def make_checkpoints(checkpoint: bool | str | Path | Checkpoints) -> Checkpoints | None:
    """The checkpoints that the Trainer's `checkpoint` argument describes."""
    if isinstance(checkpoint, bool):
        return Checkpoints() if checkpoint else None
    return checkpoint if isinstance(checkpoint, Checkpoints) else Checkpoints(checkpoint)
