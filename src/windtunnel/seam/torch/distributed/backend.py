"""`ProcessGroupNCCL`, the backend of a process group, over gloo: what a program may ask of it and set on it."""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

import torch
import torch.distributed as dist

from windtunnel.errors import UnsupportedError
from windtunnel.ranks.calls import Channel, Operation
from windtunnel.seam.torch.distributed import played
from windtunnel.seam.torch.distributed.allowance import Allowance
from windtunnel.seam.torch.distributed.groups import Groups

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ErrorType, Store

    from windtunnel.seam.torch.distributed.work import Waiting

NCCL_TIMEOUT = timedelta(minutes=10)
"""What `init_process_group` takes for NCCL when the program gives none (torch/distributed/constants.py)."""
PATIENCE = timedelta(days=365)
"""gloo's own timeout, in real time, between ranks of one machine: a rank there that never comes is seen otherwise, and
the program's timeout counts modelled time."""
UNINITIALIZED = (
    "NCCL communicator has not been initialized before mem pool creation. You can pass `device_id` to "
    "init_process_group -- one way of eager initialization -- to work around this issue"
)


class Options:
    """`ProcessGroupNCCL.Options`: what a program may set on a group, of which only the timeout has a meaning here."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.backend = "nccl"
        self.config: object = None
        self.split_from: object = None
        self.split_color = 0
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self._timeout = NCCL_TIMEOUT


class Nccl:
    """What `ProcessGroupNCCL` does differently from the gloo under it."""

    _wt_groups: Groups
    _wt_options: Options
    _wt_allowance: Allowance
    _wt_store: Store
    _wt_meeting: Store
    _wt_number: int
    _wt_place: tuple[int, int]
    _wt_splits = 0
    _wt_aborted = False

    if TYPE_CHECKING:  # of the gloo under it

        def __init__(self, store: Store, rank: int, size: int, options: Options | None = None) -> None: ...
        def rank(self) -> int: ...
        def size(self) -> int: ...

    def _wt_wake(self) -> None:
        """Let what waits in gloo raise."""

    @property
    def options(self) -> Options:
        return self._wt_options

    @property
    def uid(self) -> int:
        return self._wt_number

    def name(self) -> str:
        return "nccl"

    # -------------------------------------------------------------- timeouts

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._wt_options._timeout = timeout

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        self._wt_allowance.add(timeout)

    def _verify_work_timeout(self, work: Waiting, timeout: timedelta) -> bool:
        """Whether a Work's timeout is this one (`verifyWorkTimeoutForTest`)."""
        return work.timeout == timeout

    # -------------------------------------------------------------- the communicator

    def _is_initialized(self) -> bool:
        """Whether its communicators are made: at the first collective, or when the group was given its device."""
        return any(self._wt_groups.by_name[name].connected for name in self._wt_groups.named_of(self))

    def eager_connect_single_device(self, device: torch.device | None = None) -> None:
        """Make the communicator of a device now."""
        for name in self._wt_groups.named_of(self):
            group = self._wt_groups.by_name[name]
            group.eager = True
            self._wt_groups.connect(group, self._wt_groups.state.index(device))

    def get_error(self) -> ErrorType:
        """What has gone wrong asynchronously: nothing, since errors are raised where a collective is called."""
        kinds: type[ErrorType] = importlib.import_module("torch._C._distributed_c10d").ErrorType
        return kinds.SUCCESS

    def abort(self) -> None:
        """Give up the communicators: what waits in them, and what is called from now on, raises."""
        self._wt_aborted = True
        self._wt_wake()

    def _abort(self) -> None:
        """The same, before torch 2.6."""
        self.abort()

    def shutdown(self) -> None:
        """Give the group's resources back; gloo has nothing to give."""

    def _shutdown(self) -> None:
        """The same (called so before torch 2.7)."""

    def _group_start(self) -> None:
        pass

    def _group_end(self) -> None:
        pass

    # -------------------------------------------------------------- parts of it

    def comm_split_count(self) -> int:
        """How many groups were split off."""
        return self._wt_splits

    def perform_nocolor_split(self, device: torch.device) -> None:
        pass

    @property
    def supports_coalescing(self) -> bool:
        """Whether `batch_isend_irecv` makes one Work of all its messages; PyTorch asks since 2.7."""
        return True

    @property
    def supports_shrinking(self) -> bool:
        """Whether ranks can be left out: NCCL can since 2.27."""
        return True

    def shrink(self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, opts: Options | None = None) -> object:
        """A backend of the other ranks, in the same order."""
        left = [rank for rank in range(self.size()) if rank not in ranks_to_exclude]
        group = self._wt_groups.by_name[self._wt_groups.named_of(self)[0]]
        name = f"{group.name} without {'_'.join(map(str, sorted(ranks_to_exclude)))}"
        made = Options(self._wt_options.is_high_priority_stream)
        made._timeout = (opts or self._wt_options)._timeout
        members = [group.ranks[rank] for rank in left]
        self._wt_groups.watch.joined(name, "", members)
        operation = Operation("shrink_group", elements=tuple(members))
        with self._wt_groups.watch.inside(Channel(name, "create"), operation, self._wt_groups.state.site()):
            return type(self)(
                dist.distributed_c10d.PrefixStore(name, self._wt_store), left.index(self.rank()), len(left), made
            )

    # -------------------------------------------------------------- memory

    def register_mem_pool(self, pool: object, symm: bool = False) -> None:
        """Let NCCL use a pool's memory as it is, which changes no value.

        Raises:
            DistBackendError: there is no communicator yet.
        """
        if not self._is_initialized():
            raise dist.DistBackendError(UNINITIALIZED)

    deregister_mem_pool = register_mem_pool

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether `allocate_tensor` is for this device."""
        return False

    @property
    def mem_allocator(self) -> NoReturn:
        raise UnsupportedError("windtunnel has no ncclMemAlloc (mem_allocator of ProcessGroupNCCL): use torch.empty")

    def allocate_tensor(self, *args: object, **kwargs: object) -> NoReturn:
        """Memory of ncclMemAlloc: refused."""
        raise UnsupportedError("windtunnel has no ncclMemAlloc (allocate_tensor of ProcessGroupNCCL): use torch.empty")

    def suspend(self) -> NoReturn:
        """Give up the communicators' memory for a while: refused."""
        raise UnsupportedError(
            "windtunnel cannot suspend NCCL's communicators (ProcessGroupNCCL.suspend): destroy the group, and "
            "make it again"
        )

    resume = memory_stats = suspend


