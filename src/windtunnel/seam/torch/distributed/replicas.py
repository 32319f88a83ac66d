"""The weights of replicas before an optimizer's first step, written down for `ranks.replicas` to compare.

DistributedDataParallel makes replicas equal when it is made, unless it is told not to; FullyShardedDataParallel does so
only on request, `fully_shard` never. A DTensor tells of itself what it is replicated over.
"""

from __future__ import annotations

import functools
import sys
import weakref
import zlib
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from windtunnel.ranks.replicas import Weights
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.tags import device_of, is_physically_meta

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement

    from windtunnel.seam.torch.distributed.watch import Watch
    from windtunnel.seam.torch.state.state import State

Tensor = torch.Tensor
FLAT = "torch.distributed.fsdp._init_utils"
SHARDED = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
DTENSOR = "torch.distributed.tensor"


class Replicated(NamedTuple):
    """A parameter of which these ranks hold replicas, and the line that made it one."""

    tensor: weakref.ref[Tensor]
    ranks: tuple[int, ...]
    site: int


class Replicas:
    """What this rank holds replicas of."""

    def __init__(self, state: State, watch: Watch) -> None:
        self.state = state
        self.watch = watch
        self.known: list[Replicated] = []
        self.sharded_at = 0  # the line of the first fully_shard
        self.seen: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self.number = 0

    def add(self, tensors: Iterable[Tensor], ranks: Sequence[int]) -> None:
        """These parameters were made replicas."""
        site = self.state.site()
        self.known += [Replicated(weakref.ref(tensor), tuple(ranks), site) for tensor in tensors]

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step: before its first one, write down what it starts from."""
        if optimizer in self.seen:
            return
        self.seen.add(optimizer)
        ledger, state = self.watch.ledger, self.state
        if ledger is None or state.no_data:
            return
        self.number += 1
        found: dict[tuple[int, tuple[int, ...]], list[Tensor]] = {}
        for tensor, ranks, site in self._replicated(optimizer):
            found.setdefault((site, ranks), []).append(tensor)
        for (site, ranks), tensors in found.items():
            place = state.machine.trace.sites[site]
            shapes = tuple(str(list(tensor.shape)) for tensor in tensors)
            ledger.say("weights", Weights(place, ranks, self.number, shapes, tuple(map(_checksum, tensors))))

    def _replicated(self, optimizer: torch.optim.Optimizer) -> Iterable[tuple[Tensor, tuple[int, ...], int]]:
        known, self.known = self.known, []
        for reference, ranks, site in known:
            tensor = reference()
            if tensor is not None and tensor.numel() and not is_physically_meta(tensor):
                yield tensor, ranks, site
        if DTENSOR not in sys.modules:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                local = getattr(parameter, "_local_tensor", None)
                if local is None or device_of(local) < 0 or not local.numel():
                    continue
                ranks = _holders(parameter.device_mesh, parameter.placements)
                if len(ranks) > 1:
                    yield local, ranks, self.sharded_at or self.state.site()


def _holders(mesh: DeviceMesh, placements: Sequence[Placement]) -> tuple[int, ...]:
    """The ranks that hold the same part of a DTensor as this one."""
    with torch._C._DisableTorchDispatch():  # these operators are no work of the program
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            return ()
        place = tuple(slice(None) if placement.is_replicate() else at
                      for at, placement in zip(coordinate, placements, strict=True))  # fmt: skip
        return tuple(mesh.mesh[place].flatten().tolist())


def _checksum(tensor: Tensor) -> int:
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunctionSubclass():
        plain = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        return zlib.crc32(torch._C.TensorBase.numpy(plain).data)


def patches(state: State) -> list[Patch]:
    """Where DistributedDataParallel takes its parameters; and the steps of optimizers are listened to."""
    if not dist.is_available():
        return []
    stock: Callable[..., object] = DistributedDataParallel._ddp_init_helper
    replicas: Replicas = state.groups.replicas
    state.notes.stepping.append(replicas.stepping)

    @functools.wraps(stock)
    def ddp_init_helper(self: DistributedDataParallel, parameters: list[Tensor], *args: object) -> object:
        replicas.add(parameters, dist.get_process_group_ranks(self.process_group))
        made = stock(self, parameters, *args)
        for parameter in parameters if state.machine.concurrent else ():  # the reducer keeps their autograd nodes
            if (device := device_of(parameter)) >= 0:
                state.order.leaf_used(parameter, device)
        return made

    return [Patch(DistributedDataParallel, "_ddp_init_helper", ddp_init_helper)]


def modules(state: State) -> dict[str, Callable[[ModuleType], list[Patch]]]:
    """The same of the modules of FSDP, which the program may import."""
    replicas: Replicas = state.groups.replicas
    return {FLAT: functools.partial(_flat, replicas), SHARDED: functools.partial(_sharded, replicas)}


class Sharded(Protocol):
    """What is asked of FSDP2's group of parameters."""

    modules: tuple[torch.nn.Module, ...]


class FlatState(Protocol):
    """What is asked of the state of a FullyShardedDataParallel."""

    process_group: dist.ProcessGroup
    sharding_strategy: Enum


def _flat(replicas: Replicas, module: ModuleType) -> list[Patch]:
    stock: Callable[..., object] = module._init_param_handle_from_params

    @functools.wraps(stock)
    def init_param_handle_from_params(state: FlatState, *args: object) -> object:
        """FSDP makes a flat parameter, which is synchronized by now if that was asked for."""
        made = stock(state, *args)
        name = state.sharding_strategy.name
        known = vars(state)  # what the module does not have is asked of the one that it wraps, which it has not yet
        group = state.process_group if name == "NO_SHARD" else known.get("_inter_node_pg")
        handle = known.get("_handle")
        if isinstance(group, dist.ProcessGroup) and handle is not None:  # else one that a test made up
            replicas.add([handle.flat_param], dist.get_process_group_ranks(group))
        return made

    return [Patch(module, "_init_param_handle_from_params", init_param_handle_from_params)]


def _sharded(replicas: Replicas, module: ModuleType) -> list[Patch]:
    group = module.FSDPParamGroup
    stock: Callable[..., None] = group.__init__

    @functools.wraps(stock)
    def __init__(self: Sharded, *args: object, **kwargs: object) -> None:  # noqa: N807  it takes that name's place
        stock(self, *args, **kwargs)
        if (assumptions := replicas.state.assumptions) is not None:
            for module in self.modules:
                assumptions.routed.reducers[module] = weakref.ref(self), "reduce_scatter_unused_params"
        replicas.sharded_at = replicas.sharded_at or replicas.state.site()

    return [Patch(group, "__init__", __init__)]
