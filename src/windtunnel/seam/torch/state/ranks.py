"""What the ranks of a run know of one another's GPUs: remarks on processes that work where another one does.

When a group of NCCL makes its communicators, each rank says on which GPU it works. NCCL refuses two ranks on one, and
so do we unless the run lets ranks share GPUs. From then on a rank knows whether it has opened a context, which takes
hundreds of MB, on a GPU that is somebody else's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Protocol

import torch

from windtunnel.networks import Spread
from windtunnel.seam.torch.state.core import Core
from windtunnel.seam.torch.state.notes import Notes

if TYPE_CHECKING:
    from torch.distributed import AllreduceOptions, AllToAllOptions, BroadcastOptions, Work

    from windtunnel.machine.device import Device

Tensor = torch.Tensor

NODE = 1 << 16  # GPUs of one machine, at most: a GPU's number in the run is node * NODE + its number in the machine

UNPICKLING = {
    ("torch.serialization", "load"): "load",
    ("torch.distributed.distributed_c10d", "_tensor_to_object"): "objects",
}
"""Functions that bring tensors back on the device that they were saved or sent from."""


LAUNCHERS = (
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NNODES"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_MCA_orte_num_nodes"),
)
"""Where launchers of one task a GPU say the number of the rank, of all ranks and of the nodes."""


def node_of(environment: Mapping[str, str]) -> int:
    """The number of this rank's node: torchrun's, Slurm's, or what ranks in blocks of equal size come to."""
    for name in ("GROUP_RANK", "SLURM_NODEID"):
        if environment.get(name, "").isdecimal():
            return int(environment[name])
    for names in LAUNCHERS:
        rank, ranks, nodes = (environment.get(name, "") for name in names)
        if rank.isdecimal() and ranks.isdecimal() and nodes.isdecimal() and int(nodes) > 0:
            return int(rank) // max(1, -(-int(ranks) // int(nodes)))
    return 0


def ranks_per_node(environment: Mapping[str, str]) -> int:
    """How many ranks each node has, by what its launcher says; 0 where it says nothing of several nodes."""
    local = environment.get("LOCAL_WORLD_SIZE", "")
    if environment.get("GROUP_WORLD_SIZE", "1") != "1" and local.isdecimal():
        return int(local)
    for _, ranks, nodes in LAUNCHERS:
        counts = environment.get(ranks, ""), environment.get(nodes, "")
        if all(count.isdecimal() and int(count) for count in counts) and int(counts[1]) > 1:
            return -(-int(counts[0]) // int(counts[1]))
    return 0


def spread_of(ranks: Sequence[int]) -> Spread:
    """How some of the job's ranks lie on its nodes."""
    return Spread.of_ranks(ranks, ranks_per_node(os.environ))


class Carrier(Protocol):
    """What moves a group's values: a backend of gloo, or one that stands for it, of whose collectives these are used.

    PyTorch's stubs give them to `ProcessGroup` alone.
    """

    def allreduce(self, tensors: list[Tensor], options: AllreduceOptions, /) -> Work: ...

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], /) -> Work: ...

    def _allgather_base(self, output: Tensor, input: Tensor, /) -> Work: ...

    def alltoall_base(
        self, output: Tensor, input: Tensor, sizes: list[int], parts: list[int], options: AllToAllOptions, /
    ) -> Work: ...

    def broadcast(self, tensors: list[Tensor], options: BroadcastOptions, /) -> Work: ...

    def send(self, tensors: list[Tensor], peer: int, tag: int, /) -> Work: ...

    def recv(self, tensors: list[Tensor], peer: int, tag: int, /) -> Work: ...


class RankGroup(Protocol):
    """What is asked of a process group here."""

    size: int
    rank: int
    nccl: bool
    alone: bool
    present: list[int]
    spread: Spread
    carrier: Carrier


class Ranks:
    """This process among the others."""

    def __init__(self, core: Core, notes: Notes, share_gpus: bool) -> None:
        self.core = core
        self.notes = notes
        self.share_gpus = share_gpus  # whether several may work on one GPU, which NCCL refuses
        self.contexts: dict[int, int] = {}  # device -> the line that opened its context
        self.reasons: dict[int, str] = {}  # device -> the function of PyTorch that opened it, if one of UNPICKLING did
        self.working: dict[int, int] = {}  # GPU of the run -> the lowest other rank that works there
        self.own: set[int] = set()  # devices on which this rank's collectives ran
        self.rank = 0
        self.said: set[tuple[str, int]] = set()

    def joined(self, group: RankGroup) -> None:
        """A group was made: the largest tells how many ranks there are, and nodes."""
        facts = self.core.machine.trace.facts
        if group.nccl and group.spread.nodes > int(facts.get("nodes", 1)):
            facts["nodes"] = group.spread.nodes
        if group.size > int(facts.get("world_size", 1)):
            facts["world_size"] = group.size
            facts["rank"] = self.rank = group.rank

    def opened(self, device: Device) -> None:
        """The process has made a context on a device."""
        self.contexts[device.index] = self.core.site()
        self.reasons[device.index] = _reason()
        self._remark()

    def met(self, group: RankGroup, index: int) -> int | None:
        """The communicators of a group are made: all its ranks take part, and each learns where the others work.

        Returns the first other rank, by its number in the group, that works on the same GPU; None where there is none.
        """
        if len(group.present) == 1 or group.alone or not group.nccl:
            return None
        here = self._number(index)
        with torch._C._DisableTorchDispatch():
            mine = torch.tensor([here, self.rank])
            found = [torch.zeros_like(mine) for _ in group.present]
            group.carrier.allgather([found], [mine]).wait()
        self.own.add(index)
        for number, rank in (tensor.tolist() for tensor in found):
            if rank != self.rank:
                self.working[number] = min(rank, self.working.get(number, rank))
        self._remark()
        met = dict(zip(group.present, found, strict=True))
        same = [at for at, tensor in met.items() if at != group.rank and int(tensor[0]) == here]
        if not same:
            return None
        allowed = int(self.share_gpus)
        self._note("shared-gpu", index, self.core.site(), other=int(met[same[0]][1]), allowed=allowed)
        return same[0]

    def trains_on(self, index: int) -> None:
        """DistributedDataParallel was made for a model on a device, which may not be the current one."""
        current = self.core.local.device
        if current == 0 < index:
            self._note("current-device-elsewhere", index, self.core.site())

    def _remark(self) -> None:
        """Speak of contexts on GPUs where others work, once this process works elsewhere."""
        for index, site in self.contexts.items() if self.own else ():
            number = self._number(index)
            if index not in self.own and number in self.working:
                self._note("context-on-other-gpu", index, site, other=self.working[number], by=self.reasons[index])

    def _number(self, index: int) -> int:
        return node_of(os.environ) * NODE + self.core.device(index).physical

    def _note(self, code: str, index: int, site: int, **more: int | str) -> None:
        if (code, index) not in self.said:
            self.said.add((code, index))
            self.notes.note(code, site, rank=self.rank, device=index, **more)


def _reason() -> str:
    """Which function that unpickles tensors is running; "" where none is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = UNPICKLING.get((str(frame.f_globals.get("__name__")), frame.f_code.co_name))
        if found is not None:
            return found
        frame = frame.f_back
    return ""
