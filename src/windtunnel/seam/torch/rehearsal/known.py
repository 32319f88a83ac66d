"""Values that a rehearsal without data knows after all.

Integers and truths that the host put on a device are few, and decide most: labels, masks, lengths, counters. A copy of
them stays on the host and goes through the same operators, as long as all that an operator takes is known. So does a
single floating-point number: a learning rate, a time, a sum of ranks that begins at zero.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.tags import Storage, is_physically_meta, storage_of, tag_of

Tensor = torch.Tensor
MOST = 1 << 16
"""Elements: the tokens of a large batch. What is larger decides nothing, and would cost time."""
ROUTED = 1 << 24
"""Elements of what comes of indices that are taken for others: it decides which tokens an expert gets."""
ZEROS = ("aten::zeros", "aten::zeros_like", "aten::new_zeros")


class KnownValues:
    """The values that are known: a storage has all that lies in it, as elements of one dtype."""

    def __init__(self) -> None:
        self.any = False  # whether anything ever was
        self.guess = ""  # what stood for a value that the operator took which runs

    def of(self, tensor: Tensor) -> Tensor | None:
        """The values of a device tensor as a host tensor that shares memory with its other views; None if unknown."""
        if tensor.layout is not torch.strided:
            return None
        base: Tensor | None = getattr(storage_of(tensor), "_wt_values", None)
        if base is None:
            return None
        if base.dtype != tensor.dtype:  # bytes that were copied as a storage may be of any type
            if base.dtype is not torch.uint8 or not is_kind_kept(tensor) or base.numel() % tensor.element_size():
                return None
            base = base.view(tensor.dtype)
        return torch.as_strided(base, tensor.size(), tensor.stride(), tensor.storage_offset())

    def can_keep(self, tensor: Tensor) -> bool:
        """Whether the values of a new device tensor are of a kind that is kept."""
        if not is_kind_kept(tensor):
            return False
        return 0 < tensor.numel() <= (ROUTED if self.guess else MOST) and fills_its_memory(tensor)

    def keep(self, tensor: Tensor, values: Tensor, guess: str = "") -> None:
        """Know the values of a device tensor that fills its memory, or take them for these (`guess`)."""
        storage = storage_of(tensor)
        base = torch.empty(storage.nbytes() // tensor.element_size(), dtype=tensor.dtype)
        torch.as_strided(base, tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(values)
        storage._wt_values = base
        storage._wt_guess = guess
        self.any = True

    def is_zero(self, tensor: Tensor) -> bool:
        """Whether a tensor is one number, which was made as zero and not written since."""
        if tensor.numel() != 1 or tensor.layout is not torch.strided:
            return False
        return bool(getattr(storage_of(tensor), "_wt_zeros", False))

    def guessed(self, tensor: Tensor) -> str:
        """What the values of a tensor were taken for, "" where they are its own."""
        return str(getattr(storage_of(tensor), "_wt_guess", "")) if tensor.layout is torch.strided else ""

    def forget(self, tensors: Iterable[Tensor]) -> None:
        """What was written by something unknown."""
        for tensor in tensors:
            if tensor.layout is torch.strided:
                self.lose(storage_of(tensor))

    def lose(self, storage: Storage) -> None:
        """The same of a storage."""
        storage._wt_values = None
        storage._wt_zeros = False

    def ran(self, call: Call, out: object) -> tuple[Tensor, ...]:
        """An operator was run on shapes: run it on the values that are known; those of its new results in `out`."""
        mutated = [tensor for place in call.plan.mutated for tensor in tensors_in((call.args[place],))]
        if not mutated and not call.plan.fresh:
            return ()  # a view of what is known
        self.guess = next(filter(None, map(self.guessed, filter(is_physically_meta, tensors_in(call.args)))), "")
        if not mutated and not any(map(self.can_keep, tensors_in((out,)))):
            if call.plan.name in ZEROS and isinstance(out, Tensor):  # they would take the tensor's memory on the host
                self.any = self.any or out.numel() == 1
                storage_of(out)._wt_zeros = self.any
            return ()
        if call.plan.card.overwrites and self._overwritten(call.args[0], *call.args[1:2]):
            return ()
        taken = self._taken(call)
        if taken is None:
            self.forget(mutated)
            return ()
        kwargs = {name: value for name, value in call.kwargs.items() if name not in ("device", "pin_memory")}
        made = call.func(*taken, **kwargs)
        if self.guess:
            for tensor in mutated:
                storage_of(tensor)._wt_guess = self.guess
        return () if mutated else tuple(tensors_in((made,)))

    def computed(self, call: Call) -> object | None:
        """An operator's result on the host, where all that it takes is known and stands for nothing else."""
        if any(map(self.guessed, tensors_in(call.args))):
            return None
        taken = self._taken(call)
        return None if taken is None else call.func(*taken, **call.kwargs)

    def _zeros(self, tensor: Tensor) -> Tensor | None:
        """The values of a large tensor of zeros that meets indices which were guessed."""
        if not self.guess or not getattr(storage_of(tensor), "_wt_zeros", False) or not self.can_keep(tensor):
            return None
        self.keep(tensor, torch.zeros((), dtype=tensor.dtype))
        return self.of(tensor)

    def _overwritten(self, to: Tensor, of: Tensor | float = 0) -> bool:
        """Whether all memory of a device tensor gets values that are known."""
        values = self._valued(of)
        if values is None or not self.can_keep(to):
            return False
        self.keep(to, values if isinstance(values, Tensor) else torch.tensor(values), self.guess)
        return True

    def _taken(self, call: Call) -> list[object] | None:
        """An operator's arguments with values in them; None where it is none of ours, or one is unknown."""
        exact = call.plan.card.exact
        if not exact or any(isinstance(value, Tensor) for value in call.kwargs.values()):
            return None
        taken: list[object] = []
        for place, value in enumerate(call.args):
            found = self._valued(value)
            if place == 0 and found is None and exact == "from shapes" and isinstance(value, Tensor):
                found = torch.empty(value.shape, dtype=value.dtype)
            if found is None and value is not None:
                return None
            taken.append(found)
        return taken

    def _valued(self, value: object) -> object:
        if isinstance(value, Tensor):
            if is_physically_meta(value):
                return self._zeros(value) if (values := self.of(value)) is None else values
            return value if value.numel() <= MOST and tag_of(value).device < 0 else None
        if isinstance(value, (list, tuple)):
            items = [item if item is None else self._valued(item) for item in value]
            known = all(item is None or found is not None for item, found in zip(value, items, strict=True))
            return type(value)(items) if known else None
        return value


def is_kind_kept(tensor: Tensor) -> bool:
    """Whether values of a tensor's kind are kept: integers and truths, and single floating-point numbers."""
    if tensor.layout is not torch.strided or tensor.dtype.is_complex:
        return False
    return tensor.numel() == 1 or not tensor.dtype.is_floating_point


def fills_its_memory(tensor: Tensor) -> bool:
    """Whether a tensor is all that lies in its memory."""
    return bool(tensor.numel() * tensor.element_size() == storage_of(tensor).nbytes())
