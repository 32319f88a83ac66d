"""One process per GPU, on one machine or many: PyTorch's DistributedDataParallel, started by torchrun."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.train.strategies.single import SingleDevice


class Distributed(SingleDevice):
    """Every process holds the model and trains on its share of each batch; backward passes average gradients.

    Keyword arguments go to DistributedDataParallel (`find_unused_parameters=True`, ...). The process group is the
    existing one, or is created from torchrun's variables: nccl with GPUs, gloo without. Small values (flags, sums,
    random states) travel over gloo, which needs no GPU.
    """

    name = "ddp"

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self._control: dist.ProcessGroup | None = None
        self._managed: set[int] = set()  # ids of the parameters whose gradients the wrapper averages
        self._sparse: set[int] = set()  # ids of those that have sparse gradients
        self._followed: list[nn.Module] = []
        self._model: nn.Module = nn.Identity()
        self._wrapper: DistributedDataParallel | None = None
        self._trained: list[bool] = []  # which parameters were not frozen when they were last looked at

    def setup(self, gpus: Sequence[torch.device]) -> None:
        if gpus:
            local_rank = int(os.environ.get("LOCAL_RANK", "0"))
            self.gpus = [wt.gpu(local_rank % wt.num_gpus())]
            torch.cuda.set_device(self.gpus[0])
        if not dist.is_initialized():
            self._begin_group()
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._control = _control_group()

    def _begin_group(self) -> None:
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            raise UsageError(
                f"strategy {self.name!r} runs one process a GPU, and this process was not started as one of them "
                "(RANK is not set): start it with `torchrun --nproc-per-node N script.py` or "
                "`windtunnel run --nproc-per-node N script.py`."
            )
        dist.init_process_group("nccl" if self.gpus else "gloo")
        atexit.register(_end_group)

    def place(self, model: nn.Module) -> nn.Module:
        super().place(model)
        self._followed, self._model = [], model
        self._sparse = sparse_weights(model)
        self._trained = [parameter.requires_grad for parameter in model.parameters()]
        self._managed = set()
        if not self._wrapped():
            self._wrapper = None
            self.equalize(wt.tensors_in(model))
            return model
        self.equalize(parameter for parameter in model.parameters() if id(parameter) in self._sparse)
        self._wrapper = DistributedDataParallel.__new__(DistributedDataParallel)
        self._wrap(self._wrapper)
        return self._wrapper

    def _wrapped(self) -> list[str]:
        """The names of the parameters whose gradients the wrapper averages; NCCL reduces no sparse ones."""
        parameters = self._model.named_parameters()
        return [name for name, p in parameters if p.requires_grad and id(p) not in self._sparse]

    def _wrap(self, wrapper: DistributedDataParallel) -> None:
        """Create the wrapper, or reinitialize the same object for other parameters, so references to it stay valid."""
        wrapped = self._wrapped()
        parameters = dict(self._model.named_parameters())
        self._managed = {id(parameters[name]) for name in wrapped}
        ignored = [name for name, parameter in self._model.named_parameters() if id(parameter) in self._sparse]
        if ignored:
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self._model, ignored)
        DistributedDataParallel.__init__(wrapper, self._model, device_ids=list(self.gpus) or None, **self.options)

    def adopt_parameters(self) -> None:
        trained = [parameter.requires_grad for parameter in self._model.parameters()]
        if trained == self._trained:
            return
        self._trained = trained
        if self._wrapper is not None and self._wrapped():
            self._wrap(self._wrapper)

    def follow(self, module: nn.Module) -> None:
        self.equalize(wt.tensors_in(module))
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
        gradients = [parameter.grad for parameter in parameters]
        present = torch.tensor([[g is not None and not g.is_sparse, g is not None and g.is_sparse] for g in gradients])
        present = present.to(torch.int32)
        dist.all_reduce(present, group=self._control)
        for parameter, (dense, sparse) in zip(parameters, present.tolist(), strict=True):
            if dense:
                parameter.grad = self._dense_sum(parameter) / self.world_size
            elif sparse:
                parameter.grad = self._sparse_sum(parameter) / self.world_size

    def _dense_sum(self, parameter: torch.Tensor) -> torch.Tensor:
        """The sum of a parameter's gradients over the processes, some of which may have none."""
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        dist.all_reduce(gradient, group=self._group(gradient.device))
        return gradient

    def _sparse_sum(self, parameter: torch.Tensor) -> torch.Tensor:
        """The same for sparse gradients: the entries of all processes, gathered in tensors of equal size for NCCL."""
        own = None if parameter.grad is None else parameter.grad.coalesce()
        sizes = self.gather((0, 0) if own is None else (own.sparse_dim(), own._nnz()))
        dims, most = (max(size) for size in zip(*sizes, strict=True))
        indices = parameter.new_zeros((dims, most), dtype=torch.int64)
        values = parameter.new_zeros((most, *parameter.shape[dims:]))
        if own is not None:
            indices[:, : own._nnz()], values[: own._nnz()] = own.indices(), own.values()
        group, gathered = self._group(parameter.device), []
        for mine in (indices, values):
            of_all = [torch.empty_like(mine) for _ in sizes]
            dist.all_gather(of_all, mine, group=group)
            gathered.append(of_all)
        pairs = zip(*gathered, sizes, strict=True)
        parts = [(indices[:, :count], values[:count]) for indices, values, (_, count) in pairs]
        joined = torch.cat([part[0] for part in parts], 1), torch.cat([part[1] for part in parts])
        return torch.sparse_coo_tensor(*joined, parameter.shape)

    def _is_managed(self, parameter: torch.Tensor) -> bool:
        """Whether the wrapper averages its gradients."""
        return id(parameter) in self._managed

    def _group(self, device: torch.device) -> dist.ProcessGroup | None:
        """The process group for tensors on that device; None is the default group."""
        return self._control if device.type == "cpu" else None

    def without_sync(self, runner: nn.Module) -> AbstractContextManager[object]:
        if isinstance(runner, DistributedDataParallel):
            return runner.no_sync()
        return super().without_sync(runner)

    def sum_over_ranks(self, values: dict[str, float]) -> dict[str, float]:
        total: dict[str, float] = {}
        for part in self.gather(values):
            for name, value in part.items():
                total[name] = total.get(name, 0.0) + value
        return total

    def gather(self, value: object) -> list[Any]:
        values: list[object] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._control)
        return values

    def broadcast(self, value: object) -> object:
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._control, device=wt.cpu())
        return box[0]


