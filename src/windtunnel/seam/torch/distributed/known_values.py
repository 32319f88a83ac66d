"""Integers, truths and single numbers that a rehearsal without data knows, through collectives and messages.

Counts of tokens, flags and sizes are few, and decide what a program does next. Every member brings what it knows, and
whether it knows it; where one does not, nobody knows the result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import torch

from windtunnel.ranks.fold import MOST_WHOLE
from windtunnel.seam.torch.distributed import played
from windtunnel.seam.torch.distributed.values import divided, each, is_composed
from windtunnel.seam.torch.plans.arguments import Keywords, tensors_in
from windtunnel.seam.torch.rehearsal.known import MOST, is_kind_kept
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import is_physically_meta

Tensor = torch.Tensor
MOST_SENT = 16
"""Elements of a message whose values travel."""
EXCHANGES = ("alltoall_base_", "all_to_all_single")
"""How the names of all-to-alls begin whose values are played."""
SHARING = re.compile(r"all_?reduce|all_?gather|broadcast")
"""Collectives that give the same to all."""
NOTHING_SENT = [0] * (1 + MOST_SENT)
"""What goes with a message whose values are not known: whether they are, and their places."""


class _UnknownError(Exception):
    """Somebody does not know what it brings."""


class Moved(NamedTuple):
    """A collective: its operator's `name` and arguments, and the tensors without values that it reads and writes."""

    name: str
    named: Keywords
    reduction: str
    reads: Sequence[Tensor]
    writes: Sequence[Tensor]


