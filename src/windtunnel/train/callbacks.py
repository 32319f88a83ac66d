"""Callbacks: they observe a training and may end it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from windtunnel.errors import UsageError

if TYPE_CHECKING:
    from windtunnel.train.training import Training


class Callback:
    """Override the methods you need. `trainer` offers model, optimizer, step, epoch, history and `stop()`."""

    def on_fit_start(self, trainer: Training) -> None:
        """Before the first step, with the model placed and in training mode, and a checkpoint's state loaded."""

    def on_step_end(self, trainer: Training) -> None:
        """After each update. Reading anything from the device here makes the host wait."""

    def on_epoch_end(self, trainer: Training, metrics: dict[str, float]) -> None:
        """After each epoch and its validation, with the epoch's means: "train_loss", "val_loss", ..."""

    def on_fit_end(self, trainer: Training) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint should contain: numbers, strings, lists, dicts and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class EarlyStopping(Callback):
    """End training when `monitor` has not improved by more than `min_delta` for `patience` epochs."""

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 3,
        mode: Literal["min", "max"] = "min",
        min_delta: float = 0.0,
    ) -> None:
        if mode not in ("min", "max"):
            raise UsageError(f"mode {mode!r} is unknown: choose 'min' or 'max'.")
        self.monitor, self.patience, self.mode, self.min_delta = monitor, patience, mode, min_delta
        self._forget()

    def _forget(self) -> None:
        self.best = math.inf if self.mode == "min" else -math.inf
        self.epochs_without = 0

    def on_fit_start(self, trainer: Training) -> None:
        """Start afresh with each training; a resumed one continues with the checkpoint's state."""
        if trainer.step == 0:
            self._forget()
        self._judge(trainer)

    def on_epoch_end(self, trainer: Training, metrics: dict[str, float]) -> None:
        if self.monitor not in metrics:
            raise UsageError(f"early stopping watches {self.monitor!r}, and an epoch gave only {sorted(metrics)}.")
        value = metrics[self.monitor]
        gain = self.best - value if self.mode == "min" else value - self.best
        if gain > self.min_delta:
            self.best, self.epochs_without = value, 0
            return
        self.epochs_without += 1
        self._judge(trainer)

    def _judge(self, trainer: Training) -> None:
        if self.epochs_without >= max(self.patience, 1):
            trainer.stop(f"{self.monitor} has not improved for {self.patience} epochs (best {self.best:.6g})")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "epochs_without": self.epochs_without}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.epochs_without = state["best"], state["epochs_without"]