def backend_class(groups: Groups) -> type[dist.ProcessGroupGloo]:
    """The class of an emulation's backends."""
    numbers = itertools.count()

    class ProcessGroupNCCL(Nccl, dist.ProcessGroupGloo):  # type: ignore[misc]  # properties that gloo has as well
        """NCCL's backend of a process group, over gloo."""

        def __init__(
            self,
            store: Store,
            rank: int,
            size: int,
            options: Options | None = None,
            device_id: torch.device | None = None,  # of ProcessGroupNCCL2, whose group keeps it as `bound_device_id`
        ) -> None:
            options = options or Options()
            self._wt_meeting = _own(store, rank, size)
            ranks = options.global_ranks_in_group or range(size)
            place, met = (rank, size) if groups.fold is None else played.place(groups.fold, ranks, rank)
            dist.ProcessGroupGloo.__init__(self, self._wt_meeting, place, met, timeout=options._timeout)
            self._wt_place = rank, size
            if not _several_machines():
                dist.ProcessGroupGloo._set_default_timeout(self, PATIENCE)
            self._wt_groups, self._wt_options, self._wt_store = groups, options, store
            self._wt_allowance = Allowance(options)
            self._wt_number = next(numbers)
            groups.backends.append(self)  # C++ keeps the gloo object, only this keeps the Python one

        def rank(self) -> int:
            return self._wt_place[0]

        def size(self) -> int:
            return self._wt_place[1]

        def _wt_wake(self) -> None:
            if hasattr(dist.ProcessGroupGloo, "abort"):  # newer than torch 2.6
                dist.ProcessGroupGloo.abort(self)

    # PyTorch tests for the class with `isinstance`, and names it in messages.
    ProcessGroupNCCL.Options = Options  # type: ignore[misc, assignment]
    ProcessGroupNCCL.__module__ = "torch.distributed.distributed_c10d"
    ProcessGroupNCCL.__qualname__ = "ProcessGroupNCCL"
    return ProcessGroupNCCL


SUCCESSORS = ("ProcessGroupNCCL2", "ProcessGroupNCCLLazy")
"""What PyTorch 2.15 makes of "nccl" (unless TORCH_DIST_USE_NCCL2 is 0) and of "nccl-lazy"."""


def successors(nccl: type[dist.ProcessGroupGloo]) -> dict[str, type[dist.ProcessGroupGloo]]:
    """The classes by name that newer versions of PyTorch have beside ProcessGroupNCCL."""
    if not hasattr(dist.distributed_c10d, "_create_nccl2_process_group"):
        return {}
    content = {"__module__": nccl.__module__, "split": _split}
    return {name: type(name, (nccl,), content) for name in SUCCESSORS}


def _split(self: Nccl, store: Store, ranks: Sequence[int], options: Options) -> Nccl | None:
    """The backend of a group of some `ranks` of the default one, whose backend this is; None where it is not in it."""
    options.split_from = self
    if self.rank() not in ranks:
        return None
    return type(self)(store, list(ranks).index(self.rank()), len(ranks), options)


def _own(store: Store, rank: int, size: int) -> Store:
    """Where gloo's ranks meet: apart from an earlier group of the same name, whose addresses are still in the store.

    gloo connects when a group is made, NCCL at its first collective; so a group that was never used hinders NCCL's next
    one in nothing. Each rank counts the groups of this name and size that it has made: all ranks of a group agree.
    """
    made = store.add(f"windtunnel/made/{size}/{rank}", 1)
    return dist.distributed_c10d.PrefixStore(f"windtunnel/{size}/{made}", store)


def _several_machines() -> bool:
    """Whether the launcher says that some ranks of the job are elsewhere, where nobody sees what they do."""
    size, here = (os.environ.get(name, "") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    return size.isdecimal() and here.isdecimal() and int(size) > int(here)
