"""The Trainer: `Trainer(max_epochs=10, num_gpus=1).fit(model, train_loader, val_loader, loss=..., optimizer=...)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.train import build
from windtunnel.train.board import Board, require_matplotlib
from windtunnel.train.callbacks import Callback
from windtunnel.train.checkpoint import newest_whole
from windtunnel.train.checkpoints import Checkpoints, make_checkpoints
from windtunnel.train.data import Feed, begin_workers, generators_of_feeds, require_steps
from windtunnel.train.evaluation import evaluate, predict
from windtunnel.train.feed import make_feed
from windtunnel.train.graph import GraphStep, why_not
from windtunnel.train.hooks import TrainerBase
from windtunnel.train.layout import wants_channels_last
from windtunnel.train.loggers import Logger, make_loggers
from windtunnel.train.loop import Loop, Position
from windtunnel.train.metrics import Metrics
from windtunnel.train.module import Module, set_scratch_params_device
from windtunnel.train.precision import Precision, PrecisionName
from windtunnel.train.progress import Progress
from windtunnel.train.recipe import of_optimizer, of_schedule, of_training
from windtunnel.train.reproducible import deterministic_algorithms, seed_all
from windtunnel.train.state import loose_parameters
from windtunnel.train.step import ModuleStep, Step
from windtunnel.train.stop import Preempted, StopRequest
from windtunnel.train.strategies import SingleDevice, choose


class Trainer(TrainerBase):
    """Trains a model on the CPU, a GPU, several GPUs, or several machines, with the same few lines.

    - `max_epochs`: passes over the training data.
    - `num_gpus`: how many GPUs to use, at most as many as there are; 0 is the CPU. Under torchrun, one per process.
    - `gradient_clip_val`: the largest L2 norm of the whole gradient; 0 is off.
    - `precision`: "fp32", "tf32", "bf16" or "fp16".
    - `strategy`: "auto", "single", "dp", "ddp", "fsdp", or an object of windtunnel.train.strategies.
    - `accumulate`: batches per update.
    - `compile`: torch.compile the model.
    - `graph`: on one GPU, replay whole steps as a CUDA graph if that computes the same; see `graph_status`.
    - `checkpoint`: True ("checkpoints"), a folder, or Checkpoints(...); False is none.
    - `logger`: True ("logs"), a folder (CSV and TensorBoard), a Logger or a list of them; False is none.
    - `progress`: a bar on a terminal, one line per epoch elsewhere; False prints nothing.
    - `board`: a live plot in a notebook, else a PNG: True ("board.png") or a path; False is none. Needs Matplotlib.
    - `callbacks`: instances of Callback, such as EarlyStopping or your own.
    - `seed`: seeds every random generator when `fit` begins (use `seed_all` before making the model).
    - `deterministic`: PyTorch's deterministic algorithms.
    - `channels_last`: the memory format of 2-d convolutions; None uses it where it makes tensor cores faster.
    - `log_every`: steps between two reads of the losses from the device.
    """

    _wt = wt

    def __init__(
        self,
        max_epochs: int,
        num_gpus: int = 0,
        gradient_clip_val: float = 0,
        *,
        precision: PrecisionName = "fp32",
        strategy: str | SingleDevice = "auto",
        accumulate: int = 1,
        compile: bool = False,
        graph: bool = False,
        checkpoint: bool | str | Path | Checkpoints = False,
        logger: bool | str | Path | Logger | list[Logger] = False,
        progress: bool = True,
        board: bool | str | Path = False,
        callbacks: Iterable[Callback] = (),
        seed: int | None = None,
        deterministic: bool = False,
        channels_last: bool | None = None,
        log_every: int = 50,
    ) -> None:
        for name, value in (("accumulate", accumulate), ("log_every", log_every)):
            if value < 1:
                raise UsageError(f"{name}={value} is not valid: it must be a number of batches, at least 1.")
        super().__init__(max_epochs, num_gpus, gradient_clip_val)
        self.save_hyperparameters(ignore=("precision", "strategy", "callbacks"))
        self.accumulate, self.log_every, self.deterministic = accumulate, log_every, deterministic
        self.precision = Precision(precision)
        self.placement = choose(strategy, len(self.gpus))
        self.checkpoints = make_checkpoints(checkpoint)
        self.loggers = make_loggers(logger)
        self.callbacks = list(callbacks)
        self.model: nn.Module = nn.Identity()
        self.optimizer: torch.optim.Optimizer | None = None
        self.scheduler: object = None
        self.history: list[dict[str, float]] = []
        self.stop_reason: str | None = None
        self.stop_request = StopRequest()
        self.progress_bar = Progress(False, max_epochs, None)
        if board is not False:
            require_matplotlib()
        self._board: Board | None = Board() if board is not False else None
        self._board_path = Path("board.png" if board is True else str(board))
        self._position = Position()
        self._graph: GraphStep | None = None
        self._eager_reason: str | None = "nothing has been trained yet"
        self._runner: nn.Module | None = None

    @property
    def step(self) -> int:
        """Updates made so far."""
        return self._position.step

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0."""
        return self._position.epoch

    @property
    def graph_status(self) -> str:
        """Whether steps are replayed as a CUDA graph, and if not, why."""
        return self._graph.status if self._graph is not None else f"eager: {self._eager_reason}"

    @property
    def device(self) -> torch.device:
        """Where batches go: the first GPU in use, or the CPU."""
        return self.placement.device

    def stop(self, reason: str = "stop() was called") -> None:
        """End the training after the current step or epoch, as if it had reached its end."""
        self.stop_reason = reason

    def prepare_batch(self, batch: object) -> object:
        """The batch as the model gets it: by default moved to the device. An override does the moving itself."""
        return wt.to(batch, self.device)

    def prepare_model(self, model: nn.Module) -> None:
        """Move the model and its scratch parameters to the device; set a Module's trainer and its board's limits."""
        if isinstance(model, Module) or hasattr(model, "board"):
            owner: Any = model
            owner.trainer = self
            owner.board.xlim = [0, self.max_epochs]
        model.to(self.device)
        set_scratch_params_device(model, self.device)
        self.model = model

    def fit(
        self,
        model: nn.Module,
        train_loader: object,
        val_loader: object = None,
        *,
        loss: build.Loss | None = None,
        optimizer: torch.optim.Optimizer | build.OptimizerMaker | None = None,
        scheduler: object = None,
        schedule_every: Literal["epoch", "step"] = "epoch",
        metrics: Mapping[str, object] | None = None,
        batch_size: int = 32,
        resume: bool | str | Path = False,
        allow_changes: bool = False,
    ) -> list[dict[str, float]]:
        """Train `model` and return one dict per epoch: "epoch", "train_loss", "val_loss" and so on.

        `train_loader` and `val_loader` are DataLoaders, iterables of batches, or tensors (one, a tuple, a dict, a
        TensorDataset, Tensors) of shape (samples, ...), which stay on the device and are cut into batches of
        `batch_size` samples. A batch is (inputs..., target), unless the model is a Module with steps of its own.
        `loss(outputs, target)` is a mean over the batch. `optimizer` is an object or a function of the parameters,
        `scheduler` an object or a function of the optimizer. `metrics` maps names to functions
        (outputs, target) -> scalar tensor, or to torchmetrics objects. `resume` goes on from the newest complete
        checkpoint of the trainer's folder (True: if there is one) or of the given folder. If that was trained with a
        different optimizer, schedule, batch size, order of the data, loss, precision, clipping or accumulation,
        `allow_changes` is needed.

        After SIGTERM or SIGUSR1 the state is saved and SystemExit(128 + signal number) is raised.
        Raises UsageError if the arguments do not fit together, FileFormatError if no checkpoint is complete.
        """
        with ExitStack() as stack:
            stack.enter_context(deterministic_algorithms(self.deterministic))
            stack.enter_context(self.precision.applied())
            self.stop_request = stack.enter_context(StopRequest())
            stack.callback(self._close)
            self.stop_reason, self.history = None, []
            self.placement.setup(self.gpus)
            self.gpus = self.placement.gpus
            if self.hparams["seed"] is not None:
                seed_all(self.hparams["seed"] + self.placement.rank)
            self._open_checkpoints()
            found = self._found(resume)
            seed = found["seed"] if found else self.placement.broadcast(int(torch.randint(2**62, ())))
            feed = self._feed(train_loader, seed, batch_size, shuffle=True)
            require_steps(feed)
            validation = self._feed(val_loader, seed, batch_size, shuffle=False) if val_loader is not None else None
            generators = generators_of_feeds(feed, validation)
            step, recipe, begun = self._prepare(model, feed, loss, optimizer, scheduler, found, generators)
            validate = self._validation(step, validation, metrics)
            loop = self._make_loop(step, feed, validate, metrics, schedule_every, seed, recipe, generators, begun)
            if found:
                if found["position"]["epoch"]:
                    begin_workers(feed, validation)
                loop.load(found, allow_changes)
            self._train(loop, feed)
        return self.history

    def _open_checkpoints(self) -> None:
        """Let rank 0 lock the folder; if it cannot, every process raises its UsageError."""
        refusal: UsageError | None = None
        if self.checkpoints is not None and self.placement.rank == 0:
            try:
                self.checkpoints.open()
            except UsageError as error:
                refusal = error
        said = self.placement.broadcast(str(refusal) if refusal is not None else None)
        if said is not None:
            raise refusal or UsageError(said)

    def _found(self, resume: bool | str | Path) -> dict[str, Any] | None:
        """The state to resume from, if any."""
        checkpoints = self.checkpoints
        folder, state = newest_whole(Path(resume)) if not isinstance(resume, bool) else (None, None)
        if checkpoints is None:
            if resume is True:
                raise UsageError("resume=True has no folder to look in: give the Trainer checkpoint=, or a path here.")
            return state
        if folder is not None and checkpoints.holds(folder):
            checkpoints.go_on_from(folder)
            return state
        there = self.placement.broadcast(checkpoints.exist())
        if there and resume is not True:
            raise UsageError(
                f"{checkpoints.directory} holds checkpoints of an earlier training: go on from them with "
                "fit(..., resume=True), or choose another folder."
            )
        return checkpoints.load() if there else state

    def _feed(self, source: object, seed: int, batch_size: int, shuffle: bool, ordered: bool = False) -> Feed:
        own = type(self).prepare_batch is not _PREPARE_BATCH
        prepare = self.prepare_batch if own else None
        return make_feed(source, self.placement, seed, prepare, batch_size, shuffle, ordered)

    def _prepare(
        self,
        model: nn.Module,
        feed: Feed,
        loss: build.Loss | None,
        optimizer: torch.optim.Optimizer | build.OptimizerMaker | None,
        scheduler: object,
        found: dict[str, Any] | None,
        generators: list[torch.Generator],
    ) -> tuple[Step, dict[str, Any], build.Begun | None]:
        self.prepare_model(model)
        gives_extra = build.own_steps(model, loss)
        begun = build.materialize(model, feed, gives_extra, found["model"] if found else None, generators)
        if wants_channels_last(self.hparams["channels_last"], model, self.placement, self.precision):
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        runner = self._place(model, loss)
        graph = bool(self.hparams["graph"])
        of_loss = loss if isinstance(loss, nn.Module) else None
        self.optimizer, own_scheduler = build.make_optimizer(optimizer, model, of_loss, self.placement, graph)
        recipe = {"optimizer": of_optimizer(self.optimizer), "data": dict(feed.recipe)}
        self.scheduler = build.make_scheduler(scheduler, self.optimizer) or own_scheduler
        recipe["schedule"] = of_schedule(self.scheduler)
        recipe["training"] = of_training(self.precision.name, float(self.gradient_clip_val), self.accumulate, loss)
        forward = build.forward_of(runner, model, loss, "training_step", self.placement.splits_batches)
        clip = float(self.gradient_clip_val)
        step = Step(forward, runner, self.optimizer, self.placement, self.precision, clip, gives_extra, loss)
        self.placement.equalize(loose_parameters(model, of_loss, self.optimizer).values())
        if step.loss_module is not None:
            self.placement.follow(step.loss_module)
        return step, recipe, begun

    def _place(self, model: nn.Module, loss: Any) -> nn.Module:
        runner = self.placement.place(build.wrapped(model, loss, self.placement))
        if self.hparams["compile"]:
            compile_model: Any = torch.compile
            runner = compile_model(runner)
        self._runner = runner
        self._move_loss(loss)
        return runner

    def _move_loss(self, loss: object) -> None:
        if isinstance(loss, nn.Module):
            loss.to(self.device)

    def _metrics(self, metrics: Mapping[str, object] | None, every: int = 50) -> Metrics:
        gather = self.placement.gather if self.placement.world_size > 1 else None
        return Metrics(metrics, every, gather).to(self.device)

    def _validation(
        self, step: Step, feed: Feed | None, metrics: Mapping[str, object] | None
    ) -> Callable[[], dict[str, float]]:
        if feed is None:
            return dict
        gathered, loss = self._metrics(metrics), step.loss
        forward = build.forward_of(step.runner, self.model, loss, "validation_step", self.placement.splits_batches)
        leaves = self.placement.world_size == 1 and not gathered.has_objects  # whose counts of the epoch are lost
        return lambda: evaluate(
            self.model, loss, forward, feed, gathered, self.placement, self.precision,
            self.stop_request if leaves else None,
        )  # fmt: skip

    def _make_loop(
        self,
        step: Step,
        feed: Feed,
        validate: Callable[[], dict[str, float]],
        metrics: Any,
        every: str,
        seed: int,
        recipe: dict[str, Any],
        generators: list[torch.Generator],
        begun: build.Begun | None,
    ) -> Loop:
        train_metrics = self._metrics(metrics, every=1 << 30)  # the loop flushes where it logs
        reason = why_not(step, bool(self.hparams["graph"]), self.accumulate)
        self._graph = GraphStep(step, train_metrics.wants_outputs) if reason is None else None
        self._eager_reason = reason
        update = self._graph or step
        return Loop(self, step, update, feed, train_metrics, validate, every, seed, recipe, generators, begun)

    def _train(self, loop: Loop, feed: Feed) -> None:
        self._position = loop.position  # not the loop, whose loaders and their workers are not kept when `fit` is over
        writes = self.placement.rank == 0
        self.progress_bar = Progress(writes and bool(self.hparams["progress"]), self.max_epochs, feed.steps)
        for module in (self.model, loop.step.loss):
            if isinstance(module, nn.Module) and not module.training:
                module.train()
        for callback in self.callbacks:
            callback.on_fit_start(self)
        try:
            loop.run()
        except Preempted:
            self.progress_bar.note(f"stopped by signal {self.stop_request.signal} after step {self.step}")
            self._close()
            raise SystemExit(128 + self.stop_request.signal) from None
        finally:
            feed.prefetcher = None  # with the workers of a loader that has not been read to its end
        for callback in self.callbacks:
            callback.on_fit_end(self)
        if self.stop_reason is not None:
            self.progress_bar.note(f"stopped after epoch {self.epoch}: {self.stop_reason}")

    def _close(self) -> None:
        self.progress_bar.close()
        for logger in self.loggers:
            logger.close()
        if self.checkpoints is not None:
            self.checkpoints.close()

    def log(self, values: dict[str, float], step: int) -> None:
        """Send numbers that are on the host to the loggers. Only rank 0 writes."""
        if self.placement.rank == 0:
            for logger in self.loggers:
                logger.log(values, step)

    def report_epoch(self, epoch: int, values: dict[str, float]) -> None:
        """Show the means over an epoch: a line, the logs, the board."""
        self.progress_bar.epoch_line(epoch, values)
        self.log(values, self.step)
        board = self._board
        if board is None or self.placement.rank:
            return
        board.xlim = (0, self.max_epochs)
        for name, value in values.items():
            board.draw(epoch + 1, value, name)
        if not board.show():
            board.save(self._board_path)

    def evaluate(
        self,
        model: nn.Module,
        loader: object,
        *,
        loss: build.Loss | None = None,
        metrics: Mapping[str, object] | None = None,
        batch_size: int = 32,
    ) -> dict[str, float]:
        """The means of the loss and the metrics over all samples of `loader`, without training: see `fit`."""
        runner = self._ready(model, loss)
        feed = self._feed(loader, 0, batch_size, shuffle=False)
        forward = build.forward_of(runner, model, loss, "validation_step", self.placement.splits_batches)
        gathered = self._metrics(metrics)
        with self.precision.applied(), deterministic_algorithms(self.deterministic):
            return evaluate(model, loss, forward, feed, gathered, self.placement, self.precision)

    def predict(self, model: nn.Module, loader: object, *, batch_size: int = 32) -> list[Any]:
        """The outputs for every batch of `loader` (inputs only: a tensor or a tuple), on the CPU, in order."""
        runner = self._ready(model, None if isinstance(model, Module) else _no_loss)
        feed = self._feed(loader, 0, batch_size, shuffle=False, ordered=True)
        through_runner = isinstance(runner, ModuleStep) and not self.placement.splits_batches

        def call(batch: Any) -> object:
            if through_runner:  # whose forward gathers the parameters under fsdp
                return runner("predict_step", batch)
            if isinstance(model, Module):
                return model.predict_step(batch)
            return model(batch) if isinstance(batch, torch.Tensor) else model(*batch)

        with self.precision.applied(), deterministic_algorithms(self.deterministic):
            return predict(model, call, feed, self.placement, self.precision)

    def _ready(self, model: nn.Module, loss: object) -> nn.Module:
        """The placed model: that of `fit` if it is the same one."""
        if model is self.model and self._runner is not None:
            self._move_loss(loss)
            return self._runner
        self.placement.setup(self.gpus)
        self.prepare_model(model)
        return self._place(model, loss)


def _no_loss(outputs: object, target: object) -> torch.Tensor:
    raise UsageError("this model was placed for predict and has no loss: give evaluate a loss.")


_PREPARE_BATCH = Trainer.prepare_batch
