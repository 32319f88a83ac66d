"""`torch.distributed` with backend "nccl": its groups run over gloo, and say that they are NCCL's.

The tensors are physically on the CPU, so gloo carries their values; `distributed_collectives` keeps devices, streams
and time. A group of NCCL alone refuses CPU tensors as NCCL does.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
import torch.distributed as dist

from windtunnel.ranks.calls import NEW_GROUP, ON_CPU, Channel, Operation
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.distributed import futures, nccl_settings, nodata, played, shrinking, splitting, unused
from windtunnel.seam.torch.distributed.backend import NCCL_TIMEOUT, backend_class, successors
from windtunnel.seam.torch.distributed.futures import future_class
from windtunnel.seam.torch.distributed.groups import Group, Groups
from windtunnel.seam.torch.distributed.lending import Lender
from windtunnel.seam.torch.distributed.watch import is_detailed
from windtunnel.seam.torch.distributed.work import methods
from windtunnel.seam.torch.state.ranks import Carrier
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import CPU, device_of, is_physically_meta

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Logger

CPU_DEVICE = torch.device("cpu")


def patches(state: State) -> list[Patch]:
    """The names of `torch.distributed` to replace; none where PyTorch was built without it or without gloo."""
    groups = state.groups = Groups(state)
    groups.future = future_class(groups)
    if not dist.is_available() or not dist.is_gloo_available():
        return []
    c10d = dist.distributed_c10d
    nccl = backend_class(groups)
    group_class = dist.ProcessGroup
    owners, classes = (dist, c10d, torch._C._distributed_c10d), {"ProcessGroupNCCL": nccl, **successors(nccl)}
    found = [Patch(owner, name, made) for owner in owners for name, made in classes.items()]
    return [
        *found,
        Patch(c10d, "_NCCL_AVAILABLE", True),
        Patch(c10d, "default_pg_nccl_timeout", NCCL_TIMEOUT),
        Patch(c10d, "_new_process_group_helper", _new_group(groups, nccl)),
        *(Patch(owner, "destroy_process_group", _destroying(groups)) for owner in (dist, c10d)),
        Patch(c10d, "_abort_process_group", _ending(groups, c10d._abort_process_group)),
        Patch(c10d, "_create_process_group_wrapper", _wrapping(groups, c10d._create_process_group_wrapper)),
        Patch(os, "_exit", _leaving(state.groups)),
        Patch(torch._C._distributed_c10d, "_dump_nccl_trace", _dumping(state.groups)),
        Patch(torch._C._distributed_c10d, "_hash_tensors", _hash_tensors),
        Patch(dist, "_verify_params_across_processes", _verifying(state)),
        Patch(group_class, "_device_types", _device_types(groups)),
        *(Patch(group_class, name, method) for name, method in methods(groups).items()),
        *splitting.functions(state.groups),
        *shrinking.functions(state.groups, lambda group, ranks: _adopt(groups, group, ranks, nccl)),
        *unused.functions(state),
        *futures.functions(groups),
        *nodata.functions(state),
    ]


def _new_group(groups: Groups, nccl: type[dist.ProcessGroupGloo]) -> Callable[..., object]:
    stock: Callable[..., tuple[object, ...]] = dist.distributed_c10d._new_process_group_helper

    signature = inspect.signature(stock)

    def new_process_group_helper(*args: object, **kwargs: object) -> object:
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        if attempt != "0" and not given["global_ranks_in_group"]:
            given["store"] = torch._C._distributed_c10d.PrefixStore(
                f"attempt_{attempt}", given["store"]
            )  # torchrun keeps its store
        with _making(groups, given), played.members(_members(given)):
            made = stock(*bound.args, **bound.kwargs)
        group = made[0]
        if isinstance(group, dist.ProcessGroup):
            _adopt(groups, group, _members(given), nccl)
            _connect_eagerly(groups, group)
        return made

    return new_process_group_helper


def _members(given: Mapping[str, Any]) -> Sequence[int]:
    """The ranks of the group that is made, NumPy's numbers too; PyTorch gives none for the default group."""
    return [int(rank) for rank in given["global_ranks_in_group"]] or range(given["group_size"])


ALONE = ("fake", "threaded")
"""Backends whose ranks are not processes: none, or this one's threads (torch.testing._internal.distributed)."""


@contextmanager
def _making(groups: Groups, given: Mapping[str, Any]) -> Iterator[None]:
    """A group is made, for which its ranks wait for one another: gloo's connect at once, as NCCL's do later."""
    ranks, rank = groups.met(_members(given)), given["group_rank"]
    is_alone = any(name in str(given["backend"]) for name in ALONE)
    if len(_members(given)) < 2 or rank is None or rank < 0 or is_alone:
        yield
        return
    name, watch = given["group_name"], groups.watch
    if not given["global_ranks_in_group"]:
        watch.begin(rank, given["store"])
        watch.joined(name, given.get("group_desc") or "default_pg", ranks)
        yield
        return
    watch.joined(name, given.get("group_desc") or "", ranks)
    channel, operation = Channel(name, "create"), Operation(NEW_GROUP, elements=tuple(_members(given)))
    with watch.inside(channel, operation, groups.state.site()):
        if not watch.agrees(channel, operation, given["store"]):
            raise watch.differing(name, operation, groups.state.site())
        yield


def _dumping(groups: Groups) -> Callable[..., bytes]:
    def dump_nccl_trace(*args: bool, **kwargs: bool) -> bytes:
        """Flight Recorder's dump of what this rank has called: whole, whatever is asked for."""
        return groups.watch.dump()

    return dump_nccl_trace


