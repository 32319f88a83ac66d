"""Operators whose threads write what others of them read or write: on a GPU the order of the threads decides.

PyTorch refuses this where both views are dense (`assert_no_partial_overlap` of aten/src/ATen/MemoryOverlap.cpp), and
lets pass what it cannot decide cheaply. A CPU computes such an operator in one order of many.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import prod

import torch

from windtunnel.machine.overlap import Strided, strided, surely_overlap
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.state.late import byte_range
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import NOWHERE, storage_of

Tensor = torch.Tensor
FIRST = (0,)
MOST_OFFSETS = 4096
"""Of so many elements at most it is decided whether two lie at one place."""


def look(state: State, call: Call) -> None:
    """Note an operator that writes a tensor of which it reads another part, or of which elements share memory."""
    if _is_apart(call):
        return
    given = [tensor for tensor in call.tensors() if tensor.layout is torch.strided and not tensor.is_nested]
    for written in call.written():
        if written.layout is not torch.strided or written.is_nested or not written.numel():
            continue
        tag = storage_of(written)._wt
        what = ""
        for read in given:
            if (
                read is not written
                and storage_of(read)._wt is tag
                and _crosses(written, read, call.plan.card.transfers)
            ):
                what = "reads"
        one_value = call.plan.card.access == "writes" and all(one is written or one.numel() == 1 for one in given)
        if not what and not one_value and _shares_with_itself(written):
            what = "writes"
        if what:
            _note(state, call, what, tag.device)


def look_in_lists(state: State, call: Call) -> None:
    """The same, of an operator over lists: places of a list are computed apart, so two must not write one memory."""
    written = {id(tensor) for tensor in call.written()}
    rows = []
    for value in call.given:
        for place, tensor in enumerate(value if isinstance(value, list | tuple) else (value,)):
            if isinstance(tensor, Tensor) and tensor.layout is torch.strided and not tensor.is_nested:
                tag, (start, end) = storage_of(tensor)._wt, byte_range(tensor)
                rows += [(id(tag), start, end, place, id(tensor) in written, tag.device)] if end > start else []
    rows.sort()
    what, device = "", NOWHERE
    reached: list[tuple[int, int, int, int, bool, int]] = []
    for row in rows:
        reached = [other for other in reached if other[0] == row[0] and other[2] > row[1]]
        for other in reached:
            if (row[4] or other[4]) and other[1:4] != row[1:4]:
                what, device = "writes" if row[4] and other[4] else "reads", row[5]
        reached.append(row)
    same = call.plan.card.access == "writes" and all(is_written for *_, is_written, _ in rows)
    if what and not same:
        _note(state, call, what, device)


def _note(state: State, call: Call, what: str, device: int) -> None:
    name = call.plan.name.partition("::")[2].partition(".")[0]
    state.notes.note("overlapping-operands", state.site(), operator=name, what=what, device=device)


def _is_apart(call: Call) -> bool:
    """Whether all that it writes is one dense tensor with its memory for itself, as nearly always."""
    written = call.args[0] if call.plan.mutated == FIRST else call.kwargs.get("out")
    if not isinstance(written, Tensor) or written.layout is not torch.strided or written.is_nested:
        return False
    tag = storage_of(written)._wt
    for other in call.given:
        is_other = isinstance(other, Tensor) and other is not written
        if is_other and (other.layout is not torch.strided or storage_of(other)._wt is tag):
            return False
    return written.is_contiguous()


def _crosses(written: Tensor, read: Tensor, copies: bool) -> bool:
    """Whether an element that is read is written for another one; what a copy reads for its own place, it leaves."""
    if not read.numel() or not surely_overlap(_bytes(written), _bytes(read)):
        return False
    into, out_of = written.element_size(), read.element_size()
    extra = written.dim() - read.dim()
    if extra < 0 or into != out_of:
        return True
    steps = []
    for place, count in enumerate(written.shape):
        own = read.shape[place - extra] if place >= extra else 1
        if own not in (1, count):
            return True  # not element by element
        if count > 1:
            steps.append((count, written.stride(place), read.stride(place - extra) if own > 1 else 0))
    return _meets_another(tuple(steps), int(read.storage_offset()) - int(written.storage_offset()), copies)


@lru_cache(256)
def _meets_another(steps: tuple[tuple[int, int, int], ...], shift: int, copies: bool) -> bool:
    """The same, of elements by their counts and steps in both, where one is read so far behind the one written."""
    if all(into == out_of for _, into, out_of in steps):
        return shift != 0
    counts = _few([count for count, _, _ in steps])
    written = _places(0, [into for _, into, _ in steps], counts)
    read = _places(shift, [out_of for _, _, out_of in steps], counts)
    of = {at: number for number, at in enumerate(written)}
    meets = [at for number, at in enumerate(read) if of.get(at, number) != number]
    return any(not copies or read[of[at]] != at for at in meets)


def _few(counts: list[int]) -> list[int]:
    """As many elements of each dimension as can be looked at together."""
    while prod(counts) > MOST_OFFSETS:
        counts[counts.index(max(counts))] //= 2
    return counts


def _places(begin: int, steps: Iterable[int], counts: Iterable[int]) -> list[int]:
    """Where the elements lie, the last dimension the fastest."""
    found = [begin]
    for step, count in zip(steps, counts, strict=True):
        found = [at + step * number for at in found for number in range(count)]
    return found


def _bytes(tensor: Tensor) -> Strided:
    start, end = byte_range(tensor)
    return strided(start, tensor.element_size(), tensor.shape, tensor.stride()) or Strided(start, end - start)


def _shares_with_itself(tensor: Tensor) -> bool:
    """Whether two elements surely lie at one place."""
    if tensor.is_contiguous():
        return False
    reach, dense = 0, True
    steps = sorted((step, count) for step, count in zip(tensor.stride(), tensor.shape, strict=True) if count > 1)
    for step, count in steps:
        dense, reach = dense and step > reach, reach + step * (count - 1)
    if dense:
        return False
    counts = _few([count for _, count in steps])
    return len(set(_places(0, [step for step, _ in steps], counts))) < prod(counts)
