"""A pass over data without training: the means of losses and metrics, or the outputs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest

import torch
from torch import nn

from windtunnel import torch as wt
from windtunnel.train.data import Feed
from windtunnel.train.metrics import Metrics
from windtunnel.train.modes import eval_mode
from windtunnel.train.precision import Precision
from windtunnel.train.step import Forward
from windtunnel.train.stop import Preempted, StopRequest
from windtunnel.train.strategies import SingleDevice


def evaluate(
    model: nn.Module,
    loss: object,
    forward: Forward,
    feed: Feed,
    metrics: Metrics,
    strategy: SingleDevice,
    precision: Precision,
    stop: StopRequest | None = None,
) -> dict[str, float]:
    """The means over all samples of all processes, with the model and the loss in eval mode. One wait, at the end.

    Raises Preempted between two batches once `stop` has seen a signal.
    """
    metrics.reset()
    with torch.no_grad(), eval_mode(model, loss):
        for batch, size, _ in feed.epoch(0):
            if stop is not None and stop.signal:
                raise Preempted
            with precision.autocast(strategy.device):
                result = forward(batch)
            metrics.add("loss", result.loss, size)
            for name, value in (result.extra or {}).items():
                metrics.keep(name, value, size)
            if metrics.wants_outputs:
                metrics.update(result.outputs, result.target, size)
    strategy.after_evaluation()
    return metrics.compute(strategy.sum_over_ranks)


def predict(
    model: nn.Module, call: Callable[[object], object], feed: Feed, strategy: SingleDevice, precision: Precision
) -> list[object]:
    """The outputs of all batches of all processes, on the CPU, in order."""
    mine: list[object] = []
    with torch.no_grad(), eval_mode(model):
        for batch, size, total in feed.epoch(0):
            with precision.autocast(strategy.device):
                outputs = call(batch)
            mine.append(wt.to(outputs, wt.cpu()) if size or not total else None)
    strategy.after_evaluation()
    steps = zip_longest(*strategy.gather(mine))
    return [outputs for step in steps for outputs in step if outputs is not None]
