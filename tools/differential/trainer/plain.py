"""The hand-written loop: what a person would write for one process, told out for several devices and processes.

It shares nothing with `windtunnel.train`. Several processes are played in turn by this one: each has its own random
numbers and its own part of a batch, the gradient is that of the mean over all rows, and buffers are those of the
first process, as DistributedDataParallel has it; likewise the replicas of DataParallel.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from tools.differential.trainer.outcome import TrainerOutcome
from tools.differential.trainer.pieces import (
    CLIP_NORM,
    Batch,
    Data,
    Keep,
    OneBuffer,
    clip_values,
    mae,
    make_loss,
    make_net,
    make_optimizer,
    step_values,
    view,
)
from tools.differential.trainer.pieces import make_scheduler as make_schedule
from tools.differential.trainer.space import TENSOR_KINDS, Config


class Part(NamedTuple):
    """What one process has of a step: a batch, and how many of its rows count."""

    batch: Any
    rows: int


class Streams:
    """The random numbers of every process, of which this one plays all."""

    def __init__(self, world: int, seed: int) -> None:
        self.states = []
        for rank in reversed(range(world)):
            torch.manual_seed(seed + rank)
            self.states.insert(0, self._now())

    def _now(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        return torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_available() else None

    @contextmanager
    def of(self, rank: int) -> Iterator[None]:
        host, gpu = self.states[rank]
        torch.set_rng_state(host)
        if gpu is not None:
            torch.cuda.set_rng_state(gpu)
        yield
        self.states[rank] = self._now()


def train(config: Config, rank: int = 0) -> TrainerOutcome:
    return PlainLoop(config, rank).run()


class PlainLoop:
    def __init__(self, config: Config, rank: int) -> None:
        self.config, self.rank = config, rank
        self.device = torch.device("cuda", 0 if config.world == 1 else rank) if config.num_gpus else torch.device("cpu")
        self.net, self.loss = make_net(config), make_loss(config)
        self.streams = Streams(config.world, config.seed)
        self.data = Data(config, rank)
        self.outcome = TrainerOutcome()
        self.steps, self.stopped = 0, False
        self.best, self.epochs_without = float("inf"), 0
        self.logged = Means(config)  # since the last line of the log

    # what is trained

    def prepare(self) -> None:
        config = self.config
        seeds = []
        for rank in range(config.world):
            with self.streams.of(rank):
                seeds.append(int(torch.randint(2**62, ())))
        self.order_seed = seeds[0]
        self.source, self.validation = self.data.training(), self.data.validating()
        self.net.to(self.device)
        if isinstance(self.loss, nn.Module):
            self.loss.to(self.device)
        if "lazy" in config.parts:
            self.shape_lazy_layers()
        if config.clip == "value":
            clip_values(self.net)
        self.optimizer = make_optimizer(config, self.net, self.loss)
        self.schedule = make_schedule(config, self.optimizer)
        self.scaler = torch.amp.GradScaler(self.device.type) if config.precision == "fp16" else None

    def shape_lazy_layers(self) -> None:
        """Lazy layers take their shape from some input; nothing else may change by that."""
        with torch.no_grad(), self.eval_mode():
            self.net(torch.zeros(2, self.data.x.shape[1], device=self.device))

    def run(self) -> TrainerOutcome:
        config = self.config
        self.prepare()
        self.begin()
        for epoch in range(config.epochs):
            row = self.train_epoch(epoch)
            self.end_epoch(epoch, row)
            if self.stopped:
                break
        if config.predict != "none":
            self.outcome.predictions = self.predict()
        return self.finish()

    def begin(self) -> None:
        frozen = [module for module in self.net.modules() if not module.training]
        self.net.train()
        for module in frozen:
            module.eval()
        if self.config.callback == "eval norm":
            self.net.norm.eval()

    def train_epoch(self, epoch: int) -> dict[str, float]:
        config = self.config
        totals = Means(config)
        steps = self.batches(self.source, epoch, self.order_seed, config.shuffle or config.data != "Tensors")
        for group in iter(lambda: list(itertools.islice(steps, config.accumulate)), []):
            self.optimizer.zero_grad()
            rows, expected = sum(part.rows for parts in group for part in parts), self.expected(group)
            for parts in group:
                self.accumulate(parts, expected, totals)
            self.update(expected / rows)
            self.steps += 1
            if self.schedule is not None and config.schedule_every == "step":
                self.schedule.step()
            self.log()
            if config.callback == "stop" and self.steps == 3:
                self.stopped = True
                break
        return {f"train_{name}": value for name, value in totals.means().items()}

    def expected(self, group: list[list[Part]]) -> int:
        """The documented number that a group's losses are divided by, which decides where half precision overflows."""
        known = self.config.data not in (
            "iterable data set",
            "object that shuffles",
            "object with one buffer",
            "generator",
        )
        return sum(part.rows for part in group[0]) * (len(group) if known else self.config.accumulate)

    def accumulate(self, parts: list[Part], rows: int, totals: Means) -> None:
        for rank, part in enumerate(parts):
            with self.streams.of(rank), self.buffers_of_the_first(rank):
                batch = move(part.batch, self.device)
                with self.autocast():
                    loss, outputs, target, extra = self.forward(batch)
                scaled = loss * (part.rows * self.config.world / rows)
                (self.scaler.scale(scaled) if self.scaler else scaled).backward()
                totals.add(loss, outputs, target, extra, part.rows)
                if rank == 0:
                    self.logged.add(loss, outputs, target, extra, part.rows)

    def update(self, correction: float) -> None:
        for parameter in self.parameters():  # the mean over the processes
            if parameter.grad is not None and correction / self.config.world != 1:
                parameter.grad *= correction / self.config.world
        if self.config.clip == "norm":
            if self.scaler:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters(), CLIP_NORM)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def parameters(self) -> list[torch.Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def log(self) -> None:
        """What the first process writes of its own rows; the others write nothing."""
        if self.steps % self.config.log_every == 0:
            if self.rank == 0:
                self.outcome.logged[self.steps] = self.logged.numbers()
            self.logged = Means(self.config)

    def end_epoch(self, epoch: int, row: dict[str, float]) -> None:
        config = self.config
        self.logged = Means(config)  # the end of an epoch reads what is left
        if self.validation is not None:
            size = config.batch_size if config.validation == "raw tensors" else 32
            row |= {f"val_{name}": value for name, value in self.evaluate(self.validation, size).items()}
        if self.schedule is not None and config.schedule_every == "epoch":
            plateau = config.scheduler == "plateau"
            self.schedule.step(*[row.get("val_loss", row.get("train_loss"))] if plateau else [])
        self.outcome.history.append({"epoch": epoch, **row})
        if self.rank == 0:
            self.outcome.rows.append((self.steps, row))
        self.call_back(epoch)
        if config.patience:
            self.maybe_stop(row)

    def call_back(self, epoch: int) -> None:
        callback, groups = self.config.callback, self.optimizer.param_groups
        if callback == "lr":
            for group in groups:
                group["lr"] *= 0.5
        elif callback == "unfreeze" and epoch == 0:
            self.net.middle.requires_grad_(True)
            self.optimizer.add_param_group({"params": list(self.net.middle.parameters())})
        elif callback == "freeze" and epoch == 0:
            self.net.first.requires_grad_(False)
        elif callback == "evaluate":
            validation = self.data.val_x, self.data.val_y
            self.outcome.seen.append(self.evaluate(validation, 32, metrics=False))

    def maybe_stop(self, row: dict[str, float]) -> None:
        value = row.get("val_loss", row["train_loss"])
        if value < self.best:
            self.best, self.epochs_without = value, 0
            return
        self.epochs_without += 1
        self.stopped = self.stopped or self.epochs_without >= self.config.patience

    # one batch

    def autocast(self) -> Any:
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.config.precision)
        cached = self.config.replicas == 1  # each replica casts the weights for itself
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=cached)

    def forward(self, batch: Any) -> tuple[torch.Tensor, Any, Any, dict[str, torch.Tensor]]:
        """The loss of a batch, its outputs and target, and what a training step gives beside the loss."""
        pieces = list(self.replica_parts(batch))
        if self.config.own_steps:
            values = [(step_values(self.net, piece, self.config), rows) for piece, rows in self.in_turn(pieces)]
            total = sum(rows for _, rows in values)
            mean = {key: sum(value[key] * rows for value, rows in values) / total for key in values[0][0]}
            return mean.pop("loss"), None, None, {key: value.detach() for key, value in mean.items()}
        outputs = torch.cat([self.net(piece[0]) for piece, _ in self.in_turn(pieces)])
        target = batch[1]
        return self.loss(outputs, target), outputs, target, {}

    def replica_parts(self, batch: Any) -> Iterator[tuple[Any, int]]:
        """DataParallel's replicas: as many equal parts as `torch.chunk` makes."""
        count = self.config.replicas
        rows = rows_of(batch)
        if count == 1:
            yield batch, rows
            return
        for part in torch.arange(rows).chunk(count):
            yield cut(batch, slice(int(part[0]), int(part[-1]) + 1), rows), len(part)

    def in_turn(self, pieces: list[tuple[Any, int]]) -> Iterator[tuple[Any, int]]:
        for number, piece in enumerate(pieces):
            with self.buffers_of_the_first(number):
                yield piece

    @contextmanager
    def buffers_of_the_first(self, number: int) -> Iterator[None]:
        """What the forward of process or replica `number` writes into buffers stays only where it is the first."""
        modules = [*self.net.modules(), *(self.loss.modules() if isinstance(self.loss, nn.Module) else ())]
        own = [(module, dict(module._buffers)) for module in modules if number]
        for module, buffers in own:
            module._buffers.update({name: value.clone() for name, value in buffers.items()})
        yield
        for module, buffers in own:
            module._buffers.update(buffers)

    # where batches come from

    def batches(self, source: Any, epoch: int, seed: int, shuffle: bool) -> Iterator[list[Part]]:
        """A list a step: the part of every process."""
        config, world = self.config, self.config.world
        if isinstance(source, tuple):
            order = shuffled(len(source[0]), seed, epoch) if shuffle else list(range(len(source[0])))
            yield from self.gathered(order, lambda rows: tuple(part[rows] for part in source))
        elif not isinstance(source, DataLoader):
            own = isinstance(source, OneBuffer)  # which is filled anew while a group is gathered here
            yield from self.whole((tuple(part.clone() for part in batch) for batch in source) if own else source)
        elif world == 1 or isinstance(source.dataset, IterableDataset):
            tell_epoch(source, epoch)
            yield from self.whole(source)
        elif config.data == "distributed sampler" and source is self.source:
            yield from self.divided_by_the_user(epoch)
        else:
            tell_epoch(source, epoch)
            yield from self.of_loader(source, epoch, seed)

    def gathered(self, order: list[int], take: Any) -> Iterator[list[Part]]:
        """Batches of `batch_size` for every process, of the rows in `order`."""
        config = self.config
        drop_last = config.drop_last and config.data == "Tensors"
        size, world = config.batch_size * config.world, config.world
        for begin in range(0, len(order), size):
            rows = order[begin : begin + size]
            if drop_last and len(rows) < size:
                return
            yield [self.share(rows, rank, world, take) for rank in range(world)]

    def share(self, rows: list[int], rank: int, world: int, take: Any) -> Part:
        low, high = len(rows) * rank // world, len(rows) * (rank + 1) // world
        mine = rows[low:high]
        return Part(take(mine or rows[:2]), len(mine))

    def whole(self, batches: Any) -> Iterator[list[Part]]:
        """Each process takes whole batches in turn; one that has none left borrows the last."""
        if self.config.world == 1:
            with self.streams.of(0):
                iterator = iter(batches)
            while True:
                with self.streams.of(0):
                    batch = next(iterator, None)
                if batch is None:
                    return
                yield [Part(batch, rows_of(batch))]
        source = iter(batches)
        for rank in reversed(range(self.config.world)):  # each reads for itself; where they differ, it is refused
            with self.streams.of(rank):
                if isinstance(batches, DataLoader):
                    torch.empty((), dtype=torch.int64).random_()
                else:
                    source = iter(batches)
        while group := list(itertools.islice(source, self.config.world)):
            parts = [Part(move(batch, torch.device("cpu"), copy=True), rows_of(batch)) for batch in group]
            yield parts + [Part(parts[-1].batch, 0)] * (self.config.world - len(parts))

    def divided_by_the_user(self, epoch: int) -> Iterator[list[Part]]:
        """DistributedSampler: every process has a loader of its own."""
        loaders = [Data(self.config, rank).training() for rank in range(self.config.world)]
        for rank, loader in enumerate(loaders):
            loader.sampler.set_epoch(epoch)
            with self.streams.of(rank):
                loaders[rank] = list(loader)
        for batches in zip(*loaders, strict=True):
            yield [Part(batch, rows_of(batch)) for batch in batches]

    def of_loader(self, loader: DataLoader[Any], epoch: int, seed: int) -> Iterator[list[Part]]:
        """A DataLoader that several processes divide, in the order that the first one draws."""
        collate = loader.collate_fn

        def take(rows: list[int]) -> Any:
            return collate([loader.dataset[row] for row in rows])

        sampler = loader.sampler if loader.batch_size or loader.batch_sampler is None else loader.batch_sampler
        plain = type(sampler) is RandomSampler and not sampler.replacement and sampler.generator is None
        if plain and sampler.num_samples == len(loader.dataset):
            order: list[Any] = shuffled(len(loader.dataset), seed, epoch)
        else:
            with self.streams.of(0):
                order = list(sampler)
        for rank in range(self.config.world):
            if loader.generator is None:
                with self.streams.of(rank):
                    torch.empty((), dtype=torch.int64).random_()
        if loader.generator is not None:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        if loader.batch_sampler is None:
            yield from self.whole([collate(loader.dataset[index]) for index in order])
        elif type(loader.batch_sampler) is BatchSampler:
            size, world = loader.batch_size * self.config.world, self.config.world
            for begin in range(0, len(order), size):
                if loader.drop_last and begin + size > len(order):
                    return
                yield [self.share(order[begin : begin + size], rank, world, take) for rank in range(world)]
        else:
            yield from self.whole([take(rows) for rows in order])

    # looking on

    @torch.no_grad()
    def evaluate(self, source: Any, size: int, metrics: bool = True) -> dict[str, float]:
        totals = Means(self.config, metrics)
        with self.eval_mode():
            for parts in self.in_batches_of(size if isinstance(source, tuple) else 0, source):
                for rank, part in enumerate(parts):
                    with self.streams.of(rank), self.buffers_of_the_first(rank), self.autocast():
                        totals.add(*self.forward(move(part.batch, self.device)), part.rows)
        return totals.means()

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        parts = [*self.net.modules(), *(self.loss.modules() if isinstance(self.loss, nn.Module) else ())]
        modes = [(module, module.training) for module in parts]
        for module in parts:
            module.training = False
        yield
        for module, mode in modes:
            module.training = mode

    def in_batches_of(self, size: int, source: Any) -> Iterator[list[Part]]:
        """Data that are looked at in their order, tensors in batches of `size`."""
        if not size:
            return self.batches(source, 0, self.order_seed, False)
        config = self.config
        self.config = dataclasses.replace(config, batch_size=size, drop_last=False)
        steps = list(self.batches(source, 0, 0, False))
        self.config = config
        return iter(steps)

    @torch.no_grad()
    def predict(self) -> list[torch.Tensor]:
        """Outputs in the order of the data, batch by batch."""
        source = self.data.predicting()
        if self.config.predict in ("loader", "distributed sampler"):
            source = [[self.data.val_x[i : i + 3]] for i in range(0, len(self.data.val_x), 3)]
        elif isinstance(source, torch.Tensor):
            source = [source]
        outputs = []
        with self.eval_mode():
            for batch in source:
                x = batch if isinstance(batch, torch.Tensor) else batch[0]
                with self.autocast():
                    outputs.append(
                        self.net(x.to(self.device, copy=self.config.predict != "list" or self.config.world > 1)).cpu()
                    )
        return outputs

    def finish(self) -> TrainerOutcome:
        outcome = self.outcome
        outcome.modes = [module.training for module in self.net.modules()]
        outcome.weights = everything(self.net)
        if isinstance(self.loss, nn.Module):
            outcome.loss_weights = everything(self.loss)
        outcome.optimizer = [state_of(self.optimizer, parameter) for parameter in self.parameters()]
        outcome.groups = [numbers(group) for group in self.optimizer.param_groups]
        outcome.scheduler = numbers(self.schedule.state_dict()) if self.schedule is not None else {}
        outcome.left = left(self.data, self.source)
        outcome.steps = self.steps
        return outcome


