"""Collectives of a rehearsal without data: the ranks meet and agree on the time, and nothing else is carried.

What PyTorch itself computes with on a device keeps its values: the sizes and bytes of pickled objects, the shapes that
`DistributedDataParallel` compares, the state of DTensor's generator. They are few, and they decide what happens next.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Protocol

import torch
import torch.distributed as dist

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.state.core import Local
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import Tag, attach, device_of, is_physically_meta, storage_of

Tensor = torch.Tensor

OBJECTS = (
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
    "recv_object_list",
)  # fmt: skip
"""Collectives of pickled objects (torch/distributed/distributed_c10d.py)."""

VOTES = ("_warmup_forward_vote", "_warmup_backward_result")
"""By which the stages of a pipeline agree whether their shapes are known (torch/distributed/pipelining/stage.py)."""


class Placed(Protocol):
    """What is asked of a DTensor's specification."""

    placements: tuple[object, ...]


class AskedOperator(Protocol):
    """What is asked of an operator on DTensors."""

    args_spec: tuple[Placed, ...]


@contextmanager
def with_values(local: Local) -> Iterator[None]:
    """Let this thread make device tensors that have values, also where there are no data."""
    before, local.valued = local.valued, True
    try:
        yield
    finally:
        local.valued = before


def lacks_values(values: Iterable[object]) -> bool:
    """Whether some tensor among arguments has no values."""
    return any(map(is_physically_meta, tensors_in(values)))


def token() -> list[Tensor]:
    """What goes between two ranks in place of a message."""
    with torch._C._DisableTorchDispatch():
        return [torch.zeros(1, dtype=torch.uint8, device="cpu")]


def shapes_of(tensors: list[Tensor]) -> list[Tensor]:
    """Parameters to compare the shapes of: C++ puts what it compares where the first one is physically.

    No memory is touched where the first one, which must be on the CPU, is large.
    """
    first = tensors[0]
    with torch._C._DisableTorchDispatch():
        made = torch.empty_strided(first.shape, first.stride(), dtype=first.dtype, device="cpu")
    attach(storage_of(made), Tag(device_of(first), 0))
    return [made, *tensors[1:]]


def functions(state: State) -> list[Patch]:
    """What `torch.distributed` itself has of such functions; none where all tensors have values."""
    if not state.no_data:
        return []
    return [
        *_keeping(state, dist, OBJECTS),
        *_keeping(state, dist.distributed_c10d, OBJECTS),
        # It warns that it has no timers for the device where the parameters are physically.
        Patch(dist.Logger, "set_runtime_stats_and_log", lambda self: None),  # type: ignore[attr-defined]
    ]


def modules(state: State) -> dict[str, Callable[[ModuleType], list[Patch]]]:
    """What modules have of them that the program may import later, by their names."""
    if not state.no_data:
        return {}
    return {
        "torch.distributed.tensor._sharding_prop": _asked_once,
        "torch.distributed.tensor._random": lambda found: _keeping(state, found.OffsetBasedRNGTracker, ["__init__"]),
        "torch.distributed.pipelining.stage": lambda found: _keeping(state, found.PipelineStage, VOTES),
    }


def _asked_once(module: ModuleType) -> list[Patch]:
    """DTensor goes through an operator's arguments for strided shards once for each tensor of its lists.

    A step of an optimizer has thousands of them: where it found none it is not asked again.
    """
    name = "_propagate_use_strided_shard_flag"  # not in every version of PyTorch
    stock: Callable[..., None] | None = getattr(module, name, None)
    if stock is None:
        return []
    without: list[weakref.ref[object]] = []

    def propagate(op_strategy: object, op_schema: AskedOperator) -> None:
        if without and without[0]() is op_schema:
            return
        if any(isinstance(one, module._StridedShard) for spec in op_schema.args_spec for one in spec.placements):
            stock(op_strategy, op_schema)
        else:
            without[:] = [weakref.ref(op_schema)]

    return [Patch(module, name, propagate)]


def _keeping(state: State, owner: object, names: Iterable[str]) -> list[Patch]:
    """The functions of `owner`, not all of which every version of PyTorch has, whose device tensors keep values."""

    def kept(stock: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(stock)
        def function(*args: object, **kwargs: object) -> object:
            with with_values(state.local):
                return stock(*args, **kwargs)

        return function

    return [Patch(owner, name, kept(getattr(owner, name))) for name in names if hasattr(owner, name)]
