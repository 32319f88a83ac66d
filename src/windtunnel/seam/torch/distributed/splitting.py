"""`torch.distributed.split_group`, by which a mesh makes its groups where the default group was given a device.

NCCL splits a communicator that is there. gloo has none, so the parts are made as groups of their own by their ranks
alone, which nobody else waits for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import device_mesh

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.distributed.groups import Groups


def functions(groups: Groups) -> list[Patch]:
    """The names under which PyTorch has it."""
    if not hasattr(dist.distributed_c10d, "split_group"):
        return []
    made = _splitting(groups, dist.distributed_c10d.split_group)
    owners = (dist, dist.distributed_c10d, device_mesh)
    return [Patch(owner, "split_group", made) for owner in owners if hasattr(owner, "split_group")]


def _splitting(groups: Groups, stock: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(stock)
    def split_group(
        parent_pg: dist.ProcessGroup | None = None,
        split_ranks: Sequence[Sequence[int]] | None = None,
        timeout: timedelta | None = None,
        pg_options: object = None,
        group_desc: str | None = None,
        **more: object,
    ) -> object:
        parent = parent_pg or dist.group.WORLD
        known = None if parent is None else groups.by_name.get(parent.group_name)
        if not split_ranks or known is None or not known.nccl or _default_device() is None:
            return stock(parent_pg, split_ranks, timeout, pg_options, group_desc, **more)  # which says what is wrong
        assert parent is not None
        backend = known.lender.inner
        described = group_desc or f"{parent.group_desc}:split:{backend.comm_split_count()}"  # type: ignore[attr-defined]
        backend._wt_splits += 1  # type: ignore[attr-defined]
        for part in split_ranks:
            _check(part, dist.get_world_size(), known.size)
            if known.rank in part:
                ranks = sorted(known.ranks[rank] for rank in part)
                return dist.new_group(ranks, timeout=timeout, use_local_synchronization=True, group_desc=described)
        return None

    return split_group


def _check(part: Sequence[int], world: int, size: int) -> None:
    """Refuse what PyTorch refuses (`split_group` of torch/distributed/distributed_c10d.py)."""
    if not part:
        raise ValueError("the split group cannot be empty")
    if len(part) > world:
        raise ValueError("the split group's size should be less or equal to the world_size set by init_process_group")
    if len(part) != len(set(part)):
        raise ValueError("the split group cannot have duplicate ranks")
    if not all(0 <= rank < size for rank in part):
        raise ValueError(f"the split group {list(part)} has a rank that its parent, a group of {size}, does not have")


def _default_device() -> object:
    """The device that `init_process_group` was given."""
    world = dist.group.WORLD
    return None if world is None else world.bound_device_id
