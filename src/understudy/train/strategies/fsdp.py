"""One process a GPU, each holding a shard of the parameters, gradients and optimizer state: PyTorch's FSDP2."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from understudy import torch as us
from understudy.errors import UsageError
from understudy.train.strategies.ddp import Distributed
from understudy.train.strategies.single import SingleDevice


class Sharded(Distributed):
    """`fully_shard` on the model and, before it, on every block: the entries of its ModuleLists and Sequentials.

    Keyword arguments go to `fully_shard` (`mp_policy=...`, `reshard_after_forward=...`). The parameters become
    DTensors, so that the optimizer is made after that: give `fit` a function of the parameters, not an optimizer.
    Parameters without dimensions, or of another type than most, stay whole in every process, and so do those of a loss.
    Buffers are rank 0's before each forward pass of training, as under DDP.
    """

    name = "fsdp"
    _model: nn.Module
    _names: list[str]  # of the parameters that were not frozen when they were sharded

    def place(self, model: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        if self.device.type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
            raise UsageError(
                f"fully_shard of PyTorch {torch.__version__} runs on GPUs alone (torch.cpu.Stream records no event): "
                "take the strategy ddp, run on emulated GPUs (`understudy run --gpus N`), or install a newer PyTorch"
            )
        if any(getattr(module, "sparse", False) is True for module in model.modules()):
            raise UsageError(
                "strategy 'fsdp' shards dense gradients, and this model has an embedding with sparse=True: leave that "
                "out, or take the strategy 'ddp'."
            )
        SingleDevice.place(self, model)
        self._followed = [model]
        self.equalize(us.tensors_in(model))
        mesh = init_device_mesh(self.device.type, (self.world_size,))
        shard: Any = fully_shard
        whole = _kept_whole(model)
        options = {"mesh": mesh, **({"ignored_params": whole} if whole else {}), **self.options}
        for block in _blocks(model):
            shard(block, **options)
        shard(model, **options)
        self._model = model
        self._names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        return model

    def require_trained(self) -> None:
        present = dict(self._model.named_parameters())  # shards, or whole parameters where a forward has gathered them
        self._trained = [present[name] for name in self._names]
        super().require_trained()

    def follow(self, module: nn.Module) -> None:
        self.equalize(us.tensors_in(module))
        self._followed.append(module)

    def _is_managed(self, parameter: torch.Tensor) -> bool:
        from torch.distributed.tensor import DTensor

        return isinstance(parameter, DTensor)

    def clip_gradients(self, parameters: Sequence[torch.Tensor], largest: float) -> None:
        """The norm is that of all shards and of what is kept whole; PyTorch's own takes tensors of one kind alone."""
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

    def without_sync(self, runner: nn.Module) -> AbstractContextManager[Any]:
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
            return us.to(full, like.device)
        return distribute_tensor(us.to(full, like.device), like.device_mesh, like.placements)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The entries of ModuleLists and Sequentials, inner ones first, that can be shards of their own.

    Those that share a parameter with a module outside of them stay with what holds both: FSDP wants one group for it.
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
    """Parameters that cannot be in shards: those without dimensions, and those of another type than most."""
    parameters = list(model.parameters())
    sizes: dict[torch.dtype, int] = {}
    for parameter in parameters:
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    usual = max(sizes, key=lambda dtype: sizes[dtype], default=None)
    return {parameter for parameter in parameters if not parameter.dim() or parameter.dtype != usual}
