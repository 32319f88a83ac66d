"""The Trainer for TensorFlow: Keras' own `fit` under the placement that `num_gpus` implies.

`Trainer(max_epochs=10, num_gpus=2).fit(make_model, data, loss=..., optimizer=...)`. Variables stay where they are
created, so the model is given as a function that creates it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import tensorflow as tf

from windtunnel import tensorflow as wt
from windtunnel.errors import UsageError
from windtunnel.train.frameworks import parameters
from windtunnel.train.hooks import TrainerBase

__all__ = ["Trainer", "load_parameters", "save_parameters"]


@cache
def _mirrored(names: tuple[str, ...]) -> object:
    """One strategy per set of devices: two strategies in one process would share the keys of their collectives."""
    return tf.distribute.MirroredStrategy(list(names))


class Trainer(TrainerBase):
    """Trains a Keras model on the CPU, a GPU, or several GPUs through tf.distribute.MirroredStrategy."""

    _wt = wt

    @property
    def strategy(self) -> Any:
        """Keras' placement of model and batches: one device, or mirrored over the GPUs in use."""
        if len(self.gpus) > 1:
            return _mirrored(tuple(device.name for device in self.gpus))
        return tf.distribute.OneDeviceStrategy((self.gpus[0] if self.gpus else wt.cpu()).name)

    def fit(
        self,
        make_model: Callable[[], Any],
        train_data: object,
        val_data: object = None,
        *,
        loss: object,
        optimizer: Callable[[], Any],
        **options: object,
    ) -> list[dict[str, float]]:
        """Train for `max_epochs` and return `history`: one dict per epoch, with Keras' names (loss, val_loss).

        `train_data` is a tf.data.Dataset of (inputs, targets) batches or such a tuple of arrays; `make_model` and
        `optimizer` are functions because both own variables; `options` go to Keras' `fit`.
        """
        strategy = self.strategy
        with strategy.scope():
            self.model = make_model()
            made = optimizer()
            if self.gradient_clip_val > 0:
                made.global_clipnorm = self.gradient_clip_val
            self.model.compile(optimizer=made, loss=loss)
        arrays = train_data if isinstance(train_data, tuple) else (train_data,)
        if not arrays:
            raise UsageError("there is nothing to train on: train_data is empty.")
        done = self.model.fit(*arrays, validation_data=val_data, epochs=self.max_epochs, verbose=0, **options)
        names = list(done.history)
        self.history = [
            {"epoch": float(epoch), **{name: float(done.history[name][epoch]) for name in names}}
            for epoch in range(self.max_epochs)
        ]
        return self.history


def save_parameters(model: object, path: str | Path) -> None:
    """Write the weights of a Keras model, on whatever devices, to one safetensors file, atomically."""
    parameters.write(path, {name: weight.numpy() for name, weight in _named(model).items()})


def load_parameters(model: object, path: str | Path) -> object:
    """Read a safetensors file into a built Keras model, whose weights stay where they are; returns the model.

    Raises FileFormatError if the file is damaged, UsageError if its names or shapes are not the model's.
    """
    weights = _named(model)
    arrays = parameters.read(path, {name: tuple(weight.shape) for name, weight in weights.items()})
    for name, weight in weights.items():
        weight.assign(arrays[name])
    return model


def _named(model: Any) -> dict[str, Any]:
    """The weights, by number and name: "0.kernel", "1.bias"; Keras numbers all layers of a process in their paths."""
    return {f"{number}.{weight.name}": weight for number, weight in enumerate(model.weights)}
