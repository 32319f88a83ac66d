"""`torch.distributed.shrink_group`, which goes on without some ranks: the group that it makes becomes ours.

PyTorch makes it of the backend that `ProcessGroupNCCL.shrink` gives, past the function by which groups are made. Where
the default group shrinks, its ranks have new numbers from then on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch.distributed as dist

from windtunnel.errors import UnsupportedError
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.distributed.groups import Groups

Adopt = Callable[[dist.ProcessGroup, Sequence[int]], None]
"""What takes a group with its ranks for one of the emulation's."""
UNBOUND = (
    "shrink_group needs a group that was given its device, init_process_group(device_id=...): without it, the "
    "group that PyTorch makes takes no CUDA tensors"
)
"""Its `_create_shrunk_process_group` takes a backend without a device for one of CPUs."""
NAME = "_create_shrunk_process_group"


def functions(groups: Groups, adopt: Adopt) -> list[Patch]:
    """The step of it that makes the group; none where PyTorch cannot shrink groups."""
    owner = dist.distributed_c10d
    return [Patch(owner, NAME, _creating(groups, getattr(owner, NAME), adopt))] if hasattr(owner, NAME) else []


def _creating(groups: Groups, stock: Callable[..., dist.ProcessGroup], adopt: Adopt) -> Callable[..., object]:
    @functools.wraps(stock)
    def create_shrunk_process_group(
        new_backend: object, remaining_ranks: Sequence[int], metadata: Mapping[str, object], is_default_group: bool
    ) -> dist.ProcessGroup:
        if metadata["bound_device_id"] is None:
            raise UnsupportedError(UNBOUND)
        group = stock(new_backend, remaining_ranks, metadata, is_default_group)
        ranks = range(group.size()) if is_default_group else remaining_ranks
        if is_default_group:
            groups.watch.begin(group.rank(), dist.distributed_c10d.PrefixStore("shrunk", new_backend._wt_store))  # type: ignore[arg-type, attr-defined]
        groups.watch.joined(group.group_name, group.group_desc, ranks)
        adopt(group, ranks)
        return group

    return create_shrunk_process_group
