"""What the Trainers of all frameworks share: common arguments, and the documents' small helpers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from windtunnel.vocabulary import Vocabulary


def add_to_class(cls: type) -> Callable[[F], F]:
    """Decorator that adds a function to an existing class as a method (`@add_to_class(Trainer)`)."""

    def register(function: F) -> F:
        setattr(cls, function.__name__, function)
        return function

    return register


F = TypeVar("F", bound=Callable[..., object])


class HyperParameters:
    """Base for classes that keep the arguments of their `__init__`."""

    hparams: dict[str, Any]

    def save_hyperparameters(self, ignore: Iterable[str] = ()) -> None:
        """Call it in `__init__`: stores each argument as an attribute, and all of them as the dict `hparams`."""
        caller = sys._getframe(1)  # its own frame in a local would be a cycle, with all that callers hold
        names, _, keywords, values = inspect.getargvalues(caller)
        arguments = {name: values[name] for name in names} | dict(values.get(keywords or "", {}))
        left_out = {"self", *ignore}
        self.hparams = {name: value for name, value in arguments.items() if name not in left_out}
        for name, value in self.hparams.items():
            setattr(self, name, value)


class TrainerBase(HyperParameters):
    """A Trainer of the framework whose device vocabulary is `_wt`.

    - `max_epochs`: passes over the training data.
    - `num_gpus`: how many GPUs to use, at most as many as there are; 0 is the CPU.
    - `gradient_clip_val`: the largest L2 norm of the whole gradient; 0 is off.
    """

    _wt: Vocabulary
    max_epochs: int
    num_gpus: int
    gradient_clip_val: float
    gpus: list[Any]

    def __init__(self, max_epochs: int, num_gpus: int = 0, gradient_clip_val: float = 0) -> None:
        self.save_hyperparameters()
        wt = self._wt
        self.gpus = [wt.gpu(i) for i in range(min(num_gpus, wt.num_gpus()))]
