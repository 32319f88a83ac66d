"""What DistributedDataParallel says of parameters that took no part in a step, with their names.

Its reducer waits for the gradient of every parameter (torch/csrc/distributed/c10d/reducer.cpp). Where one does not come
the bucket is never reduced, and the next forward raises; the message gives numbers, unless TORCH_DISTRIBUTED_DEBUG asks
for more. Where no forward comes, PyTorch says nothing: an optimizer that stepped used gradients of this rank alone.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable

import torch
from torch.nn.parallel import DistributedDataParallel

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State

BEGINNING = "Expected to have finished reduction"
INDICES = re.compile(r"which did not receive grad for rank \d+: ([0-9 ]+)")
SHOWN = 4


class Unreduced:
    """The models whose reducers had not finished when an optimizer stepped, as long as they do not finish later."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.numbers: weakref.WeakKeyDictionary[DistributedDataParallel, int] = weakref.WeakKeyDictionary()
        self.found: dict[int, tuple[int, dict[str, str | int]]] = {}  # the line that stepped, and what it is to say

    def forward(self, model: DistributedDataParallel) -> None:
        """A model is called: what was not finished is an error of its own, or it was no training."""
        if model not in self.numbers and (assumptions := self.state.assumptions) is not None:
            assumptions.routed.reducers[model] = weakref.ref(model), "find_unused_parameters"
        self.found.pop(self.numbers.setdefault(model, len(self.numbers)), None)

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step."""
        if torch._C._current_graph_task_id() >= 0:
            return  # inside backward, which goes on
        for model, number in list(self.numbers.items()):
            try:
                model.reducer._check_reducer_finalized()
            except RuntimeError as error:
                if str(error).startswith(BEGINNING) and self._trains(model, optimizer):
                    self.found[number] = self.state.site(), detail(self.state, model, error) | {"stepped": 1}
            else:
                self.found.pop(number, None)

    def _trains(self, model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> bool:
        own = set(map(id, model.parameters()))
        return any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"])

    def tell(self) -> None:
        """The program ends."""
        for site, words in self.found.values():
            self.state.notes.note("unused-parameters", site, **words)
        self.found.clear()


def functions(state: State) -> list[Patch]:
    """What DistributedDataParallel does before each forward, where it raises."""
    stock: Callable[..., object] = DistributedDataParallel._pre_forward
    unreduced = Unreduced(state)
    state.notes.stepping.append(unreduced.stepping)
    state.notes.at_end.append(unreduced.tell)

    @functools.wraps(stock)
    def pre_forward(self: DistributedDataParallel, *inputs: object, **kwargs: object) -> object:
        unreduced.forward(self)
        try:
            return stock(self, *inputs, **kwargs)
        except RuntimeError as error:
            if str(error).startswith(BEGINNING):
                state.notes.note("unused-parameters", state.site(), **detail(state, self, error))
            raise

    return [Patch(DistributedDataParallel, "_pre_forward", pre_forward)]


def detail(state: State, model: DistributedDataParallel, error: RuntimeError) -> dict[str, str | int]:
    """What is said of a model whose reducer has not finished."""
    names = _names(model, str(error))
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    return {
        "names": shown, "rank": state.ranks.rank, "static": int(model.static_graph),
        "finds": int(model.find_unused_parameters),
    }  # fmt: skip


def _names(module: DistributedDataParallel, text: str) -> list[str]:
    """The parameters that the reducer names by their numbers."""
    found = INDICES.search(text)
    ignored = module.parameters_to_ignore
    names = [name for name, one in module.module.named_parameters() if one.requires_grad and name not in ignored]
    numbers = map(int, found[1].split()) if found else ()
    return [names[number] for number in numbers if number < len(names)]
