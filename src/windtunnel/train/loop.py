"""The training loop: epochs, steps, and the work between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from windtunnel.errors import UsageError
from windtunnel.train.attributes import Attributes
from windtunnel.train.build import Begun
from windtunnel.train.data import Feed, Item, generator_states
from windtunnel.train.graph import GraphStep
from windtunnel.train.metrics import Metrics, state_of_rank
from windtunnel.train.recipe import Change, changes, require_no_changes
from windtunnel.train.reproducible import random_state, restore_random_state
from windtunnel.train.state import (
    load_loose_parameters,
    load_model_state,
    load_optimizer_state,
    load_scheduler_state,
    loose_parameters,
    model_state,
    optimizer_state,
    scheduler_state,
)
from windtunnel.train.step import Result, Step
from windtunnel.train.stop import Preempted

if TYPE_CHECKING:
    from windtunnel.train.training import Training


@dataclass
class Position:
    """The training's position: `batches` and `samples` used of the current epoch, and `step` updates in total."""

    epoch: int = 0
    batches: int = 0
    samples: int = 0
    step: int = 0


class Loop:
    """One call of `fit`: the objects taking part, and the position."""

    def __init__(
        self,
        trainer: Training,
        step: Step,
        update: Callable[[object, int, int], Result],
        feed: Feed,
        metrics: Metrics,
        validate: Callable[[], dict[str, float]],
        schedule_every: str,
        seed: int,
        recipe: dict[str, Any],
        generators: list[torch.Generator],
        begun: Begun | None = None,
    ) -> None:
        self.trainer, self.step, self.feed, self.metrics = trainer, step, feed, metrics
        self._generators = generators  # the loaders' own
        self.update = update  # the step itself, or its CUDA graph
        self.validate, self.schedule_every, self.seed, self._begun = validate, schedule_every, seed, begun
        self.recipe = recipe
        self.position = Position()
        self.strategy = trainer.placement
        self.checkpoints = trainer.checkpoints
        self._step_callbacks: list[Callable[[Training], None]] = []
        self._epoch_random: dict[str, object] = {}
        self._epoch_generators: list[torch.Tensor] = []
        self._resumed: dict[str, Any] | None = None
        self._found_attributes: dict[str, object] = {}
        self._stop_at: int | None = None
        self._due = 0

    @property
    def scheduler(self) -> Any:
        return self.trainer.scheduler

    def run(self) -> None:
        """Train from the position to the last epoch, or until a stop is requested."""
        trainer, position = self.trainer, self.position
        self._follow_attributes()
        self.adopt()
        while position.epoch < trainer.max_epochs and trainer.stop_reason is None:
            self._train_epoch()
            self._end_epoch()

    def _follow_attributes(self) -> None:
        """Watch the modules' attributes, from the checkpoint's on, which go before what `on_fit_start` has set anew."""
        roots = {"model": self.trainer.model, "loss": self.step.loss}
        self._attributes = Attributes({name: root for name, root in roots.items() if isinstance(root, nn.Module)})
        self._attributes.load_state_dict(self._found_attributes, self.strategy.device)

    def adopt(self) -> None:
        """Adopt what callbacks may have replaced: the optimizer, the clipping, the set of frozen parameters."""
        trainer = self.trainer
        self.strategy.adopt_parameters()
        if trainer.optimizer is not None:
            self.step.adopt(trainer.optimizer, float(trainer.gradient_clip_val))

    def _train_epoch(self) -> None:
        trainer = self.trainer
        self._step_callbacks = [c.on_step_end for c in trainer.callbacks if _overrides(c, "on_step_end")]
        items = self._begin_items()
        self._plan()
        if trainer.accumulate > 1:
            self._accumulate(items)
            return
        step, keep, position, progress = self.update, self.metrics.keep, self.position, trainer.progress_bar
        stop, wants_more, now = trainer.stop_request, self._wants_more(), time.monotonic
        for batch, size, total in items:
            result = step(batch, size, total)
            keep("loss", result.loss, size)
            position.batches += 1
            position.samples += total
            position.step += 1
            if wants_more:
                self._more(result, size)
            if position.step >= self._due or stop.signal or now() >= progress.next_draw:
                self._attend()
                if trainer.stop_reason is not None:
                    return

    def _accumulate(self, items: Iterator[Item]) -> None:
        """Each batch is trained on before the next one is read, since loaders may reuse their memory."""
        position, step, size_of_group = self.position, self.step, self.trainer.accumulate
        taken, last, held_back = 0, self.feed.steps, False
        for batch, size, total in items:
            taken += 1
            ends = taken == size_of_group or (last is not None and position.batches + 1 >= last)
            synchronize = ends or last is None  # where nobody knows the last batch, any may be it
            left = size_of_group if last is None else min(size_of_group, max(1, last - position.batches))
            expected = total * left if taken == 1 else None
            result = step.accumulate(batch, size, total, expected, synchronize)
            self.metrics.keep("loss", result.loss, size)
            position.batches += 1
            position.samples += total
            held_back = not synchronize
            self._measure(result, size)
            if taken == size_of_group:
                taken = 0
                self._end_group()
                if self.trainer.stop_reason is not None:
                    return
        if taken and held_back and self.strategy.world_size > 1:
            raise UsageError(
                f"the loader says that it has {last} batches and gave {position.batches}: correct its __len__, "
                "by which processes agree on when to exchange their gradients."
            )
        if taken:
            self._end_group()

    def _end_group(self) -> None:
        position, trainer = self.position, self.trainer
        self.step.finish_group()
        position.step += 1
        self._after_update()
        due = position.step >= self._due or trainer.stop_request.signal
        if due or time.monotonic() >= trainer.progress_bar.next_draw:
            self._attend()

    def _begin_items(self) -> Iterator[Item]:
        """The epoch's items from the position on, with all random generators as in an uninterrupted training."""
        position, resumed, self._resumed = self.position, self._resumed, None
        begun, self._begun = self._begun, None
        if begun is not None and not position.epoch and not position.samples:
            self.metrics.reset()
            self._epoch_random, self._epoch_generators = begun.random, begun.generators
            return begun.items
        if resumed is not None:
            restore_random_state(resumed["epoch_random"])
            for generator, state in zip(self._generators, resumed["epoch_generators"], strict=False):
                generator.set_state(state)
        elif not position.samples:
            self.metrics.reset()
        if self.checkpoints is not None:
            self._epoch_random = random_state()
            self._epoch_generators = generator_states(self._generators)
        items = self.feed.epoch(position.epoch, position.samples)
        position.batches = self.feed.skipped
        if resumed is not None:
            restore_random_state(resumed["random"])
        return items

    def _wants_more(self) -> bool:
        per_step = self.scheduler is not None and self.schedule_every == "step"
        is_module = self.step.gives_extra
        return bool(self.metrics.wants_outputs or self._step_callbacks or per_step or is_module)

    def _more(self, result: Result, size: int) -> None:
        self._measure(result, size)
        self._after_update()

    def _measure(self, result: Result, size: int) -> None:
        for name, value in (result.extra or {}).items():
            self.metrics.keep(name, value, size)
        if self.metrics.wants_outputs:
            self.metrics.update(result.outputs, result.target, size)

    def _after_update(self) -> None:
        if self.scheduler is not None and self.schedule_every == "step":
            self.scheduler.step()
        if self._step_callbacks:
            for on_step_end in self._step_callbacks:
                on_step_end(self.trainer)
            self.adopt()
        if self.trainer.stop_reason is not None:
            self._due = self.position.step

    def _plan(self) -> None:
        """Find the next step at which `_attend` has something to do."""
        step, every = self.position.step, self.trainer.log_every
        due = step + every - step % every
        saves = self.checkpoints.every_steps if self.checkpoints is not None else None
        if saves:
            next_save = step + saves - step % saves
            if next_save == step + 1:
                self.feed.read_ahead(False)
            due = min(due, next_save if next_save == step + 1 else next_save - 1)
        self._due = due

    def _attend(self) -> None:
        """The work between some steps: logs, the progress bar, checkpoints and signals."""
        trainer, position = self.trainer, self.position
        at_log = position.step % trainer.log_every == 0
        if at_log:
            self.metrics.flush(position.step)
        for step, values in self.metrics.arrived():
            trainer.log(values, step)
        if time.monotonic() >= trainer.progress_bar.next_draw:
            trainer.progress_bar.draw(position.epoch, position.batches, position.step, self.metrics.read())
        self._heed_signals(at_log)
        saves = self.checkpoints.every_steps if self.checkpoints is not None else None
        if saves and position.step % saves == 0:
            self.save(epoch_ended=False)
            self.feed.read_ahead(self._stop_at is None)
        self._plan()

    def _heed_signals(self, at_log: bool) -> None:
        """Stop if a signal asked for it. Several processes agree on that at the steps at which they log."""
        trainer, position = self.trainer, self.position
        if self._stop_at is None:
            asked = trainer.stop_request.signal
            if self.strategy.world_size > 1:
                if not at_log:
                    return
                asked = trainer.stop_request.signal = max(self.strategy.gather(asked))
            if not asked:
                return
            self.feed.read_ahead(False)
            self._stop_at = position.step + (self.feed.prefetcher is not None)  # its next batch has been read
        if position.step >= self._stop_at:
            self._leave()

    def _leave(self) -> None:
        if self.checkpoints is not None:
            self.save(epoch_ended=False)
        raise Preempted

    def _end_epoch(self) -> None:
        trainer, position = self.trainer, self.position
        self.strategy.equalize(trainer.model.buffers())
        self._log_rest()
        means = self.metrics.compute(self.strategy.sum_over_ranks if self.strategy.world_size > 1 else None)
        values = {f"train_{name}": value for name, value in means.items()}
        values |= {f"val_{name}": value for name, value in self._validate().items()}
        if self.scheduler is not None and self.schedule_every == "epoch":
            self._step_scheduler(values)
        trainer.history.append({"epoch": position.epoch, **values})
        trainer.report_epoch(position.epoch, values)
        position.epoch, position.batches, position.samples = position.epoch + 1, 0, 0
        for callback in trainer.callbacks:
            callback.on_epoch_end(trainer, values)
        self.adopt()
        if isinstance(self.update, GraphStep) and trainer.callbacks:
            self.update.touched()
        ends = position.epoch == trainer.max_epochs or trainer.stop_reason is not None
        asked = max(self.strategy.gather(trainer.stop_request.signal))
        if self.checkpoints is not None:
            every = self.checkpoints.every_epochs
            if asked or ends or (every is not None and position.epoch % every == 0):
                self.save(epoch_ended=True, metrics=values)
        if asked:
            trainer.stop_request.signal = asked
            raise Preempted

    def _validate(self) -> dict[str, float]:
        """The validation's means. Where a signal ends it early, the state before it is saved: a resume validates."""
        if self.checkpoints is None:
            return self.validate()
        random, generators = random_state(), generator_states(self._generators)
        attributes = self._attributes.state_dict()
        try:
            return self.validate()
        except Preempted:
            restore_random_state(random)
            for generator, state in zip(self._generators, generators, strict=True):
                generator.set_state(state)
            saves = self.checkpoints.every_steps
            if saves is None or self.position.step % saves:
                self.save(epoch_ended=False, attributes=attributes)
            raise

    def _log_rest(self) -> None:
        """Log the values still being copied, before something else waits for them."""
        for step, values in self.metrics.drain():
            self.trainer.log(values, step)

    def _step_scheduler(self, values: dict[str, float]) -> None:
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(values.get("val_loss", values["train_loss"]))
        else:
            self.scheduler.step()

    def save(
        self,
        epoch_ended: bool,
        metrics: dict[str, float] | None = None,
        attributes: dict[str, object] | None = None,
    ) -> None:
        """Start a checkpoint of everything. Every process takes part, rank 0 writes."""
        self._log_rest()
        state = self.state(epoch_ended)
        if attributes is not None:
            state["attributes"] = attributes
        if self.checkpoints is not None and self.strategy.rank == 0:
            self.checkpoints.save(state, self.position.step, epoch_ended, metrics or {})

    def state(self, epoch_ended: bool) -> dict[str, object]:
        trainer, optimizer, loss = self.trainer, self.step.optimizer, self.step.loss_module
        counts = {} if epoch_ended else self.metrics.state_dict()
        if not self._epoch_random:
            self._epoch_random = random_state()
        return {
            "model": model_state(trainer.model, self.strategy),
            "loss": model_state(loss, self.strategy) if loss is not None else None,
            "loose": loose_parameters(trainer.model, loss, optimizer),
            "optimizer": optimizer_state(trainer.model, loss, optimizer, self.strategy),
            "scheduler": scheduler_state(self.scheduler) if self.scheduler is not None else None,
            "scaler": self.step.scaler.state_dict() if self.step.scaler is not None else None,
            "position": asdict(self.position),
            "seed": self.seed,
            "recipe": self.recipe,
            "random": self.strategy.gather(random_state()),
            "epoch_random": self.strategy.gather(self._epoch_random),
            "epoch_generators": self.strategy.gather(self._epoch_generators),
            "generators": self.strategy.gather(generator_states(self._generators)),
            "metrics": self.strategy.gather(counts),
            "history": trainer.history,
            "attributes": self._attributes.state_dict(),
            "callbacks": [callback.state_dict() for callback in trainer.callbacks],
        }

    def load(self, state: dict[str, Any], allow_changes: bool) -> None:
        """Resume from `state`. The number of processes and devices may differ from that of the saved training.

        Raises UsageError if the recipe differs; with `allow_changes` the new one is used.
        """
        trainer, strategy = self.trainer, self.strategy
        changed = self._changed(state)
        if not allow_changes:
            require_no_changes(changed)
        parts = {change.part for change in changed}
        load_model_state(trainer.model, state["model"], strategy)
        loss, optimizer = self.step.loss_module, self.step.optimizer
        if loss is not None or state.get("loss"):
            load_model_state(loss or nn.Module(), state.get("loss") or {}, strategy, "the checkpoint's loss")
        load_loose_parameters(loose_parameters(trainer.model, loss, optimizer), state.get("loose", {}))
        as_given = bool(parts & {"optimizer", "hyperparameters", "schedule"})
        if "optimizer" not in parts:
            load_optimizer_state(trainer.model, loss, optimizer, state["optimizer"], strategy, as_given)
        if self.scheduler is not None and state["scheduler"] is not None and not as_given:
            load_scheduler_state(self.scheduler, state["scheduler"])
        if self.step.scaler is not None and state["scaler"]:
            self.step.scaler.load_state_dict(state["scaler"])
        self.position = Position(**state["position"])
        if self.position.step:  # else a schedule that is stepped first warns: to PyTorch nothing has been trained
            optimizer._opt_called = True  # type: ignore[attr-defined]
        trainer.history[:] = state["history"]
        self._found_attributes = state.get("attributes", {})  # older checkpoints have none
        for callback, kept in zip(trainer.callbacks, state["callbacks"], strict=False):
            callback.load_state_dict(kept)
        self._load_shares(state)

    def _changed(self, state: dict[str, Any]) -> list[Change]:
        """The differences from the recipe of `state`; none if an old checkpoint has no recipe."""
        if "recipe" not in state:
            return []
        return changes(state["recipe"], self.recipe, len(state["random"]), self.strategy.world_size)

    def _load_shares(self, state: dict[str, Any]) -> None:
        """Load each process's own state: its random generators, and its part of the epoch's means."""
        rank, position, saved = self.strategy.rank, self.position, len(state["random"])
        parts = state["metrics"]
        if position.samples:
            self.metrics.load_state_dict(state_of_rank(parts, rank, self.strategy.world_size))
        if rank >= saved:
            return
        keys = ("random", "epoch_random", "epoch_generators")
        mine = {key: state[key][rank] for key in keys}
        if position.samples:
            self._resumed = mine
            return
        restore_random_state(mine["random"])
        for generator, kept in zip(self._generators, state["generators"][rank], strict=False):
            generator.set_state(kept)


def _overrides(callback: object, method: str) -> bool:
    """Whether the callback overrides that method, in its class or as an attribute."""
    from windtunnel.train.callbacks import Callback

    return getattr(getattr(callback, method), "__func__", None) is not getattr(Callback, method)
