"""One process per GPU, each holding a shard of the parameters, gradients and optimizer state: PyTorch's FSDP2."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.train.strategies.ddp import Distributed, sparse_weights
from windtunnel.train.strategies.single import SingleDevice

_FUSED = (torch.optim.Adam, torch.optim.AdamW)  # torch/distributed/tensor/_ops/_pointwise_ops.py: aten._fused_adam_


class Sharded(Distributed):
    """`fully_shard` on the model and, before it, on every block: the entries of its ModuleLists and Sequentials.

    Keyword arguments go to `fully_shard` (`mp_policy=...`, `reshard_after_forward=...`). The parameters become
    DTensors; an existing optimizer gets them in place of the parameters that it holds. Parameters without dimensions,
    of another dtype than most, or with sparse gradients stay whole in every process, as do those of a loss. Before each
    forward pass of training, buffers are copied from rank 0, as under DDP.
    """

    name = "fsdp"

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._former: dict[str, weakref.ref[torch.Tensor]] = {}  # parameters by name, before they were sharded

    def place(self, model: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        if self.device.type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
            raise UsageError(
                f"fully_shard of PyTorch {torch.__version__} runs only on GPUs (torch.cpu.Stream records no event): "
                "use the strategy ddp, run on emulated GPUs (`windtunnel run --gpus N`), or install a newer PyTorch"
            )
        SingleDevice.place(self, model)
        self._followed, self._model = [model], model
        self._former = {name: weakref.ref(parameter) for name, parameter in model.named_parameters()}
        self.equalize(wt.tensors_in(model))
        mesh = init_device_mesh(self.device.type, (self.world_size,))
        shard: Any = fully_shard
        whole = _kept_whole(model)
        whole |= {parameter for parameter in model.parameters() if id(parameter) in sparse_weights(model)}
        options = {"mesh": mesh, **({"ignored_params": whole} if whole else {}), **self.options}
        for block in _blocks(model):
            shard(block, **options)
        shard(model, **options)
        self._trained = [parameter.requires_grad for parameter in model.parameters()]
        return model

    def after_evaluation(self) -> None:
        from torch.distributed.fsdp import FSDPModule

        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def adopt_parameters(self) -> None:
        """What a callback froze on gathered parameters is lost when they are released: set it on the shards."""
        trained = [parameter.requires_grad for parameter in self._model.parameters()]
        if trained == self._trained:
            return
        self._trained = trained
        self.after_evaluation()
        for parameter, wanted in zip(self._model.parameters(), trained, strict=True):
            parameter.requires_grad_(wanted)

    def adopt_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        from torch.distributed.tensor import DTensor

        present = dict(self._model.named_parameters())
        placed = {id(parameter()): present[name] for name, parameter in self._former.items() if parameter() is not None}
        for group in optimizer.param_groups:
            former, group["params"] = group["params"], [placed.get(id(p), p) for p in group["params"]]
            for before, now in zip(former, group["params"], strict=True):
                if before is not now and before in optimizer.state:
                    state = optimizer.state.pop(before)
                    optimizer.state[now] = {key: self._like(value, now) for key, value in state.items()}
            sharded = [isinstance(parameter, DTensor) for parameter in group["params"]]
            if group.get("fused") and any(sharded) and (not isinstance(optimizer, _FUSED) or not all(sharded)):
                raise UsageError(
                    f"the fused {type(optimizer).__name__} of PyTorch does not take these parameters in shards: leave "
                    "fused=True out under the strategy 'fsdp', except for Adam and AdamW with all parameters sharded."
                )

    def _like(self, value: Any, parameter: torch.Tensor) -> object:
        same = isinstance(value, torch.Tensor) and value.dim() and value.shape == parameter.shape
        return self.shard(value, parameter) if same else value

    def follow(self, module: nn.Module) -> None:
        self.equalize(wt.tensors_in(module))
        self._followed.append(module)

    def _is_managed(self, parameter: torch.Tensor) -> bool:
        from torch.distributed.tensor import DTensor

        return isinstance(parameter, DTensor)

    def clip_gradients(self, parameters: Sequence[torch.Tensor], largest: float) -> None:
        """The norm covers all shards and whole parameters; PyTorch's own function takes tensors of one kind only."""
        from torch.distributed.tensor import DTensor

        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not gradients:
            return
        sharded = [gradient for gradient in gradients if isinstance(gradient, DTensor)]
        whole = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
        norms = [nn.utils.get_total_norm(kind) for kind in (sharded, whole) if kind]
        norm = torch.linalg.vector_norm(torch.stack([self.full(norm) for norm in norms]))
        factor = torch.clamp(largest / (norm + 1e-6), max=1.0)
        for gradient in gradients:
            (gradient.to_local() if isinstance(gradient, DTensor) else gradient).mul_(factor)

    def without_sync(self, runner: nn.Module) -> AbstractContextManager[object]:
        @contextmanager
        def block() -> Any:
            module: Any = runner
            module.set_requires_gradient_sync(False)
            try:
                yield
            finally:
                module.set_requires_gradient_sync(True)

        return block()

    def full(self, tensor: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import DTensor

        if isinstance(tensor, DTensor):
            whole: torch.Tensor = tensor.full_tensor()
            return whole.detach()
        return tensor.detach()

    def shard(self, full: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import DTensor, distribute_tensor

        if not isinstance(like, DTensor):
            return wt.to(full, like.device)
        return distribute_tensor(wt.to(full, like.device), like.device_mesh, like.placements)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The entries of ModuleLists and Sequentials, inner ones first, that can be sharded separately.

    Entries that share a parameter with a module outside are left to a module with both: FSDP needs one group for it.
    """
    users: dict[int, set[int]] = {}  # of each parameter
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(id(parameter), set()).add(id(module))
    found: dict[int, nn.Module] = {}
    for container in reversed(list(model.modules())):
        for block in container.children() if isinstance(container, nn.ModuleList | nn.Sequential) else ():
            inside = {id(module) for module in block.modules()}
            trains = any(parameter.requires_grad for parameter in block.parameters())
            alone = all(users[id(parameter)] <= inside for parameter in block.parameters())
            if trains and alone and not isinstance(block, nn.ModuleList | nn.ModuleDict):
                found[id(block)] = block
    return list(found.values())


def _kept_whole(model: nn.Module) -> set[nn.Parameter]:
    """Parameters that cannot be sharded: those without dimensions, and those of another dtype than most."""
    parameters = list(model.parameters())
    sizes: dict[torch.dtype, int] = {}
    for parameter in parameters:
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    usual = max(sizes, key=lambda dtype: sizes[dtype], default=None)
    return {parameter for parameter in parameters if not parameter.dim() or parameter.dtype != usual}
