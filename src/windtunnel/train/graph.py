"""Whole training steps as one CUDA graph: captured once, then replayed with a single launch.

A replay repeats what the GPU did, not what Python did. So a step is captured only if its Python code changes nothing on
the host and everything that it reads there can be observed. That is compared before each replay, and a replay is
compared with the step itself when the graph is new, after callbacks, and from time to time.
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel import torch as wt
from windtunnel.train.host_state import HostState, random_draws, signature
from windtunnel.train.step import ModuleStep, Result, Step

WARMUP_STEPS = 3  # cuDNN and cuBLAS choose and allocate in the first steps, which a graph must not hold
COMPARED_REPLAYS = 2  # of a new graph
COMPARED_AGAIN = frozenset(10**power for power in range(1, 12))  # and these, counted from its first
CAPTURES_WITHOUT_DOUBT = 4  # after so many, each capture has to have served for REPLAYS_A_CAPTURE
REPLAYS_A_CAPTURE = 20
SHAPES = 64  # kinds of batches that are waited for to come again
TOLERANCE = 1e-2  # of an update: kernels that add in any order differ by less, a changed step by more


def why_not(step: Step, enabled: bool, accumulate: int) -> str | None:
    """Why this step cannot be captured; None if a capture can be tried."""
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
    """A Step that captures itself after a few runs and is then replayed for every batch of the same kind.

    A batch of another kind, such as the last of an epoch, is run as an ordinary step, and so is every batch once the
    step turns out to do something that a graph cannot; `status` says which and why. If hyperparameters, modes or
    attributes have changed, the step is captured again.
    """

    def __init__(self, step: Step, wants_outputs: bool) -> None:
        self.step = step
        self.status = f"eager, to be captured after {WARMUP_STEPS} steps"
        self._wants_outputs = wants_outputs
        self._device = step.strategy.device
        self._runs: dict[object, int] = {}
        self._kind: object = None
        self._graph: Any = None
        self._given_up = False
        self._inputs: list[torch.Tensor] = []
        self._gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._result: Any = None
        self._host: HostState | None = None
        self._optimizer: object = None
        self._steps = self._captures = self._replays = self._to_compare = 0
        self._own_gradients = False  # whether parameters have those of an ordinary step, not the graph's

    def touched(self) -> None:
        """Compare the next replay with the step, since code that may have changed anything has run."""
        self._to_compare = max(self._to_compare, 1)

    def __call__(self, batch: object, size: int, total: int) -> Result:
        if self._given_up:
            return self.step(batch, size, total)
        self._steps += 1
        try:
            kind = signature(batch)
        except TypeError as error:
            return self._give_up(str(error), batch, size, total)
        if self._graph is not None and not self._look_at_the_host():
            return self.step(batch, size, total)
        if self._graph is None:
            self._runs[kind] = self._runs.get(kind, 0) + 1
            if self._runs[kind] <= WARMUP_STEPS:
                return self._warm_up(kind, batch, size, total)
            if not self._capture(kind, batch, size, total):
                return self.step(batch, size, total)
        if kind != self._kind:
            self._own_gradients = True
            return self.step(batch, size, total)
        self._replays += 1
        if self._to_compare or self._replays in COMPARED_AGAIN:
            self._to_compare = max(self._to_compare - 1, 0)
            return self._compared(batch, size, total)
        self._replay(batch)
        return self._copy_of_result()

    def _give_up(self, reason: str, batch: object, size: int, total: int) -> Result:
        self._end(reason)
        return self.step(batch, size, total)

    def _end(self, reason: str) -> None:
        self._given_up, self.status = True, f"eager: {reason}"
        self._graph = self._result = self._host = None
        self._inputs, self._gradients = [], []

    def _roots(self) -> dict[str, object]:
        step = self.step
        loss = {"the loss": step.loss} if step.loss is not None else {}
        model = step.runner.module if isinstance(step.runner, ModuleStep) else step.runner
        return {"model": model, **loss, "optimizer": step.optimizer}

    def _look_at_the_host(self) -> bool:
        """Discard the graph if the host's part of the step has changed. False: there will be no graph again."""
        if self.step.optimizer is not self._optimizer:
            change: str | None = "the optimizer"
        else:
            assert self._host is not None
            change = self._host.change()
        if change is None:
            return True
        if self._captures >= CAPTURES_WITHOUT_DOUBT and self._steps < REPLAYS_A_CAPTURE * self._captures:
            self._end(f"what the step reads on the host changes too often for a graph, at last {change}")
            return False
        reason = why_not(self.step, True, 1)
        if reason is not None:
            self._end(reason)
            return False
        self.status = f"eager, to be captured anew: {change} has changed"
        self._graph, self._result, self._kind = None, None, None
        self._runs.clear()
        return True

    def _warm_up(self, kind: object, batch: object, size: int, total: int) -> Result:
        """An ordinary step, on a side stream as PyTorch requires before a capture; observed from the second one on."""
        if len(self._runs) > SHAPES:
            return self._give_up(f"more than {SHAPES} kinds of batches came, few of them again", batch, size, total)
        watched = HostState(self._roots()) if self._runs[kind] > 1 else None
        if watched is not None and watched.objection is not None:
            return self._give_up(watched.objection, batch, size, total)
        draws = random_draws() if watched is not None else ()
        side = wt.stream(self._device)
        with side:
            result = self.step(batch, size, total)
        side.join(result.loss, result.outputs, result.extra, result.target)
        if watched is not None:
            change = watched.change() or ("random numbers of the host" if random_draws() != draws else None)
            if change is not None:
                self._end(f"the step itself changes {change}, which a replay would not do")
        return result

    def _capture(self, kind: object, batch: object, size: int, total: int) -> bool:
        static = wt.map_tensors(lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad), batch)
        cuda: Any = torch.cuda
        try:
            graph = cuda.CUDAGraph()
            with cuda.graph(graph, capture_error_mode="thread_local"):  # the checkpoint writer may allocate meanwhile
                self._result = self.step(static, size, total)
        except RuntimeError as error:
            self._end(f"the capture failed ({str(error).splitlines()[0]})")
            return False
        self._graph, self._inputs, self._kind = graph, list(wt.tensors_in(static)), kind
        optimizer = self._optimizer = self.step.optimizer
        self._gradients = [(p, p.grad) for group in optimizer.param_groups for p in group["params"]]
        self._host = HostState(self._roots())
        self._captures += 1
        self._replays, self._to_compare, self._own_gradients = 0, COMPARED_REPLAYS, False
        self.status = "captured as a CUDA graph"
        return True

    def _replay(self, batch: object) -> None:
        with torch.no_grad():
            for static, tensor in zip(self._inputs, wt.tensors_in(batch), strict=True):
                static.copy_(tensor, non_blocking=True)
        if self._own_gradients:
            for parameter, gradient in self._gradients:
                parameter.grad = gradient
            self._own_gradients = False
        self._graph.replay()

    def _copy_of_result(self) -> Result:
        """A copy of the result: the next replay overwrites the graph's."""
        result: Result = self._result
        outputs, target = (result.outputs, result.target) if self._wants_outputs else (None, None)
        copied: Result = wt.map_tensors(_copied, result._replace(outputs=outputs, target=target))
        return copied

    def _compared(self, batch: object, size: int, total: int) -> Result:
        """The ordinary step, after a replay from the same state, which must have given the same result."""
        held = self._held()
        replayed = False
        device = self._device
        try:
            before = [_copied(tensor) for tensor in held]
            draws = torch.cuda.get_rng_state(device)
            self._replay(batch)
            replayed = True
            loss = _copied(self._result.loss)
            after = [_copied(tensor) for tensor in held]
        except torch.OutOfMemoryError:
            if replayed:
                _restore(held, before)
                torch.cuda.set_rng_state(draws, device)
            return self._give_up("the memory does not suffice to compare it with a graph", batch, size, total)
        drawn = torch.cuda.get_rng_state(device)
        _restore(held, before)
        torch.cuda.set_rng_state(draws, device)
        self._own_gradients = True
        result = self.step(batch, size, total)
        pairs = zip(held, after, before, strict=True)
        agree = _close(result.loss.detach(), loss, None) and torch.equal(drawn, torch.cuda.get_rng_state(device))
        if not (agree and all(_close(now, replay, former) for now, replay, former in pairs)):
            self._end("a replay did not compute what the step itself did")
        return result

    def _held(self) -> list[torch.Tensor]:
        """All tensors that a step may change: parameters, buffers, the optimizer's state."""
        step = self.step
        found = [*wt.tensors_in(step.runner), *(wt.tensors_in(step.loss) if step.loss_module is not None else ())]
        for group in step.optimizer.param_groups:
            found += group["params"]
        for state in step.optimizer.state.values():
            found += wt.tensors_in(state)
        return list({id(tensor): tensor for tensor in found}.values())


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _restore(tensors: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def _close(one: torch.Tensor, other: torch.Tensor, former: torch.Tensor | None) -> bool:
    """Whether two results are equal up to the order of summation; `former` is the state before both updates."""
    one, other = one.detach(), other.detach()
    if not one.is_floating_point():
        return torch.equal(one, other)
    if torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)):
        return torch.equal(one.isnan(), other.isnan())
    change = one if former is None else one - former
    rounding = 8 * torch.finfo(one.dtype).eps * one.abs().max()
    return bool(((one - other).abs().max() <= TOLERANCE * change.abs().max() + rounding).item())
