"""One process a GPU, each holding a shard of the parameters, gradients and optimizer state: PyTorch's FSDP2."""

from __future__ import annotations

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
    """

    name = "fsdp"

    def place(self, model: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        if self.device.type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
            raise UsageError(
                f"fully_shard of PyTorch {torch.__version__} runs on GPUs alone (torch.cpu.Stream records no event): "
                "take the strategy ddp, run on emulated GPUs (`understudy run --gpus N`), or install a newer PyTorch"
            )
        SingleDevice.place(self, model)
        mesh = init_device_mesh(self.device.type, (self.world_size,))
        shard: Any = fully_shard
        for module in reversed(list(model.modules())):
            for block in module.children() if isinstance(module, nn.ModuleList | nn.Sequential) else ():
                if any(parameter.requires_grad for parameter in block.parameters()):
                    shard(block, mesh=mesh, **self.options)
        shard(model, mesh=mesh, **self.options)
        return model

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