class Means:
    """Weighted means and metrics over an epoch."""

    def __init__(self, config: Config, metrics: bool = True) -> None:
        self.values: dict[str, list[tuple[float, int]]] = {}
        self.names = config.metrics if metrics else ()
        self.keep = Keep()
        self.errors, self.count = 0.0, 0

    def add(self, loss: torch.Tensor, outputs: Any, target: Any, extra: dict[str, torch.Tensor], rows: int) -> None:
        if not rows:
            return
        found = {"loss": loss, **extra}
        if outputs is not None:
            outputs = outputs.detach()
            found |= {
                name: {"mae": mae, "view": view}[name](outputs, target)
                for name in self.names
                if name in ("mae", "view")
            }
            self.keep.update(outputs.clone(), target.clone())
            self.errors += float((outputs.float() - target).abs().sum())
            self.count += target.numel()
        for name, value in found.items():
            self.values.setdefault(name, []).append((float(value.detach()), rows))

    def numbers(self) -> dict[str, float]:
        """The means of what is a number of each batch."""
        return {name: weighted_mean(values) for name, values in self.values.items()}

    def means(self) -> dict[str, float]:
        result = self.numbers()
        if self.count and "torchmetrics" in self.names:
            result["torchmetrics"] = self.errors / self.count
        if self.count and "keep" in self.names:
            result["keep"] = float(self.keep.compute())
        return result