def _control_group() -> dist.ProcessGroup:
    """A group for small values on the host: the default group if it is gloo's, otherwise one for all Trainers.

    Each gloo group opens connections between all processes again, so one is shared.
    """
    default = dist.group.WORLD
    assert default is not None
    if dist.get_backend(default) == dist.Backend.GLOO:
        return default
    if default not in _CONTROL_GROUPS:
        _CONTROL_GROUPS[default] = dist.new_group(backend="gloo")
    return _CONTROL_GROUPS[default]


_CONTROL_GROUPS: weakref.WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = weakref.WeakKeyDictionary()
"""By the default group."""


def sparse_weights(model: nn.Module) -> set[int]:
    """The ids of the parameters of modules with sparse gradients, such as an Embedding with sparse=True."""
    modules = [module for module in model.modules() if getattr(module, "sparse", False) is True]
    return {id(parameter) for module in modules for parameter in module.parameters(recurse=False)}


def _end_group() -> None:
    """Destroy the process group when the interpreter exits.

    gloo's threads release the tensors of the last collectives, for which they need the interpreter's lock. One that
    requests it after the interpreter has exited aborts the process, so they are given a moment (torch 2.13,
    gloo/runLoop).
    """
    if dist.is_initialized():
        dist.destroy_process_group()
        threading.Event().wait(0.05)
