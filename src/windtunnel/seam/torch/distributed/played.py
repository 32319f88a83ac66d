"""A process that plays one rank of a cluster: it meets only the ranks that are played, and speaks for the others.

The groups have the sizes that the program gave them. gloo connects the members that are played; what a collective
moves that has values is computed here from theirs, where an absent member brings what its class does. What the fold
(`windtunnel.ranks.fold`) cannot answer ends the attempt, with a note of what must be played as well.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, Protocol

import torch
import torch.distributed as dist

from windtunnel import variables
from windtunnel.errors import UnsupportedError
from windtunnel.ranks.calls import Operation
from windtunnel.ranks.fold import Change, Fold
from windtunnel.seam.patching import Patch

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from windtunnel.seam.torch.plans.arguments import Keywords
    from windtunnel.seam.torch.state.ranks import Carrier
    from windtunnel.seam.torch.state.state import State

Tensor = torch.Tensor
START_ANEW = 75
"""The exit code of a process that ended the attempt (EX_TEMPFAIL)."""
MOST_PROCESSES = 64
"""More are not started on one machine."""
ABSENT_S = 60.0
"""How long a rank waits for a key in a store before it is taken for one that an absent rank sets."""
LONGEST_PAUSE_S = 1.0
"""Sleeps with more than this between them are not one wait."""
BY_PAIR = ("all_gather", "reduce_scatter", "all_to_all", "all_to_all_single")
"""Collectives that are played by few ranks only where each pair of ranks exchanges equally much."""
_leave = os._exit
making: list[Sequence[int]] = []
"""The ranks of the group that is being made, which gloo's backend is not told."""


class PlayedGroup(Protocol):
    """What is asked of a process group here."""

    ranks: tuple[int, ...]
    rank: int
    size: int
    present: list[int]
    is_partial: bool
    alone: bool
    carrier: Carrier


class AllGroups(Protocol):
    """What is asked of all groups."""

    fold: Fold | None

    @property
    def by_name(self) -> Mapping[str, PlayedGroup]:
        """Those that this rank is in."""

    @property
    def line(self) -> str:
        """The program's line that is running."""


def read() -> Fold | None:
    """How the ranks are played; None where each is a process."""
    text = os.environ.get(variables.FOLD)
    return Fold.from_json(text) if text and "RANK" in os.environ else None


def need(fold: Fold, how: str, ranks: Sequence[int], why: str) -> NoReturn:
    """End this attempt: more ranks must be played.

    Raises:
        UnsupportedError: there are too many of them.
    """
    change = Change(how, tuple(ranks), why)
    wanted = len(change.apply(fold).played)
    if wanted > MOST_PROCESSES:
        raise UnsupportedError(
            f"{why}, so {wanted} of the {fold.world} ranks would have to be played, and at most {MOST_PROCESSES} "
            "processes are started: give a smaller --cluster"
        )
    variables.leave_note("fold", change.to_json())
    _leave(START_ANEW)


def place(fold: Fold, ranks: Sequence[int], rank: int) -> tuple[int, int]:
    """The number of a group's member, `rank`, among those that are played, and how many they are."""
    present = fold.present(ranks)
    return present.index(rank), len(present)


