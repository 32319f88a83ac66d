"""What a rehearsal without data takes for the values that it has not, and where the program asked for them.

Gradients do not overflow, losses are finite, masks are full. Everything else is what the user gave (`--assume`), or an
error that names the line. Each answer is noted for the check `assumed-value`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary, WeakSet

import torch

from windtunnel.errors import UnsupportedError
from windtunnel.seam.torch.plans.arguments import Arguments, Kernel, Keywords, tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.rehearsal import library_questions, untouched
from windtunnel.seam.torch.rehearsal.known import MOST, KnownValues, fills_its_memory
from windtunnel.seam.torch.rehearsal.routed import Routed
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import HOST_TAG, Storage, Tag, is_physically_meta, storage_of, tag_of

Tensor = torch.Tensor
META = torch.device("meta")
FINITE = 1.0
"""What a number is taken for that the program reads, a loss mostly."""
SOUGHT = "aten::isin"
"""Looks for special elements, padding mostly, which are taken to be absent."""
NEVER = {"aten::isnan": False, "aten::isinf": False, "aten::isposinf": False, "aten::isneginf": False}
"""Operators that look for what is not finite."""
EQUALITY = {"aten::eq": False, "aten::ne": True}
"""Operators that compare numbers with one, and what they say of unknown ones taken together."""
WHOLE = {"aten::all": False, "aten::any": True}
"""Operators that ask for all of a tensor, and the answer where its numbers differ."""
COUNTS = ("aten::sum", "aten::count_nonzero")
CHOICES = {
    **dict.fromkeys(("aten::argmax", "aten::argmin", "aten::max", "aten::min"), 1),
    "aten::multinomial": None,
    "aten::topk": 2,
}
"""Operators that give indices of elements, in the last of their results, and which argument is the dimension."""
UNSCALE = "aten::_amp_foreach_non_finite_check_and_unscale_"
"""GradScaler's: its second argument tells whether a gradient overflowed."""
SAME = ("_to_copy", "amax", "amin", "clone", "max", "mean", "min")
COMPARING: dict[str, Callable[..., bool]] = {
    f"aten::{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
CARRYING: dict[str, Callable[..., bool | int | float]] = {
    **COMPARING,
    **{f"aten::{name}": getattr(operator, name) for name in ("add", "sub", "mul")},
    "aten::div": operator.truediv,
    "aten::logical_and": lambda a, b: bool(a and b),
    "aten::logical_or": lambda a, b: bool(a or b),
    **dict.fromkeys(("aten::bitwise_and", "aten::__and__"), lambda a, b: int(a) & int(b)),
    **dict.fromkeys(("aten::bitwise_or", "aten::__or__"), lambda a, b: int(a) | int(b)),
    "aten::logical_not": operator.not_,
    "aten::bitwise_not": lambda a: not a if isinstance(a, bool) else ~int(a),
    **dict.fromkeys(("aten::any", "aten::all"), bool),
    **dict.fromkeys((f"aten::{name}" for name in SAME), lambda a: a),
}
"""Operators whose result is known where their tensors have one known value all over."""

GIVE_A_VALUE = "give the value to use with --assume VALUE (assume=VALUE in Python) where one will do"
KEEP_SHAPES = "keep the shape (torch.where and masked_fill do, nonzero_static and `output_size` say how many)"
GIVE_MINLENGTH = "give `minlength`, which is then the result's size"

Number = bool | int | float
UNARY = frozenset(f"aten::{name}" for name in ("logical_not", "bitwise_not", "any", "all", *SAME))
ABSORBING = {
    **dict.fromkeys((f"aten::{name}" for name in ("mul", "logical_and", "bitwise_and", "__and__")), False),
    **dict.fromkeys((f"aten::{name}" for name in ("logical_or", "bitwise_or", "__or__")), True),
}
"""Operators that one operand decides, whatever the other is: zero, or of truths `True`."""
TELLING = frozenset({SOUGHT, *NEVER, *COMPARING, *COUNTS, *CHOICES, "aten::nonzero"})
"""Operators whose results tell something where nothing is known of their arguments."""
TOLD = ("", "sought")
"""What is known so well that a library's question needs no answer."""
GUESSED = ("count", "index")
"""What is assumed if the user gives no answer."""
OWN = ("number", "given", "finite", *GUESSED)
"""What ranks may have different values of, if no collective has given them one."""


class Assumptions:
    """What is taken for the values that nobody knows: one for all elements, by the tags of their memory."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.exact = KnownValues()
        self.routed = Routed(state)
        self.known: WeakKeyDictionary[Tag, tuple[str, Number]] = WeakKeyDictionary()
        self.unequal: WeakKeyDictionary[Tag, bool] = WeakKeyDictionary()  # of many unknown numbers with one: `x == 0`
        self.shared: WeakSet[Tag] = WeakSet()  # unknown numbers that all ranks have, from collectives

    def share(self, tensors: Iterable[Tensor]) -> None:
        """A collective gave these to every rank."""
        self.shared.update(tag for tag in map(tag_of, tensors) if tag is not HOST_TAG)

    def _carry_shared(self, call: Call, out: object) -> None:
        """What is made of shared numbers alone is shared."""
        first = 1 if call.plan.card.overwrites else 0  # what was there before does not matter
        given, made = tensors_in((*call.args[first:], *call.kwargs.values())), tensors_in((out,))
        if given and all(tag_of(one) in self.shared or self._is_number(one) for one in given):
            self.share(self._placed(one, call.device) for one in made)
        else:
            self.shared.difference_update(map(tag_of, made))

    def _is_number(self, tensor: Tensor) -> bool:
        """Whether a tensor is one known number, such as a count of ranks."""
        return tensor.numel() == 1 and (not is_physically_meta(tensor) or self.exact.of(tensor) is not None)

    def ran(self, call: Call, out: object) -> None:
        """An operator was run on shapes: learn of its results, forget what it wrote over."""
        if self.shared:
            self._carry_shared(call, out)
        if self.routed.asked:
            self.routed.ran(call)
        exact = self.exact
        name = call.plan.name.removesuffix("_")
        may_tell = self.known or self.unequal or name in TELLING or (exact.any and name in ABSORBING)
        found = self._result(name, call.args, call.kwargs, out) if may_tell else None
        known = call.plan.card
        may_begin = exact.any or known.exact == "from shapes" or known.transfers or known.overwrites
        made = exact.ran(call, out) if may_begin else ()
        absent = name == SOUGHT and bool(exact.guess)  # what was guessed is none of the special elements
        for tensor, values in zip(tensors_in((out,)), () if absent else made, strict=False):
            if exact.can_keep(tensor):
                exact.keep(self._placed(tensor, call.device), values, exact.guess)
        if call.plan.name == UNSCALE:
            self.known[tag_of(call.args[1])] = "overflow", False
            return
        for position in call.plan.mutated:
            for tensor in tensors_in((call.args[position],)):
                self.known.pop(tag_of(tensor), None)
                self.unequal.pop(tag_of(tensor), None)
        if found is None:
            if name in EQUALITY and isinstance(out, Tensor) and self._vary(*call.args):
                self.unequal[tag_of(self._placed(out, call.device))] = EQUALITY[name]
            return
        *_, last = [self._placed(tensor, call.device) for tensor in tensors_in((out,))]
        tag = tag_of(last)
        if exact.of(last) is not None:
            return
        what, number = found
        exact.guess = what if what in GUESSED else ""
        if exact.guess and exact.can_keep(last):
            exact.keep(last, guessed(name, number, call.args, call.kwargs, last), what)
        elif fills_its_memory(last):
            self.known[tag] = found

    def told(self, tensor: Tensor) -> tuple[str, Tensor | None]:
        """What is known of a tensor without values, and what that stands for, "" where it is its own; or None."""
        values = self.exact.of(tensor)
        if values is not None:
            return self.exact.guessed(tensor), values
        what, number = self.known.get(tag_of(tensor), ("", None))
        return what, None if number is None else torch.full(tensor.shape, number, dtype=tensor.dtype, device="cpu")

    def tell(self, tensor: Tensor, guess: str, values: Tensor | None) -> None:
        """A tensor's elements are now these, or nothing is known of them."""
        self.known.pop(tag_of(tensor), None)
        within = self.exact.of(tensor)
        if values is None:
            self.exact.forget([tensor])
        elif self.exact.can_keep(tensor):
            self.exact.keep(tensor, values, guess)
        elif within is not None:
            within.copy_(values)
        else:
            self.exact.forget([tensor])

    def wrote(self, storage: Storage) -> None:
        """Something unknown wrote a tensor's memory."""
        self.known.pop(storage._wt, None)
        self.exact.lose(storage)

    def _placed(self, tensor: Tensor, device: int) -> Tensor:
        """A new tensor, which has its memory from here on."""
        storage = storage_of(tensor)
        if storage._wt is HOST_TAG:
            if device >= 0:
                self.state.place(storage, device)
            else:
                self.state.let_float(storage)
        return tensor

    def _result(self, name: str, args: Arguments, kwargs: Keywords, out: object) -> tuple[str, Number] | None:
        """What is known of an operator's last result, the same for all its elements."""
        if name in NEVER:
            return "finite", NEVER[name]
        if name == SOUGHT:
            return "sought", False
        if name in WHOLE and isinstance(args[0], Tensor) and self.unequal.get(tag_of(args[0])) is WHOLE[name]:
            return "unequal", WHOLE[name]
        if name in EQUALITY:
            infinite = isinstance(args[1], float) and not math.isfinite(args[1])
            if args[0] is args[1] or infinite:  # `x == x` is false of NaN alone
                return "finite", (name == "aten::eq") != infinite
        if name == "aten::nonzero" or (
            name in CHOICES and (isinstance(out, tuple) or name not in ("aten::max", "aten::min"))
        ):
            return "index", 0
        if name in COUNTS and isinstance(out, Tensor) and isinstance(args[0], Tensor):
            each = args[0].numel() // max(out.numel(), 1)
            what, number = self._uniform(args[0]) or (("count", 1) if args[0].dtype is torch.bool else ("", None))
            return None if number is None else (what, number * each)
        if name not in CARRYING or kwargs.get("alpha", 1) != 1:
            return None
        operands = [a for a in args[: 1 if name in UNARY else 2] if isinstance(a, (Tensor, bool, int, float))]
        found = [self._operand(operand, name in COMPARING) for operand in operands]
        if name in ABSORBING and None in found and isinstance(out, Tensor) and not out.is_floating_point():
            if (decides := ABSORBING[name]) and out.dtype is not torch.bool:
                return None
            return next((one for one in found if one is not None and bool(one[1]) is decides), None)
        if None in found or len(found) != (1 if name in UNARY else 2):
            return None
        values = [one for one in found if one is not None]
        what = next((what for what, _ in values if what), "")
        divided_by_zero = name == "aten::div" and not values[1][1]
        truth = isinstance(out, Tensor) and out.dtype is torch.bool
        if divided_by_zero or not (what or truth):
            return None
        number = CARRYING[name](*(number for _, number in values))
        return what, bool(number) if truth else number

    def _vary(self, numbers: object, other: object) -> bool:
        """Whether many unknown numbers are compared with one: they are not all the same."""
        if not isinstance(numbers, Tensor) or isinstance(other, Tensor) or numbers.numel() < 2:
            return False
        return numbers.is_floating_point() and self._exact(numbers) is None and self._uniform(numbers) is None

    def _operand(self, operand: Tensor | Number, compared: bool) -> tuple[str, Number] | None:
        if not isinstance(operand, Tensor):
            return "", operand
        found = self._uniform(operand)
        if found is None and compared and operand.is_floating_point() and operand.numel() == 1:
            given = self.state.assume
            return ("number", FINITE) if given is None else ("given", given)
        return found

    def _uniform(self, tensor: Tensor) -> tuple[str, Number] | None:
        """The number that all elements of a tensor are, and what it was taken for, "" where it is exact."""
        found = self.known.get(tag_of(tensor))
        if found is None and (exact := self._exact(tensor)) is not None and 0 < exact.numel() <= MOST:
            first = exact.flatten()[0]
            if exact.numel() == 1 or bool((exact == first).all()):
                return self.exact.guessed(tensor), first.item()
        return ("", 0) if found is None and self.exact.is_zero(tensor) else found

    def _exact(self, tensor: Tensor) -> Tensor | None:
        return self.exact.of(tensor) if is_physically_meta(tensor) else tensor

    def value(self, tensor: Tensor) -> Number:
        """The number or truth that the elements of a device tensor are taken for; notes that it was asked for."""
        exact = self.exact.of(tensor) if tensor.numel() == 1 else None
        known = self.known.get(tag_of(tensor))
        told = known[0] if known is not None else None if exact is None else self.exact.guessed(tensor)
        library = None if tensor.is_floating_point() or told in TOLD else self._library(tensor.dtype is torch.bool)
        if library is not None:
            self.note("library", value=str(library[0]), means=library[1])
            return library[0]
        if exact is not None and self._taken(tensor, exact):
            return exact.item()
        if known is not None and (known[0] not in GUESSED or self.state.assume is None):
            what, value = known
            if not what:
                return value
            self.note(what, value=str(int(value) if what == "overflow" else value), **self._whose(tensor, what))
            return value
        if self.state.assume is not None:
            self.note("given", value=str(self.state.assume), **self._whose(tensor, "given"))
            return self.state.assume
        if tensor.is_floating_point():
            self.note("number", value=str(FINITE), **self._whose(tensor, "number"))
            return FINITE
        raise UnsupportedError(refusal(self.state, "the program reads values of a device tensor"))

    def _whose(self, tensor: Tensor, what: str) -> dict[str, int]:
        """Whether each rank has a number of its own there; nothing where there is one rank, or all have it."""
        ranks = int(self.state.machine.trace.facts.get("world_size", 1))
        single = tensor.numel() == 1 or what in GUESSED
        own = ranks > 1 and what in OWN and single and tag_of(tensor) not in self.shared
        self.routed.asked |= own and what in GUESSED
        return {"own": 1} if own else {}

    def _taken(self, tensor: Tensor, values: Tensor) -> bool:
        """Whether a tensor is taken for its values: those that stand for others are noted, or the user gave another."""
        guess = self.exact.guessed(tensor)
        if guess in GUESSED and self.state.assume is not None:
            return False
        if guess:
            value = str(values.item()) if values.numel() == 1 else f"{values.numel()} of them"
            self.note(guess, value=value, **self._whose(tensor, guess))
        return True

    def _library(self, truth: bool) -> tuple[bool | int, str] | None:
        """What is assumed where a library's own function asks for a truth or a number, and what it means."""
        asking = self.state.sites.library_function(library_questions.ANSWERS)
        answer = None if asking is None else library_questions.ANSWERS.get(asking)
        if answer is None or (isinstance(answer[0], bool) and not truth):
            return None
        return (bool(answer[0]), answer[1]) if truth else answer

    def values(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """A host tensor of what a device tensor's elements are taken for; of its own values where it has any."""
        dtype = dtype or tensor.dtype
        if not is_physically_meta(tensor):
            return tensor.detach().to(dtype, copy=True)
        exact = self.exact.of(tensor)
        if not tensor.numel():
            return torch.empty(tuple(tensor.shape), dtype=dtype, device="cpu")
        if exact is not None and self._taken(tensor, exact):
            return exact.to(dtype, copy=True)
        if self.is_large(tensor):
            self.note("copy", value=str(tensor.nbytes))
            return untouched.mark(untouched.zeros(tensor.shape, dtype))
        made = torch.full(tuple(tensor.shape), self.value(tensor), dtype=tensor.dtype, device="cpu").to(dtype)
        return untouched.mark(made) if tensor.numel() > 1 else made

    def is_large(self, tensor: Tensor) -> bool:
        """Whether a device tensor has numbers that nobody knows, and too many to write them."""
        return untouched.is_large(tensor) and tag_of(tensor) not in self.known and self.state.assume is None

    def alike(self, func: Kernel, args: Arguments, kwargs: Keywords) -> bool:
        """Whether two tensors are equal or close: by what is known of them, and else they are."""
        known = [self._exact(tensor) for tensor in args[:2]]
        if all(one is not None and self._taken(tensor, one) for tensor, one in zip(args, known, strict=False)):
            return bool(func(*known, *args[2:], **kwargs))
        if self.state.assume is not None:
            self.note("given", value=str(self.state.assume))
            return bool(self.state.assume)
        self.note("alike")
        return True

    def _bins(self, tensor: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
        """The result of `bincount`: `minlength` elements, unless the values are known."""
        exact = self._exact(tensor)
        if exact is None and not minlength:
            raise UnsupportedError(refusal(self.state, "aten::bincount decides a shape by values", GIVE_MINLENGTH))
        if exact is None:
            self.note("bins", value=str(minlength))
        size = minlength if exact is None or not exact.numel() else max(minlength, int(exact.max()) + 1)
        float32 = weights is not None and weights.dtype is torch.float32
        dtype = torch.int64 if weights is None else torch.float32 if float32 else torch.float64
        return torch.empty((size,), dtype=dtype, device=META)

    def selected(self, name: str, args: Arguments, kwargs: Keywords) -> Tensor | None:
        """The result of an operator that picks elements by their values, all where they are unknown; None of others."""
        if name == "aten::bincount":
            return self._bins(*args, **kwargs)
        if name == "aten::nonzero":
            return torch.empty((self._picked(name, args[0]), args[0].dim()), dtype=torch.int64, device=META)
        if name == "aten::masked_select":
            shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
            picked = self._picked(name, args[1].expand(shape))
            return torch.empty((picked,), dtype=args[0].dtype, device=META)
        return None

    def _picked(self, name: str, mask: Tensor) -> int:
        """How many elements a mask selects."""
        exact = self._exact(mask)
        if exact is not None:
            count = int(torch.count_nonzero(exact))
            if (guess := self.exact.guessed(mask)) in GUESSED and self._whose(mask, guess):
                self.note(guess, value=f"{count} of {mask.numel()}", own=1)
            return count
        self.note("mask", name=name, elements=mask.numel())
        return mask.numel()

    def unmasked(self, name: str, indices: Iterable[object]) -> list[object]:
        """Indices with the masks among them as the indices of what those select."""
        made: list[object] = []
        for index in indices:
            if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
                picked = self._picked(name, index)
                made += [torch.empty((picked,), dtype=torch.int64, device=META) for _ in range(index.dim())]
            else:
                made.append(index)
        return made

    def note(self, what: str, **detail: str | int) -> None:
        """Note an assumption at the program's line."""
        self.state.notes.note("assumed-value", self.state.site(), what=what, **detail)


def guessed(name: str, number: Number, args: Arguments, kwargs: Keywords, out: Tensor) -> Tensor:
    """The numbers that an operator's last result is taken for."""
    if name == "aten::nonzero":
        return torch.ones(args[0].shape).nonzero()
    return spread(name, args, kwargs, out) if name in CHOICES else torch.tensor(number).expand(out.shape)


def spread(name: str, args: Arguments, kwargs: Keywords, out: Tensor) -> Tensor:
    """Indices that a choice may give: none twice in a row, all as often, from the middle on.

    Experts get as many tokens each, what a search has just found displaces what it had, and no token is a special one,
    which stand at a vocabulary's ends.
    """
    place = CHOICES[name]
    along = -1 if place is None or name == "aten::topk" else None
    dim = kwargs.get("dim", args[place] if place is not None and len(args) > place else along)
    size = args[0].numel() if dim is None or not args[0].dim() else args[0].shape[dim]
    indices: Tensor = (size // 2 + torch.arange(out.numel())).remainder(size)
    if dim is None or out.dim() != args[0].dim():
        return indices.reshape(out.shape)
    return indices.reshape(out.movedim(dim, -1).shape).movedim(-1, dim)


def refusal(state: State, what: str, advice: str = GIVE_A_VALUE) -> str:
    """The sentence that names the line and says what helps."""
    caller = state.sites.caller()
    site = state.machine.trace.sites[caller.site]
    inside = f" (in {caller.library})" if caller.library and not str(site).endswith(caller.library) else ""
    return f"{what} at {site}{inside}, and a rehearsal without data has none: {advice}, or run with data"
