"""The Trainer for MXNet 1.9, with the hooks of the documents: `prepare_batch`, `prepare_model`, scratch parameters.

`Trainer(max_epochs=10, num_gpus=1).fit(model, batches)`; the model is a gluon block, with a loss and an optimizer given
to `fit`, or a `Module` that has both. Losses stay on the device and are read once an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mxnet import autograd, gluon, nd, np, util

from windtunnel import mxnet as wt
from windtunnel.errors import UsageError
from windtunnel.train.board import Board
from windtunnel.train.frameworks import parameters
from windtunnel.train.hooks import HyperParameters, TrainerBase

__all__ = ["Module", "Trainer", "load_parameters", "save_parameters"]

Batch = Sequence[Any]


class Module(gluon.nn.Block, HyperParameters):  # type: ignore[misc]
    """A block with its loss, optimizer and board. Parameters may be gluon's or plain arrays ("from scratch")."""

    trainer: object = None

    def __init__(self) -> None:
        super().__init__()
        self.board = Board()

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Apply the network `net`."""
        return self.net(x)

    def loss(self, outputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The mean squared error; override for another."""
        return ((outputs - targets.reshape(outputs.shape)) ** 2).mean()

    def training_step(self, batch: Batch) -> object:
        """The loss of one batch (inputs..., targets)."""
        return self.loss(self(*batch[:-1]), batch[-1])

    def configure_optimizers(self) -> object:
        """Anything with `step(batch_size)`; by default gluon's SGD with learning rate 0.1."""
        return gluon.Trainer(self.collect_params(), "sgd", {"learning_rate": 0.1})

    def scratch_params(self) -> list[Any]:
        """The plain arrays of this module and of those inside it."""
        found: list[object] = []
        for value in vars(self).values():
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, np.ndarray):
                    found.append(inner)
                elif isinstance(inner, Module):
                    found += inner.scratch_params()
        return found

    def set_scratch_params_device(self, device: object) -> None:
        """Move the plain arrays of this module and of those inside it, and attach gradients to them there."""
        for name, value in list(vars(self).items()):
            if isinstance(value, np.ndarray):
                with autograd.record():
                    setattr(self, name, value.as_in_ctx(device))
                getattr(self, name).attach_grad()
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, Module):
                    inner.set_scratch_params_device(device)


class Trainer(TrainerBase):
    """Trains a model on the CPU, a GPU or several GPUs.

    `prepare_batch`, `prepare_model` and `__init__` may be overridden as the documents do.
    """

    _wt = wt

    def prepare_batch(self, batch: Batch) -> Batch:
        """The batch on the first GPU in use; without GPUs, the batch as it is."""
        return [array.as_in_ctx(self.gpus[0]) for array in batch] if self.gpus else batch

    def prepare_model(self, model: Any) -> None:
        """Set the model's trainer and board, and place its parameters on the GPUs in use."""
        model.trainer = self
        if getattr(model, "board", None) is None:
            model.board = Board()
        model.board.xlim = [0, self.max_epochs]
        if self.gpus:
            model.collect_params().reset_ctx(self.gpus if len(self.gpus) > 1 else self.gpus[0])
            if hasattr(model, "set_scratch_params_device"):
                model.set_scratch_params_device(self.gpus[0])
        self.model = model

    def fit(
        self,
        model: Any,
        train_batches: Iterable[Batch],
        *,
        loss: Callable[..., np.ndarray] | None = None,
        optimizer: tuple[str, Mapping[str, object]] | None = None,
    ) -> list[dict[str, float]]:
        """Train for `max_epochs` and return `history`: one dict per epoch with train_loss.

        Without `loss` and `optimizer` the model's own `training_step` and `configure_optimizers` are used.
        """
        self.prepare_model(model)
        if optimizer is not None:
            self.optimizer = gluon.Trainer(model.collect_params(), *optimizer)
        elif hasattr(model, "configure_optimizers"):
            self.optimizer = model.configure_optimizers()
        else:
            raise UsageError(
                "a plain gluon block has no optimizer: give fit optimizer=('sgd', {'learning_rate': 0.1})."
            )
        self._loss = loss
        self.history: list[dict[str, float]] = []
        for epoch in range(self.max_epochs):
            losses = [loss for batch in train_batches for loss in self.fit_batch(batch)]
            if not losses:
                raise UsageError("there is no batch to train on: train_batches is empty.")
            mean = sum(float(np.stack(part).mean()) * len(part) for part in _by_context(losses)) / len(losses)
            self.history.append({"epoch": float(epoch), "train_loss": mean})
            model.board.draw(epoch + 1, mean, "train_loss")
        return self.history

    def fit_batch(self, batch: Batch) -> list[object]:
        """One update; returns the losses, one per GPU in use, on their devices."""
        parts = self._parts(batch)
        with autograd.record():
            losses = [self._step(part) for part in parts]
        for value in losses:
            value.backward()
        if self.gradient_clip_val > 0:
            self.clip_gradients(self.gradient_clip_val)
        self.optimizer.step(len(parts))
        return [value.detach() for value in losses]

    def _parts(self, batch: Batch) -> list[Batch]:
        if len(self.gpus) < 2 or len(batch[0]) < len(self.gpus):
            return [self.prepare_batch(batch)]
        spread = [gluon.utils.split_and_load(array, self.gpus, even_split=False) for array in batch]
        return [list(part) for part in zip(*spread, strict=True)]

    def _step(self, batch: Batch) -> Any:
        if self._loss is None:
            return self.model.training_step(batch)
        return self._loss(self.model(*batch[:-1]), batch[-1]).mean()

    def clip_gradients(self, largest: float) -> None:
        """Scale all gradients of each device so that their norm is at most `largest`, without making the host wait."""
        parameters = [p for p in self.model.collect_params().values() if p.grad_req != "null"]
        scratch = self.model.scratch_params() if isinstance(self.model, Module) else []
        for device in self.gpus or [wt.cpu()]:
            gradients = [parameter.grad(device) for parameter in parameters]
            gradients += [array.grad for array in scratch if array.grad is not None and array.ctx == device]
            if gradients:
                norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
                scale = np.minimum(largest / np.maximum(norm, 1e-12), 1.0)
                for gradient in gradients:
                    gradient[:] = gradient * scale


def _by_context(losses: list[Any]) -> list[list[object]]:
    groups: dict[object, list[object]] = {}
    for loss in losses:
        groups.setdefault(loss.ctx, []).append(loss)
    return list(groups.values())


def save_parameters(model: object, path: str | Path) -> None:
    """Write the parameters of a gluon block, on whatever devices, to one safetensors file, atomically."""
    parameters.write(path, {name: value.list_data()[0].asnumpy() for name, value in _named(model).items()})


def load_parameters(model: object, path: str | Path) -> object:
    """Read a safetensors file into an initialized gluon block, on whatever devices it is; returns the block.

    Raises FileFormatError if the file is damaged, UsageError if its names or shapes are not the block's.
    """
    found = _named(model)
    arrays = parameters.read(path, {name: tuple(value.shape) for name, value in found.items()})
    array = np.array if util.is_np_array() else nd.array
    for name, value in found.items():
        value.set_data(array(arrays[name], dtype=value.dtype))
    return model


def _named(model: Any) -> dict[str, Any]:
    """The parameters by number and kind ("0.weight"); gluon numbers all blocks of a process in their names."""
    items = model.collect_params().items()
    return {f"{number}.{name.rpartition('_')[2]}": value for number, (name, value) in enumerate(items)}