class Member(dist.ProcessGroupGloo if dist.is_available() and dist.is_gloo_available() else object):  # type: ignore[misc]
    """gloo among those members of a group that are played."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta | None = None, **others: object) -> None:
        fold = read()
        ranks = making[-1] if making and len(making[-1]) == size else range(size)
        number, met = (rank, size) if fold is None else place(fold, ranks, rank)
        super().__init__(store, number, met, timeout=timeout or timedelta(minutes=30), **others)


@contextmanager
def members(ranks: Sequence[int]) -> Iterator[None]:
    """Inside it a group of these ranks is made."""
    making.append(ranks)
    try:
        yield
    finally:
        making.pop()


def patches(state: State) -> list[Patch]:
    """What a played rank changes of `torch.distributed`; nothing where every rank is a process."""
    fold = read()
    if fold is None or not dist.is_available():
        return []
    found = [Patch(dist.distributed_c10d, "ProcessGroupGloo", Member)]
    of_store = torch._C._distributed_c10d.Store
    found += [Patch(of_store, name, _present(fold, getattr(of_store, name))) for name in ("get", "wait")]
    found.append(Patch(of_store, "add", _counted(state, fold, of_store.add)))
    found.append(Patch(of_store, "check", _checked(fold, of_store.check)))
    found.append(Patch(time, "sleep", _slept(state, fold, time.sleep)))
    return found


def require_agent() -> None:
    """Refuse ranks that the program starts by itself: each played rank would start all of them.

    Raises:
        UnsupportedError: this process is a child of a played rank.
    """
    if read() is not None and multiprocessing.parent_process() is not None:
        raise UnsupportedError(
            "the program starts its ranks itself (torch.multiprocessing), and --cluster plays ranks that torchrun "
            "starts: run it with --gpus, or let it take RANK and LOCAL_RANK from the environment"
        )


def _present(fold: Fold, stock: Callable[..., object]) -> Callable[..., object]:
    """A function of stores that waits for keys, and not for ever for those of ranks that nobody plays."""

    def wait(self: Store, keys: str | list[str], *more: object) -> object:
        named = [keys] if isinstance(keys, str) else keys
        until = time.monotonic() + ABSENT_S
        while not more and not fold.is_whole and not self.check(named):
            if time.monotonic() > until:
                why = f"no rank that is played has set {named[0]!r} in the store"
                need(fold, "alone", range(fold.world), why)
            time.sleep(0.005)
        return stock(self, keys, *more)

    return wait


def _is_programs(frame: FrameType) -> bool:
    """Whether neither PyTorch nor windtunnel asks."""
    return not str(frame.f_globals.get("__name__")).startswith(("torch.", "windtunnel."))


def _counted(state: State, fold: Fold, stock: Callable[..., int]) -> Callable[..., int]:
    """`Store.add`, with which programs count ranks: absent ones do not count. PyTorch itself waits for no number."""

    def add(self: Store, key: str, amount: int) -> int:
        if not fold.is_whole and _is_programs(sys._getframe(1)):
            why = f"ranks count in the store at {state.groups.line}"
            need(fold, "alone", range(fold.world), why)
        return stock(self, key, amount)

    return add


def _checked(fold: Fold, stock: Callable[..., bool]) -> Callable[..., bool]:
    """`Store.check`: who asks for the same keys over and over may wait for those of absent ranks."""
    asked: dict[tuple[str, ...], float] = {}

    def check(self: Store, keys: list[str]) -> bool:
        if stock(self, keys):
            return True
        since = asked.setdefault(tuple(keys), time.monotonic())
        if not fold.is_whole and _is_programs(sys._getframe(1)) and time.monotonic() - since > ABSENT_S:
            need(fold, "alone", range(fold.world), f"no rank that is played has set {keys[0]!r} in the store")
        return False

    return check


def _slept(state: State, fold: Fold, stock: Callable[[float], None]) -> Callable[[float], None]:
    """`time.sleep` in real time: the modelled clock takes it in a long row of sleeps, which may wait for a file.

    Threads that look after something sleep as long as the program runs: only the main one keeps it from ending.
    """
    since = last = 0.0

    def sleep(seconds: float) -> None:
        nonlocal since, last
        stock(seconds)
        if fold.is_whole or sys._getframe(1).f_globals.get("__name__") != "windtunnel.seam.clock":
            return
        if threading.current_thread() is not threading.main_thread():
            return
        now = time.monotonic()
        since, last = (since if now - last < seconds + LONGEST_PAUSE_S else now), now
        if now - since > ABSENT_S:
            why = f"a played rank waits by sleeping at {state.groups.line}, maybe for a rank that is not played"
            need(fold, "alone", range(fold.world), why)

    return sleep


# ---------------------------------------------------------------------------------------------- calls


def require_even(groups: AllGroups, group: PlayedGroup, operation: Operation) -> None:
    """Represent a group in which each pair exchanges a size of its own."""
    if groups.fold is None or operation.name not in BY_PAIR:
        return
    if len(set(operation.sent)) > 1 or len(set(operation.received)) > 1:
        need(groups.fold, "group", group.ranks, f"{operation.name} at {groups.line} moves unequal parts")


def require_played(groups: AllGroups, group: PlayedGroup, peer: int) -> None:
    """Represent a group one of whose members is sent a message, or asked for one, that nobody plays."""
    fold = groups.fold
    if fold is None or not group.is_partial:
        return
    if peer < 0:
        need(fold, "alone", group.ranks, f"a rank receives from any other at {groups.line}")
    if peer not in group.present:
        mine, other = group.ranks[group.rank], group.ranks[peer]
        why = f"rank {mine} and rank {other}, which is not played, exchange a message at {groups.line}"
        # Ranks of a pipeline may send by the group of all, and have one of their own besides.
        holding = [one.ranks for one in groups.by_name.values() if mine in one.ranks and other in one.ranks]
        need(fold, "group", min(holding, key=len), why)


# ---------------------------------------------------------------------------------------------- values


class Voices:
    """What each member of a group brings to a collective: the absent ones what their class does.

    `fold` is None where all are played.
    """

    def __init__(self, fold: Fold | None, group: PlayedGroup, what: str) -> None:
        self.fold = fold
        self.group = group
        self.what = what

    def alike(self) -> dict[int, list[int]]:
        """By an absent member's place in the group: the places of those of its class that are played."""
        fold, ranks, present = self.fold, self.group.ranks, self.group.present
        if fold is None:
            return {}
        return {
            place: [other for other in present if fold.class_of(ranks[other]) == fold.class_of(rank)]
            for place, rank in enumerate(ranks)
            if place not in present
        }

    @cached_property
    def twins(self) -> dict[int, list[int]]:
        """The same, as far as they may speak for the absent."""
        found = self.alike()
        self.require(found)
        return found

    def require(self, found: dict[int, list[int]]) -> None:
        """Have two at least of each class, which are compared."""
        fold, ranks = self.fold, self.group.ranks
        wanted: set[int] = set()
        for place, alike in found.items():
            assert fold is not None
            if len(alike) < 2 and fold.checked:
                members = [other for other in ranks if fold.class_of(other) == fold.class_of(ranks[place])]
                wanted |= {members[0], members[-1]}
            elif not alike:
                wanted.add(ranks[place])
        if fold is not None and wanted:
            need(fold, "beside", sorted(wanted), f"{self.what} needs values of ranks of one group")

    def cannot(self) -> NoReturn:
        """Absent members cannot be spoken for."""
        assert self.fold is not None
        need(self.fold, "alone", self.group.ranks, f"{self.what} moves values")

    def differ(self, place: int) -> None:
        """Members of one class bring different values; the first of them is at `place`."""
        del place
        assert self.fold is not None
        need(self.fold, "alone", self.group.ranks, f"{self.what} moves values that differ by rank")

    def met(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of the members that are played."""
        if len(self.group.present) == 1:
            return [tensor.clone()]
        met = [torch.empty_like(tensor) for _ in self.group.present]
        self.group.carrier.allgather([met], [tensor]).wait()
        return met

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensor of each member, in the group's order."""
        group = self.group
        by_place = dict(zip(group.present, self.met(tensor.detach().contiguous()), strict=True))
        for place, alike in self.twins.items():
            first = by_place[alike[0]]
            if any(not _same(first, by_place[other]) for other in alike[1:]):
                self.differ(alike[0])
            by_place[place] = first
        return [by_place[place] for place in range(group.size)]

    def of_root(self, place: int, tensor: Tensor) -> Tensor:
        """The tensor of the root, which must be played: only the members that are have to agree on it."""
        group = self.group
        if place not in group.present:
            assert self.fold is not None
            rank = group.ranks[place]
            need(self.fold, "beside", [rank], f"{self.what} is from rank {rank}, which is not played")
        return self.met(tensor.detach().contiguous())[group.present.index(place)]


def voices(groups: AllGroups, group: PlayedGroup, name: str) -> Voices:
    """Those of a partial group for the collective `name`."""
    return Voices(groups.fold, group, called(groups, name))


def called(groups: AllGroups, name: str) -> str:
    """The collective `name` of the program's line that is running, in words."""
    return f"{name.partition('::')[2].strip('_')} at {groups.line}"


def _same(one: Tensor, other: Tensor) -> bool:
    return one.contiguous().view(torch.uint8).equal(other.contiguous().view(torch.uint8)) if one.dim() else bool(
        one.eq(other) | (one.ne(one) & other.ne(other))
    )  # fmt: skip


def reduced(parts: Sequence[Tensor], reduction: str) -> Tensor:
    """One tensor of all members'; an average is their sum."""
    made = parts[0].clone()
    combine = {
        "SUM": made.add_, "AVG": made.add_, "PRODUCT": made.mul_,
        "MIN": lambda part: torch.minimum(made, part, out=made),
        "MAX": lambda part: torch.maximum(made, part, out=made),
        "BAND": made.bitwise_and_, "BOR": made.bitwise_or_, "BXOR": made.bitwise_xor_,
    }[reduction or "SUM"]  # fmt: skip
    for part in parts[1:]:
        combine(part)
    return made


def write(voices: Voices, name: str, named: Keywords, reduction: str) -> None:
    """Write the values of the collective `name` of c10d, whose arguments are `named`."""
    short, group = name.partition("::")[2], voices.group
    with torch._C._DisableTorchDispatch():
        match short:
            case "barrier":
                pass  # the ranks have met
            case "allreduce_" | "allreduce_coalesced_":
                for tensor in named["tensors"]:
                    tensor.detach().copy_(reduced(voices.gather(tensor), reduction))
            case "broadcast_":
                for tensor in named["tensors"]:
                    tensor.detach().copy_(voices.of_root(named["root_rank"], tensor))
            case "reduce_":
                for tensor in named["tensors"]:
                    made = reduced(voices.gather(tensor), reduction)
                    if named["root_rank"] == group.rank:
                        tensor.detach().copy_(made)
            case "allgather_" | "gather_":
                for index, tensor in enumerate(named["input_tensors"]):
                    found = voices.gather(tensor)
                    outputs = named["output_tensors"][index] if named["output_tensors"] else ()
                    for into, part in zip(outputs, found, strict=False):  # only a root has outputs
                        into.detach().copy_(part.view_as(into))
            case "_allgather_base_":
                found = voices.gather(named["input_tensor"])
                into = named["output_tensor"].detach().view(group.size, -1)
                into.copy_(torch.stack([part.reshape(-1) for part in found]))
            case "alltoall_base_" if is_even(group, named):
                into = named["output"].detach()
                into.copy_(_of_each(voices, named["input"]).view_as(into))
            case _:
                voices.cannot()


def is_even(group: PlayedGroup, named: Keywords) -> bool:
    """Whether each pair of ranks exchanges equally much in an all-to-all, and nothing is left over."""
    if named["input"].numel() % group.size:
        return False
    splits = [*(named.get("input_split_sizes") or ()), *(named.get("output_split_sizes") or ())]
    return len(set(splits)) < 2


def _of_each(voices: Voices, tensor: Tensor) -> Tensor:
    """The parts for this member of what each member brings to an all-to-all."""
    group = voices.group
    return torch.cat([part.view(group.size, -1)[group.rank] for part in voices.gather(tensor)])


def functional(voices: Voices, name: str, named: Keywords) -> object:
    """The result of the functional collective `name`, in place where that is."""
    short: str = name.partition("::")[2]
    if "input" not in named:  # several at once
        voices.cannot()
    tensor: Tensor = named["input"]
    with torch._C._DisableTorchDispatch():
        match short:
            case "all_reduce" | "all_reduce_":
                made = reduced(voices.gather(tensor), str(named["reduce_op"]).upper())
            case "all_gather_into_tensor":
                made = torch.cat([part.reshape(tensor.shape) for part in voices.gather(tensor)])
            case "broadcast" | "broadcast_":
                made = voices.of_root(named["src"], tensor).clone()
            case "all_to_all_single" if is_even(voices.group, named):
                made = _of_each(voices, tensor).view(tensor.shape)
            case _:
                voices.cannot()
        return tensor.detach().copy_(made) if short.endswith("_") else made