class KnownVoices(played.Voices):
    """What each member of a group knows of what it brings.

    `known` are the addresses of tensors that have true values; `absent` is a member that speaks for others which
    nobody plays, and may be wrong in that.
    """

    def __init__(self, groups: played.AllGroups, group: played.PlayedGroup, name: str, known: set[int]) -> None:
        super().__init__(groups.fold, group, played.called(groups, name))
        self.known = known
        self.root: int | None = None  # the place of the only member whose values count
        self.absent: int | None = None

    def require(self, found: dict[int, list[int]]) -> None:
        """Have one at least of each class, or another rank in its place."""
        if self.is_small:
            super().require(found)
        present = self.group.present
        for alike in found.values():
            if len(alike) < min(2, len(present)):
                self.absent = self.group.ranks[present[0]]
            if not alike:
                alike.append(present[0])

    @property
    def is_small(self) -> bool:
        """Whether all ranks can be played where there is a doubt."""
        return self.fold is not None and self.fold.world <= MOST_WHOLE

    def cannot(self) -> NoReturn:
        """Nobody knows the result."""
        raise _UnknownError

    def differ(self, place: int) -> None:
        """Members of one class bring different values."""
        if self.is_small:
            super().differ(place)
        self.absent = self.group.ranks[place]

    def met(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of the members that are played."""
        known = torch.tensor([tensor.data_ptr() in self.known], dtype=torch.uint8, device="cpu")
        found = super().met(torch.cat([known, tensor.view(-1).view(torch.uint8)]))
        unknown = {place for place, part in zip(self.group.present, found, strict=True) if not part[0]}
        if self.root in unknown or (self.root is None and unknown):
            raise _UnknownError
        return [part[1:].clone().view(tensor.dtype).view(tensor.shape) for part in found]

    def agree(self, named: Keywords) -> None:
        """Go on with an all-to-all only if it is an even one, and few elements, on every rank."""
        even = played.is_even(self.group, named)
        size = named["input"].numel()
        mine = torch.tensor([even and size <= MOST, size], dtype=torch.int64, device="cpu")
        if any(not part[0] or part[1] != size for part in super().met(mine)):
            raise _UnknownError

    def of_root(self, place: int, tensor: Tensor) -> Tensor:
        """The tensor of the root."""
        if place not in self.group.present and not self.is_small:
            place = self.twins[place][0]
        self.root = place
        return super().of_root(place, tensor)


def exchanges(name: str) -> bool:
    """Whether an operator is an all-to-all whose values are played."""
    return name.partition("::")[2].startswith(EXCHANGES)


def carry(state: State, group: played.PlayedGroup, moved: Moved) -> None:
    """Take what is known of a collective's inputs to its outputs."""
    name, named, reduction, reads, writes = moved
    share(state, name, writes)
    if group.alone:
        return
    # The same on every rank: NCCL moves as many elements of one type, but for an all-to-all, whose sizes are each
    # rank's own; of those only integers are asked for.
    kept = bool(reads) and all(map(is_kind_kept, reads)) and sum(tensor.numel() for tensor in reads) <= MOST
    if exchanges(name):
        kept = bool(reads) and not any(tensor.is_floating_point() or tensor.is_complex() for tensor in reads)
    kept = kept and reduction != "PREMUL_SUM" and not is_composed(name, named)
    found = _exchanged(state, group, moved) if kept else None
    for place, tensor in enumerate(writes):
        if is_kind_kept(tensor):
            state.assumptions.tell(tensor, *(("", None) if found is None else (found[0], found[1][place])))
        else:
            state.assumptions.exact.forget([tensor])


def share(state: State, name: str, made: Sequence[Tensor]) -> None:
    """Know of what every rank gets from a collective that all have the same."""
    if SHARING.search(name):
        state.assumptions.share(made)


def _exchanged(state: State, group: played.PlayedGroup, moved: Moved) -> tuple[str, list[Tensor]] | None:
    """The values of what a collective writes, and what they stand for; None where somebody does not know."""
    guesses: list[str] = []
    places: dict[int, Tensor] = {}
    known: set[int] = set()
    name, named, reduction, reads, writes = moved
    for tensor in (*reads, *writes):
        if id(tensor) in places or not is_physically_meta(tensor):
            continue
        guess, values = state.assumptions.told(tensor)
        held = torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
        places[id(tensor)] = held
        if values is not None:
            held.copy_(values)
            known.add(held.data_ptr())
            guesses.append(guess)
    given = {key: each(value, lambda tensor: places.get(id(tensor), tensor)) for key, value in named.items()}
    voices = KnownVoices(state.groups, group, name, known)
    try:
        if exchanges(name):
            voices.agree(given)
        if name.startswith("c10d::"):
            played.write(voices, name, given, reduction)
            out = [places[id(tensor)] for tensor in writes]
        else:
            out = tensors_in((played.functional(voices, name, given),))
    except _UnknownError:
        return None
    if reduction == "AVG":
        for tensor in out:
            divided(tensor, group.size)
    if voices.absent is not None:
        state.assumptions.note("absent", name=name.partition("::")[2].strip("_"), value=f"rank {voices.absent}'s")
    return next(filter(None, guesses), ""), out


def numbers(state: State, tensors: Sequence[Tensor]) -> list[int]:
    """What is known of a message, to travel beside it, as many numbers whatever it is."""
    found = list(NOTHING_SENT)
    if len(tensors) == 1 and is_kind_kept(tensors[0]) and tensors[0].numel() <= MOST_SENT:
        _, values = state.assumptions.told(tensors[0])
        if values is not None:
            wide = values.double().view(torch.int64) if values.is_floating_point() else values.long()
            found[0], found[1 : 1 + values.numel()] = 1, wide.flatten().tolist()
    return found


def received(state: State, tensors: Sequence[Tensor], sent: Sequence[int]) -> None:
    """Know what came with a message; else nothing is known of the memory that it was written to."""
    for tensor in tensors:
        if is_kind_kept(tensor):
            wide = torch.tensor(sent[1 : 1 + tensor.numel()], dtype=torch.int64, device="cpu") if sent[0] else None
            if wide is not None and tensor.is_floating_point():
                wide = wide.view(torch.float64)
            values = None if wide is None else wide.to(tensor.dtype)
            state.assumptions.tell(tensor, "", None if values is None else values.view(tensor.shape))
        else:
            state.assumptions.exact.forget([tensor])
