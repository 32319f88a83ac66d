"""What a rehearsal without data takes for the values that it has not, and where the program asked for them.

Gradients do not overflow, losses are finite, masks are full. Everything else is what the user gave (`--assume`), or an
error that names the line. Each answer is noted for the check `assumed-value`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

import torch

from understudy.errors import UnsupportedError
from understudy.seam.torch.operators.call import Arguments
from understudy.seam.torch.operators.plan import Plan, tensors_in
from understudy.seam.torch.state.state import State
from understudy.seam.torch.tags import HOST_TAG, Tag, is_physically_meta, tag_of

Tensor = torch.Tensor
META = torch.device("meta")
FINITE = 1.0
"""What a number is taken for that the program reads, a loss mostly."""
NEVER = {"aten::isnan": False, "aten::isinf": False, "aten::isposinf": False, "aten::isneginf": False}
"""Operators that look for what is not finite."""
UNSCALE = "aten::_amp_foreach_non_finite_check_and_unscale_"
"""GradScaler's: its second argument tells whether a gradient overflowed."""
CARRYING: dict[str, Callable[..., bool]] = {
    **dict.fromkeys(("aten::mul", "aten::logical_and", "aten::bitwise_and", "aten::__and__"), lambda a, b: a and b),
    **dict.fromkeys(("aten::logical_or", "aten::bitwise_or", "aten::__or__"), lambda a, b: a or b),
    **dict.fromkeys(("aten::logical_not", "aten::bitwise_not"), lambda a: not a),
    **dict.fromkeys(("aten::any", "aten::all", "aten::_to_copy", "aten::clone"), lambda a: a),
}
"""Operators whose result is known where their tensors, truths of one value all over, are."""

LIBRARIES: dict[tuple[str, str], tuple[bool, str]] = {
    ("transformers/masking_utils.py", "find_packed_sequence_indices"): (True, "no sequences are packed"),
    ("transformers/masking_utils.py", "_ignore_causal_mask_sdpa"): (True, "no token is padding"),
    ("transformers/masking_utils.py", "_ignore_bidirectional_mask_sdpa"): (True, "no token is padding"),
    ("transformers/masking_utils.py", "_can_skip_bidirectional_mask_xpu"): (True, "no token is padding"),
    ("transformers/masking_utils.py", "flash_attention_mask"): (True, "no token is padding"),
    ("transformers/masking_utils.py", "flex_attention_mask"): (True, "no token is padding"),
    ("transformers/modeling_attn_mask_utils.py", "_ignore_causal_mask_sdpa"): (True, "no token is padding"),
    ("transformers/modeling_utils.py", "warn_if_padding_and_no_attention_mask"): (False, "no token is padding"),
}
"""Functions of libraries that look at values to choose a way, by file and name: what training meets, and what it means.

The whole batch is then computed, as without padding: the most that the step takes.
"""

GIVE_A_VALUE = "give the value to use with --assume VALUE (assume=VALUE in Python) where one will do"
KEEP_SHAPES = "keep the shape (torch.where and masked_fill do, nonzero_static and `output_size` say how many)"