def weighted_mean(values: list[tuple[float, int]]) -> float:
    total = sum(rows for _, rows in values)
    return sum(value * rows for value, rows in values if rows) / total if total else 0.0


def shuffled(rows: int, seed: int, epoch: int) -> list[int]:
    """The documented order of shuffled tensors: it depends on the seed and the epoch alone."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(rows, generator=generator).tolist()


def tell_epoch(loader: DataLoader[Any], epoch: int) -> None:
    for place in (loader.sampler, loader.batch_sampler):
        if hasattr(place, "set_epoch"):
            place.set_epoch(epoch)


def move(batch: Any, device: torch.device, copy: bool = False) -> Any:
    """A batch on the device. On the CPU it is the loader's own, unless a copy is asked for."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, copy=copy)
    if isinstance(batch, dict):
        return {key: move(value, device, copy) for key, value in batch.items()}
    if isinstance(batch, Batch):
        return cut_dataclass(batch, lambda tensor: tensor.to(device, copy=copy))
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*[move(value, device, copy) for value in batch])
    return type(batch)([move(value, device, copy) for value in batch]) if isinstance(batch, list | tuple) else batch


def cut_dataclass(batch: Batch, function: Any) -> Batch:
    """A batch with the same fields, not made by `__init__`, which would prepare it a second time."""
    twin = Batch.__new__(Batch)
    twin.x, twin.y, twin.weight = function(batch.x), function(batch.y), function(batch.weight)
    twin.names = batch.names
    return twin


