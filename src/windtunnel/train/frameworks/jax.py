"""The Trainer for JAX: `Trainer(max_epochs=10, num_gpus=2).fit(model, batches, loss=..., optimizer=...)`.

A step is one jitted function with donated state. With several GPUs each batch is sharded over a mesh. Losses stay on
the device and are read once per epoch. The model is a flax.linen module, or anything with its `init` and `apply`; the
optimizer is one of optax's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from windtunnel import jax as wt
from windtunnel.errors import UsageError
from windtunnel.train.board import Board
from windtunnel.train.frameworks import parameters
from windtunnel.train.hooks import TrainerBase

__all__ = ["State", "Trainer", "load_parameters", "save_parameters"]

Batch = Sequence[Any]
Loss = Callable[..., object]


class State(NamedTuple):
    """What a step updates: parameters, optimizer state, random key, and the sum and number of losses so far."""

    params: object
    optimizer: object
    key: object
    loss_sum: object
    steps: Any


class Trainer(TrainerBase):
    """Trains a model on the CPU, a GPU or several GPUs with the same few lines.

    `prepare_batch`, `prepare_model` and `__init__` may be overridden as the documents do. After `fit`, `params` holds
    the parameters and `history` one dict an epoch.
    """

    _wt = wt
    seed = 0
    board: Board | None = None

    # ------------------------------------------------------------------ placement

    @property
    def placement(self) -> object:
        """Where parameters live: a device, or the sharding that replicates them on every GPU in use."""
        if len(self.gpus) > 1:
            return NamedSharding(self._mesh(), PartitionSpec())
        return self.gpus[0] if self.gpus else wt.cpu()

    def _mesh(self) -> Mesh:
        return Mesh(np.array(self.gpus), ("data",))

    def prepare_batch(self, batch: Batch) -> Batch:
        """The batch, placed where the model computes: on the device, or with its rows spread over the GPUs.

        A batch whose rows do not divide evenly is copied whole to every GPU, and each computes the same.
        """
        if len(self.gpus) < 2:
            return [wt.to(array, self.placement) for array in batch]
        even = all(np.shape(array)[:1] and np.shape(array)[0] % len(self.gpus) == 0 for array in batch)
        rows = NamedSharding(self._mesh(), PartitionSpec("data") if even else PartitionSpec())
        return [wt.to(array, rows) for array in batch]

    def prepare_model(self, model: Any) -> None:
        """Keep the model and set up its board. Parameters are placed when the first batch has shown their shapes."""
        self.model = model
        board = getattr(model, "board", None)
        self.board = board if isinstance(board, Board) else Board()
        self.board.xlim = [0, self.max_epochs]

    # ------------------------------------------------------------------ training

    def fit(
        self,
        model: object,
        train_batches: Iterable[Batch],
        val_batches: Iterable[Batch] | None = None,
        *,
        loss: Loss,
        optimizer: optax.GradientTransformation,
    ) -> list[dict[str, float]]:
        """Train for `max_epochs` and return `history`: one dict per epoch with train_loss and, given data, val_loss.

        Batches are (inputs..., targets) of NumPy or JAX arrays; `loss(outputs, targets)` gives the mean over a batch.
        """
        self.prepare_model(model)
        if self.gradient_clip_val > 0:
            optimizer = optax.chain(optax.clip_by_global_norm(self.gradient_clip_val), optimizer)
        step = jax.jit(self._step(loss, optimizer), donate_argnums=0)
        self._loss = jax.jit(lambda params, batch: loss(self.model.apply(params, *batch[:-1]), batch[-1]))
        self.history: list[dict[str, float]] = []
        state: State | None = None
        for epoch in range(self.max_epochs):
            for batch in train_batches:
                prepared = list(self.prepare_batch(batch))
                if state is None:
                    state = self._first_state(prepared, optimizer)
                state = step(state, prepared)
            if state is None:
                raise UsageError("there is no batch to train on: train_batches is empty.")
            state = self._end_epoch(epoch, state, val_batches)
        return self.history

    def _first_state(self, batch: Batch, optimizer: optax.GradientTransformation) -> State:
        key, first = jax.random.split(jax.random.PRNGKey(self.seed))
        params = self.model.init(first, *[array[:1] for array in batch[:-1]])
        further = sorted(set(params) - {"params"}) if isinstance(params, dict) else []
        if further:
            raise UsageError(
                f"the model keeps {', '.join(further)} besides its parameters, which this Trainer does not update; "
                "use layers without such state (LayerNorm or GroupNorm instead of BatchNorm)"
            )
        state = State(params, optimizer.init(params), key, jnp.zeros(()), jnp.zeros((), jnp.int32))
        return wt.to(state, self.placement)

    def _step(self, loss: Loss, optimizer: optax.GradientTransformation) -> Callable[[State, Batch], State]:
        def step(state: State, batch: Batch) -> State:
            key, dropout = jax.random.split(state.key)

            def mean_loss(params: object) -> object:
                outputs = self.model.apply(params, *batch[:-1], rngs={"dropout": dropout})
                return loss(outputs, batch[-1])

            value, gradients = jax.value_and_grad(mean_loss)(state.params)
            updates, opt_state = optimizer.update(gradients, state.optimizer, state.params)
            params = optax.apply_updates(state.params, updates)
            return State(params, opt_state, key, state.loss_sum + value, state.steps + 1)

        return step

    def _end_epoch(self, epoch: int, state: State, val_batches: Iterable[Batch] | None) -> State:
        loss_sum, steps = jax.device_get((state.loss_sum, state.steps))  # the epoch's only transfer to the host
        record = {"epoch": float(epoch), "train_loss": float(loss_sum) / max(1, int(steps))}
        self.params = state.params
        if val_batches is not None:
            record["val_loss"] = self.evaluate(val_batches)
        self.history.append(record)
        if self.board is not None:
            for name in record.keys() - {"epoch"}:
                self.board.draw(epoch + 1, record[name], name)
        zero = wt.to((jnp.zeros(()), jnp.zeros((), jnp.int32)), self.placement)
        return state._replace(loss_sum=zero[0], steps=zero[1])

    # ------------------------------------------------------------------ afterwards

    def evaluate(self, batches: Iterable[Batch]) -> float:
        """The mean loss over batches, each weighted by its rows; read from the device once."""
        total: Any = None
        rows = 0
        for batch in batches:
            prepared = list(self.prepare_batch(batch))
            part = self._loss(self.params, prepared) * len(prepared[-1])
            total = part if total is None else total + part
            rows += len(prepared[-1])
        if total is None:
            raise UsageError("there is no batch to evaluate on.")
        return float(total) / rows

    def predict(self, *inputs: object) -> object:
        """The model's outputs for one batch of inputs, on the device."""
        return self.model.apply(self.params, *self.prepare_batch(inputs))


def save_parameters(params: object, path: str | Path) -> None:
    """Write a pytree of arrays, on whatever devices, to one safetensors file, atomically."""
    parameters.write(path, {name: np.asarray(leaf) for name, leaf in _named(params).items()})


def load_parameters(params: object, path: str | Path) -> object:
    """The pytree `params` with the file's values; each leaf keeps its placement and type.

    Raises FileFormatError if the file is damaged, UsageError if its names or shapes are not those of `params`.
    """
    leaves = _named(params)
    arrays = parameters.read(path, {name: np.shape(leaf) for name, leaf in leaves.items()})
    placed = [jax.device_put(arrays[name].astype(leaf.dtype), leaf.sharding) for name, leaf in leaves.items()]
    return jax.tree.unflatten(jax.tree.structure(params), placed)


def _named(params: object) -> dict[str, Any]:
    """The leaves in the tree's order, under names such as "params.Dense_0.kernel", numbered if two share a name."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    named: dict[str, Any] = {}
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        numbered = (f"{name}#{number}" for number in count(2))
        named[next(one for one in chain([name], numbered) if one not in named)] = leaf
    return named