class Assumptions:
    """The values that are known of tensors that have none, by the tags of their memory."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.known: WeakKeyDictionary[Tag, tuple[str, bool]] = WeakKeyDictionary()
        self.any_known = False  # whether anything ever was

    def ran(self, plan: Plan, args: Arguments, out: object) -> None:
        """An operator was run on shapes: learn what is known of its result, forget what it wrote over."""
        if plan.name == UNSCALE:
            self.know(tag_of(args[1]), "overflow", False)
        elif self.any_known:
            for position in plan.mutated:
                for tensor in tensors_in((args[position],)):
                    self.known.pop(tag_of(tensor), None)

    def result(self, plan: Plan, args: Arguments) -> bool | None:
        """What is known of an operator's result, the same for all its elements."""
        if plan.name in NEVER:
            return NEVER[plan.name]
        if plan.name in ("aten::eq", "aten::ne"):
            infinite = isinstance(args[1], float) and not math.isfinite(args[1])
            if args[0] is args[1] or infinite:  # `x == x` is false of NaN alone
                return (plan.name == "aten::eq") != infinite
        if self.any_known and plan.name in CARRYING:
            found = [self.known.get(tag_of(tensor)) for tensor in tensors_in(args)]
            values = [one[1] for one in found if one is not None]
            if values and len(values) == len(found) <= 2:
                return CARRYING[plan.name](*values)
        return None

    def learn(self, out: object, value: bool) -> None:
        """The elements of a new tensor are known."""
        if isinstance(out, Tensor) and (tag := tag_of(out)) is not HOST_TAG:
            self.know(tag, "finite", value)

    def know(self, tag: Tag, what: str, value: bool) -> None:
        """All elements in some memory are `value`."""
        self.known[tag] = what, value
        self.any_known = True

    def value(self, tensor: Tensor) -> bool | int | float:
        """The number or truth that the elements of a device tensor are taken for; notes that it was asked for."""
        known = self.known.get(tag_of(tensor))
        if known is not None:
            what, value = known[0], known[1]
            self.note(what, value=str(int(value) if what == "overflow" else value))
            return value
        library = self._library()
        if library is not None:
            self.note("library", value=str(library[0]), means=library[1])
            return library[0]
        if self.state.assume is not None:
            self.note("given", value=str(self.state.assume))
            return self.state.assume
        if tensor.is_floating_point() and tensor.numel() == 1:
            self.note("number", value=str(FINITE))
            return FINITE
        raise UnsupportedError(refusal(self.state, "the program reads values of a device tensor"))

    def _library(self) -> tuple[bool, str] | None:
        """What is assumed where a library's own function asks, and what it means."""
        found = self.state.sites.library_function()
        return None if found is None else LIBRARIES.get(found)

    def values(self, tensor: Tensor) -> Tensor:
        """A host tensor of what a device tensor's elements are taken for; of its own values where it has any."""
        if not is_physically_meta(tensor):
            return tensor.detach().clone()
        return torch.full(tuple(tensor.shape), self.value(tensor), dtype=tensor.dtype, device="cpu")

    def full(self, name: str, elements: int) -> None:
        """Note that a mask selects all elements, or that none is zero."""
        self.note("mask", name=name, elements=elements)

    def note(self, what: str, **detail: str | int) -> None:
        """Note an assumption at the program's line."""
        self.state.notes.note("assumed-value", self.state.site(), what=what, **detail)


def refusal(state: State, what: str, advice: str = GIVE_A_VALUE) -> str:
    """The sentence that names the line and says what helps."""
    caller = state.sites.caller()
    site = state.machine.trace.sites[caller.site]
    inside = f" (in {caller.library})" if caller.library and not str(site).endswith(caller.library) else ""
    return f"{what} at {site}{inside}, and a rehearsal without data has none: {advice}, or run with data"


def selected(name: str, args: Arguments) -> Tensor | None:
    """The result of an operator that picks elements by their values, where it picks all; None of any other operator."""
    if name == "aten::nonzero":
        return torch.empty((args[0].numel(), args[0].dim()), dtype=torch.int64, device=META)
    if name == "aten::masked_select":
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return torch.empty((math.prod(shape),), dtype=args[0].dtype, device=META)
    return None


def unmasked(indices: Iterable[object]) -> tuple[list[object], int]:
    """Indices with the masks among them as the indices of all their elements, and how many those of a mask are.

    A mask on the host has values, which say how many.
    """
    made: list[object] = []
    most = 0
    for index in indices:
        if not isinstance(index, Tensor) or index.dtype not in (torch.bool, torch.uint8):
            made.append(index)
            continue
        elements = index.numel() if is_physically_meta(index) else int(torch.count_nonzero(index))
        most = max(most, elements)
        made += [torch.empty((elements,), dtype=torch.int64, device=META) for _ in range(index.dim())]
    return made, most
