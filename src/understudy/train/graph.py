"""Whole training steps as one CUDA graph: captured once, then replayed with a single launch."""

from __future__ import annotations

from typing import Any

import torch

from understudy import torch as us
from understudy.train.step import Result, Step

WARMUP_STEPS = 3  # cuDNN and cuBLAS choose and allocate in the first steps, which a graph must not hold


def why_not(step: Step, enabled: bool, accumulate: int) -> str | None:
    """Why this step cannot be captured; None where nothing speaks against a trial."""
    optimizer = step.optimizer
    if not enabled:
        return "graph=False"
    if step.strategy.device.type != "cuda":
        return "there is no GPU in use"
    if step.strategy.name != "single":
        return f"strategy {step.strategy.name!r} is not captured, only a single GPU is"
    if accumulate > 1:
        return "gradients are accumulated over several batches"
    if step.scaler is not None:
        return "fp16 scales its losses by decisions of the host (bf16 does not)"
    for group in optimizer.param_groups:
        if not group.get("capturable", isinstance(optimizer, torch.optim.SGD)):
            name = type(optimizer).__name__
            return f"this {name} is not capturable: give fit torch.optim.{name} itself, or make it with capturable=True"
    return None


class GraphStep:
    """A Step that captures itself once it has run a few times, and is replayed for every batch of that shape.

    A batch of another shape, such as the last of an epoch, takes the ordinary way. Where the capture fails the step
    stays ordinary; `status` says which it is and why.
    """

    def __init__(self, step: Step, wants_outputs: bool) -> None:
        self.step = step
        self.status = f"eager, to be captured after {WARMUP_STEPS} steps"
        self._device = step.strategy.device
        self._runs: dict[Any, int] = {}
        self._shape: Any = None
        self._graph: Any = None
        self._given_up = False
        self._inputs: list[torch.Tensor] = []
        self._result: Any = None

    def __call__(self, batch: Any, size: int, total: int) -> Result:
        tensors = list(us.tensors_in(batch))
        shape = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
        if self._given_up or (self._graph is not None and shape != self._shape):
            return self.step(batch, size, total)
        if self._graph is None:
            self._runs[shape] = self._runs.get(shape, 0) + 1
            if self._runs[shape] <= WARMUP_STEPS:
                return self._warm_up(batch, size, total)
            if not self._capture(batch, size, total):
                return self.step(batch, size, total)
            self._shape = shape
        for static, tensor in zip(self._inputs, tensors, strict=True):
            static.copy_(tensor, non_blocking=True)
        self._graph.replay()
        result: Result = self._result
        return result._replace(loss=result.loss.detach().clone())

    def _warm_up(self, batch: Any, size: int, total: int) -> Result:
        """An ordinary step, on a side stream as PyTorch asks for before a capture."""
        side = us.stream(self._device)
        with side:
            result = self.step(batch, size, total)
        side.join(result.loss, result.outputs)
        return result

    def _capture(self, batch: Any, size: int, total: int) -> bool:
        static = us.map_tensors(torch.clone, batch)
        cuda: Any = torch.cuda
        try:
            graph = cuda.CUDAGraph()
            with cuda.graph(graph, capture_error_mode="thread_local"):  # the checkpoint writer may allocate meanwhile
                self._result = self.step(static, size, total)
        except RuntimeError as error:
            self._given_up = True
            self.status = f"eager: the capture failed ({str(error).splitlines()[0]})"
            return False
        self._graph, self._inputs = graph, list(us.tensors_in(static))
        self.status = "captured as a CUDA graph"
        return True