def _hash_tensors(tensors: Sequence[torch.Tensor]) -> int:
    """What TORCH_DISTRIBUTED_DEBUG=DETAIL logs of each object that is sent; only CUDA builds of PyTorch have it.

    Source: `hashTensors` (torch/csrc/distributed/c10d/NCCLUtils.cpp), `hash_combine` (c10/util/hash.h).
    """

    def combine(seed: int, value: int) -> int:
        return (seed ^ (value + 0x9E3779B9 + (seed << 6) + (seed >> 2))) % (1 << 64)

    total = 0
    for tensor in tensors:
        if tensor.numel() and not is_physically_meta(tensor):
            held = tensor.detach().cpu().view(torch.int8).reshape(-1).tolist()
            for byte in held:
                total = combine(total, combine(len(held), byte % (1 << 64)))
    return total


def _leaving(groups: Groups) -> Callable[..., object]:
    stock = os._exit

    @functools.wraps(stock)
    def leave(status: int) -> NoReturn:
        groups.watch.left(status)
        stock(status)

    return leave


def _destroying(groups: Groups) -> Callable[..., object]:
    return _ending(groups, dist.distributed_c10d.destroy_process_group)


def _ending(groups: Groups, stock: Callable[..., object]) -> Callable[..., object]:
    """What destroys a group, or all of them, or aborts them."""

    @functools.wraps(stock)
    def end(group: dist.ProcessGroup | None = None) -> object:
        name = None if group is None or group is dist.group.WORLD else getattr(group, "group_name", None)
        groups.journeys.finish(everybody=True)
        done = stock(group)
        groups.close(name)
        return done

    return end


def _wrapping(groups: Groups, stock: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(stock)
    def create_process_group_wrapper(wrapped_pg: object, *args: object, **kwargs: object) -> object:
        """TORCH_DISTRIBUTED_DEBUG=DETAIL compares the calls of ranks: which are compared here in any case."""
        if any(wrapped_pg is backend for backend in groups.backends):
            return wrapped_pg
        return stock(wrapped_pg, *args, **kwargs)

    return create_process_group_wrapper


def _adopt(groups: Groups, group: dist.ProcessGroup, ranks: Sequence[int], nccl: type[dist.ProcessGroupGloo]) -> None:
    devices = {device.type: group._get_backend(device) for device in group._device_types}
    of_cuda, of_cpu = devices.get("cuda"), devices.get("cpu")
    if type(of_cuda).__name__ == "ProcessLocalGroup":  # of the backend "threaded", which copies from thread to thread
        return
    is_nccl = any(of_cuda is backend for backend in groups.backends) or isinstance(of_cuda, nccl)
    if of_cpu is None and of_cuda is not None:
        # C++ looks for the backend of the physical device.
        group._register_backend(CPU_DEVICE, dist.ProcessGroup.BackendType.NCCL, of_cuda)
    is_fake = type(of_cuda).__name__ == "FakeProcessGroup"  # of the backend "fake", which stands for NCCL
    carrier = of_cuda if is_nccl or is_fake else of_cpu
    if carrier is not None:
        moves = Lender(cast(Carrier, carrier), groups.lending)
        settings = nccl_settings.read(is_detailed()) if is_nccl else nccl_settings.DEFAULTS
        present = None if groups.fold is None or is_fake else groups.fold.present(ranks)
        made = Group(group, ranks, moves, is_nccl or is_fake, of_cpu is not None, is_fake, settings, present)
        if is_nccl and of_cuda is not None and of_cpu is not None and of_cpu is not of_cuda:
            half = made.divide(group, of_cuda, cast(Carrier, of_cpu))
            groups.watch.joined(half.name, _described(group) + ON_CPU, groups.met(ranks))
        groups.add(made)


def _described(group: dist.ProcessGroup) -> str:
    """What a sentence calls a group."""
    named = "the default group" if group.group_desc == "default_pg" else group.group_desc
    return f"group {group.group_name}" if named in ("", "undefined") else named


def _connect_eagerly(groups: Groups, group: dist.ProcessGroup) -> None:
    """A group that was told its device makes NCCL's communicator at once; other groups at their first collective."""
    made, device = groups.by_name.get(group.group_name), group.bound_device_id
    if made is not None and made.nccl and device is not None:
        state = groups.state
        first = state.visible is None
        state.initialize()
        index = state.index(device)
        state.only_driver = state.only_driver or first  # DeviceMesh chooses the rank's device then
        made.eager = made.shared.joined = True
        groups.connect(made, index)
        groups.introduce(made, index)


def _verifying(state: State) -> Callable[..., object]:
    stock = dist._verify_params_across_processes  # type: ignore[attr-defined]

    def verify_params_across_processes(
        group: dist.ProcessGroup, tensors: list[torch.Tensor], logger: Logger | None
    ) -> object:
        # C++ puts the shapes that it exchanges on the first parameter's device, which to it is the CPU.
        device = device_of(tensors[0]) if tensors else CPU
        if tensors and is_physically_meta(tensors[0]):
            with nodata.with_values(state.local), torch.cuda.device(device):
                return stock(group, nodata.shapes_of(tensors), logger)
        state.ranks.trains_on(device)
        with nullcontext() if device < 0 else torch.cuda.device(device):
            return stock(group, tensors, logger)

    return verify_params_across_processes


def _device_types(groups: Groups) -> property:
    stock = dist.ProcessGroup._device_types

    def device_types(self: dist.ProcessGroup) -> list[torch.device]:
        found: list[torch.device] = stock.__get__(self)
        name = dist.distributed_c10d._world.pg_names.get(self)  # none of one that is being made: PyTorch 2.15 asks then
        known = groups.by_name.get(name or "")
        if known is None or known.takes_cpu:
            return found
        return [device for device in found if device.type != "cpu"]

    return property(device_types)
