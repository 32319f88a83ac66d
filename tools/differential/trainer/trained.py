"""The same training through the Trainer."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tools.differential.trainer.outcome import TrainerOutcome
from tools.differential.trainer.pieces import (
    CLIP_NORM,
    FEATURES,
    KEYWORDS,
    Data,
    Doubling,
    Keep,
    clip_values,
    mae,
    make_loss,
    make_net,
    make_optimizer,
    make_scheduler,
    step_values,
    view,
)
from tools.differential.trainer.plain import left, numbers
from tools.differential.trainer.space import TENSOR_KINDS, Config
from windtunnel.train import Callback, Checkpoints, EarlyStopping, Module, Tensors, Trainer


class Crash(Exception):  # noqa: N818
    """What ends the first process of a training that is resumed."""


class Own(Module):
    """A Module around the network, with steps of its own."""

    def __init__(self, net: nn.Module, config: Config) -> None:
        super().__init__()
        self.net, self.config = net, config

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any) -> dict[str, torch.Tensor]:
        return step_values(self.net, batch, self.config)

    def configure_optimizers(self) -> Any:
        optimizer = make_optimizer(self.config, self.net, None)
        scheduler = make_scheduler(self.config, optimizer)
        return optimizer if scheduler is None else (optimizer, scheduler)


class Changes(Callback):
    """What a configuration's callback does, and the crash."""

    def __init__(self, run: Run, crash_at: int) -> None:
        self.run, self.crash_at = run, crash_at

    def on_fit_start(self, trainer: Trainer) -> None:
        if self.run.config.callback == "eval norm":
            self.run.net.norm.eval()

    def on_step_end(self, trainer: Trainer) -> None:
        if self.run.config.callback == "stop" and trainer.step == 3:
            trainer.stop()
        if self.crash_at and trainer.step == self.crash_at:
            raise Crash

    def on_epoch_end(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        run, callback = self.run, self.run.config.callback
        first = len(trainer.history) == 1
        if callback == "lr":
            for group in trainer.optimizer.param_groups:
                group["lr"] *= 0.5
        elif callback == "unfreeze" and first:
            run.net.middle.requires_grad_(True)
            trainer.optimizer.add_param_group({"params": list(run.net.middle.parameters())})
        elif callback == "freeze" and first:
            run.net.first.requires_grad_(False)
        elif callback == "evaluate":
            data = run.data.val_x, run.data.val_y
            run.seen.append(trainer.evaluate(run.model, data, loss=None if run.config.own_steps else run.loss))


class Log:
    """A logger that remembers what it was given: means of some steps, and rows of epochs."""

    def __init__(self) -> None:
        self.values: dict[int, dict[str, float]] = {}
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log(self, values: dict[str, float], step: int) -> None:
        if "train_loss" in values:
            self.rows.append((step, dict(values)))
        else:
            self.values[step] = self.values.get(step, {}) | values

    def close(self) -> None: ...


def train(config: Config, rank: int = 0, crash_at: int = 0) -> TrainerOutcome:
    """Through one `fit`, or through two of which the second goes on where the first ended, or crashed after a step."""
    with ExitStack() as stack:
        folder, before = None, Log()
        if config.resume != "none":
            folder = _folder(stack, config, rank)
        if config.resume == "epochs":
            first = Run(config, rank, folder)
            first.fit(epochs=config.epochs - 1)
            before = first.log
        elif crash_at:
            first = Run(config, rank, folder, crash_at=crash_at)
            with suppress(Crash):
                first.fit()
            before = first.log
        run = Run(config, rank, folder, other=folder is not None and any(folder.iterdir()))
        run.fit(resume=config.resume != "none")
        return run.outcome(before)


def _folder(stack: ExitStack, config: Config, rank: int) -> Path:
    box = [stack.enter_context(tempfile.TemporaryDirectory()) if rank == 0 else ""]
    if config.world > 1:
        torch.distributed.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return Path(box[0])


class Run:
    """One process's part in a training."""

    def __init__(self, config: Config, rank: int, folder: Path | None, crash_at: int = 0, other: bool = False) -> None:
        self.config, self.rank = config, rank
        self.data = Data(config, rank)
        self.net, self.loss = make_net(config, other), make_loss(config)
        self.model: nn.Module = Own(self.net, config) if config.own_steps else self.net
        self.seen: list[Any] = []
        self.log = Log()
        callbacks: list[Callback] = [Changes(self, crash_at)]
        if config.patience:
            monitor = "train_loss" if config.validation == "none" else "val_loss"
            callbacks.append(EarlyStopping(monitor, config.patience))
        every = config.save_every if config.resume == "crash" else None
        self.checkpoint = Checkpoints(folder, every_steps=every, asynchronous=False) if folder is not None else False
        self.callbacks = callbacks

    def fit(self, epochs: int = 0, resume: bool = False) -> None:
        config = self.config
        self.trainer = Trainer(
            epochs or config.epochs,
            config.num_gpus,
            CLIP_NORM if config.clip == "norm" else 0,
            precision=config.precision,
            strategy={"cpu": "single", "gpu": "single"}.get(config.strategy, config.strategy),
            accumulate=config.accumulate,
            graph=config.graph,
            checkpoint=self.checkpoint,
            logger=[self.log],
            progress=False,
            callbacks=self.callbacks,
            seed=config.seed,
            log_every=config.log_every,
        )
        if config.clip == "value":
            clip_values(self.net)
        self.source = self.training()
        options: dict[str, Any] = {"batch_size": config.batch_size, "resume": resume}
        if not config.own_steps:
            options |= {"loss": self.loss, "metrics": self.metrics()}
        options |= self.optimization()
        self.trainer.fit(self.model, self.source, self.validating(), **options)

    def training(self) -> Any:
        config, source = self.config, self.data.training()
        if config.data == "Tensors":
            options = {"batch_size": config.batch_size, "shuffle": config.shuffle, "drop_last": config.drop_last}
            return Tensors(*source, **options)
        if config.data == "TensorDataset":
            return TensorDataset(*source)
        if config.data == "TensorDataset subclass":
            return source.dataset
        return source

    def validating(self) -> Any:
        source = self.data.validating()
        return Tensors(*source, batch_size=32) if self.config.validation == "Tensors" else source

    def metrics(self) -> dict[str, Any]:
        from torchmetrics import MeanAbsoluteError  # and matplotlib with it

        found = {"mae": mae, "view": view, "torchmetrics": MeanAbsoluteError(), "keep": Keep()}
        return {name: found[name] for name in self.config.metrics}

    def optimization(self) -> dict[str, Any]:
        config = self.config
        if config.optimizer_as == "configured":
            return {"schedule_every": config.schedule_every}
        kind, keywords = KEYWORDS[config.optimizer]
        options: dict[str, Any] = {"optimizer": lambda parameters: kind(parameters, **keywords)}
        if config.optimizer_as != "factory":
            device = torch.device("cuda", self.rank) if config.num_gpus else torch.device("cpu")
            self.net.to(device)
            if isinstance(self.loss, nn.Module):
                self.loss.to(device)
            options["optimizer"] = make_optimizer(config, self.net, self.loss)
        if config.scheduler != "none":
            options |= {
                "scheduler": lambda optimizer: make_scheduler(config, optimizer),
                "schedule_every": config.schedule_every,
            }
        return options

    def outcome(self, before: Log | None = None) -> TrainerOutcome:
        """What this run leaves; `before` is the log of the one that it goes on from."""
        trainer, config = self.trainer, self.config
        predictions = []
        if config.predict != "none":
            source = self.data.predicting()
            source = Tensors(source, batch_size=32) if config.predict == "Tensors" else source
            predictions = trainer.predict(self.model, source)
        optimizer = trainer.optimizer
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        before, rows = before or Log(), self.log.rows
        rows = [row for row in before.rows if not rows or row[0] < rows[0][0]] + rows
        return TrainerOutcome(
            weights=self.whole(self.net),
            loss_weights=self.whole(self.loss) if isinstance(self.loss, nn.Module) else [],
            optimizer=[self.state(optimizer, parameter) for parameter in parameters],
            groups=[numbers(group) for group in optimizer.param_groups],
            scheduler=numbers(trainer.scheduler.state_dict()) if trainer.scheduler is not None else {},
            history=trainer.history,
            logged=before.values | self.log.values,
            logged_before=before.values,
            rows=rows,
            seen=self.seen,
            predictions=predictions,
            modes=[module.training for module in self.net.modules()],
            left=left(self.data, self.source),
            steps=trainer.step,
        )

    def whole(self, module: nn.Module) -> list[torch.Tensor]:
        return [self.full(tensor) for tensor in (*module.parameters(), *module.buffers())]

    def full(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.trainer.placement.full(tensor).detach().cpu().clone()

    def state(self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> dict[str, Any]:
        state = optimizer.state.get(parameter, {})
        return {key: self.full(v) if isinstance(v, torch.Tensor) else v for key, v in state.items()}


__all__ = ["FEATURES", "TENSOR_KINDS", "Doubling", "train"]
