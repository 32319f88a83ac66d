"""One process a GPU, on one machine or many: PyTorch's DistributedDataParallel, started by torchrun."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from understudy import torch as us
from understudy.errors import UsageError
from understudy.train.strategies.single import SingleDevice


class Distributed(SingleDevice):
    """Every process holds the model and trains on its share of each batch; gradients are averaged in backward.

    Keyword arguments go to DistributedDataParallel (`find_unused_parameters=True`, ...). The process group is the one
    that exists, or is made from torchrun's variables: nccl with GPUs, gloo without. Small values (flags, sums,
    random states) travel over a gloo group, which needs no GPU.
    """

    name = "ddp"

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self._control: Any = None
        self._managed: set[int] = set()  # ids of the parameters whose gradients the wrapper averages
        self._followed: list[nn.Module] = []
        self._trained: list[nn.Parameter] = []  # those that were not frozen when the wrapper was made

    def setup(self, gpus: Sequence[torch.device]) -> None:
        if gpus:
            local_rank = int(os.environ.get("LOCAL_RANK", "0"))
            self.gpus = [us.gpu(local_rank % us.num_gpus())]
            torch.cuda.set_device(self.gpus[0])
        if not dist.is_initialized():
            self._begin_group()
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        if self._control is None:
            self._control = dist.new_group(backend="gloo")

    def _begin_group(self) -> None:
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            raise UsageError(
                f"strategy {self.name!r} runs one process a GPU, and this process was not started as one of them "
                "(RANK is not set): start it with `torchrun --nproc-per-node N script.py` or "
                "`understudy run --nproc-per-node N script.py`."
            )
        dist.init_process_group("nccl" if self.gpus else "gloo")
        atexit.register(_end_group)

    def place(self, model: nn.Module) -> nn.Module:
        super().place(model)
        self._followed = []
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._managed = {id(parameter) for parameter in self._trained}
        if not self._trained:
            self.equalize(us.tensors_in(model))
            return model
        devices = list(self.gpus) or None
        return DistributedDataParallel(model, device_ids=devices, **self.options)

    def require_trained(self) -> None:
        if self.options.get("find_unused_parameters") or all(parameter.requires_grad for parameter in self._trained):
            return
        raise UsageError(
            f"strategy {self.name!r} waits for the gradient of every parameter that was not frozen when fit began, and "
            "one has been frozen since: freeze it before, or set the learning rate of its parameter group to 0."
        )

    def follow(self, module: nn.Module) -> None:
        self.equalize(us.tensors_in(module))
        self._followed.append(module)

    def before_forward(self) -> None:
        for module in self._followed:
            self.equalize(module.buffers())

    def equalize(self, tensors: Iterable[torch.Tensor]) -> None:
        alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        for tensor in tensors:
            alike.setdefault((tensor.device, tensor.dtype), []).append(tensor.detach())
        for (device, _), group in alike.items():
            flat = torch.cat([tensor.reshape(-1) for tensor in group])
            dist.broadcast(flat, src=0, group=self._group(device))
            for tensor, values in zip(group, flat.split([tensor.numel() for tensor in group]), strict=True):
                tensor.copy_(values.view_as(tensor))

    def average_unmanaged(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"] if not self._is_managed(p)]
        if not parameters:
            return
        present = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
        dist.all_reduce(present, group=self._control)
        for parameter, count in zip(parameters, present.tolist(), strict=True):
            if count:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                dist.all_reduce(gradient, group=self._group(gradient.device))
                parameter.grad = gradient / self.world_size

    def _is_managed(self, parameter: torch.Tensor) -> bool:
        """Whether the wrapper averages its gradients."""
        return id(parameter) in self._managed

    def _group(self, device: torch.device) -> Any:
        """The process group for tensors of that device; None is the default one."""
        return self._control if device.type == "cpu" else None

    def without_sync(self, runner: nn.Module) -> AbstractContextManager[Any]:
        if isinstance(runner, DistributedDataParallel):
            return runner.no_sync()
        return super().without_sync(runner)

    def sum_over_ranks(self, values: dict[str, float]) -> dict[str, float]:
        total: dict[str, float] = {}
        for part in self.gather(values):
            for name, value in part.items():
                total[name] = total.get(name, 0.0) + value
        return total

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._control)
        return values

    def broadcast(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._control, device=us.cpu())
        return box[0]

    @contextmanager
    def rank_zero_first(self) -> Iterator[bool]:
        try:
            yield self.rank == 0
        finally:
            dist.barrier(group=self._control)


def _end_group() -> None:
    """Leave the process group as the interpreter ends.

    gloo's threads free the tensors of the last collectives, for which they need the interpreter's lock. One that asks
    for it when the interpreter has ended aborts the process, so they are given a moment (torch 2.13, gloo/runLoop).
    """
    if dist.is_initialized():
        dist.destroy_process_group()
        threading.Event().wait(0.05)