def rows_of(batch: Any) -> int:
    if isinstance(batch, dict):
        return len(batch["x"])
    return len(batch.x) if isinstance(batch, Batch) else len(batch[0])


def cut(batch: Any, rows: slice, total: int) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch[rows].clone()
    if isinstance(batch, dict):
        return {key: cut(value, rows, total) for key, value in batch.items()}
    if isinstance(batch, Batch):
        twin = cut_dataclass(batch, lambda tensor: tensor[rows].clone())
        twin.names = batch.names[rows]
        return twin
    if isinstance(batch, list) and isinstance(batch[0], str):
        return batch[rows]
    return [cut(value, rows, total) for value in batch] if isinstance(batch, list | tuple) else batch


def everything(module: nn.Module) -> list[torch.Tensor]:
    return [tensor.detach().cpu().clone() for tensor in (*module.parameters(), *module.buffers())]


def state_of(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> dict[str, Any]:
    state = optimizer.state.get(parameter, {})
    return {key: value.detach().cpu() if isinstance(value, torch.Tensor) else value for key, value in state.items()}


def numbers(values: dict[str, Any]) -> dict[str, Any]:
    """What of a group's options or a schedule's state is a number, without how the optimizer is carried out."""
    skipped = {"fused", "foreach", "capturable", "params", "differentiable", "maximize"}
    kept = {key: value for key, value in values.items() if key not in skipped}
    return {key: value for key, value in kept.items() if isinstance(value, int | float | list | tuple)}


def left(data: Data, source: Any) -> dict[str, Any]:
    """The user's objects after the training."""
    sampler = getattr(source, "sampler", None)
    return {
        "tensors": [tensor.clone() for tensor in data.tensors()],
        "generator": data.generator.get_state() if data.generator is not None else None,
        "epochs told": list(sampler.told) if hasattr(sampler, "told") else None,
        "batches": [[t.clone() for t in tensors_of(batch)] for batch in data.held],
    }


def tensors_of(batch: Any) -> list[torch.Tensor]:
    return (
        [batch["x"], batch["y"]]
        if isinstance(batch, dict)
        else [batch.x, batch.y]
        if isinstance(batch, Batch)
        else list(batch)
    )


__all__ = ["TENSOR_KINDS", "train"]
