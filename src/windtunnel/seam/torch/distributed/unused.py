"""What DistributedDataParallel says of parameters that took no part in a step, with their names.

Its reducer waits for the gradient of every parameter (torch/csrc/distributed/c10d/reducer.cpp). Where one does not come
the bucket is never reduced, and the next forward raises; the message gives numbers, unless TORCH_DISTRIBUTED_DEBUG asks
for more.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from torch.nn.parallel import DistributedDataParallel

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State

BEGINNING = "Expected to have finished reduction"
INDICES = re.compile(r"which did not receive grad for rank \d+: ([0-9 ]+)")
SHOWN = 4


def functions(state: State) -> list[Patch]:
    """What DistributedDataParallel does before each forward, where it raises."""
    stock: Callable[..., object] = DistributedDataParallel._pre_forward

    @functools.wraps(stock)
    def pre_forward(self: DistributedDataParallel, *inputs: object, **kwargs: object) -> object:
        try:
            return stock(self, *inputs, **kwargs)
        except RuntimeError as error:
            if str(error).startswith(BEGINNING):
                names = _names(self, str(error))
                shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
                state.notes.note("unused-parameters", state.site(), names=shown, rank=state.ranks.rank,
                                 static=int(self.static_graph), finds=int(self.find_unused_parameters))  # fmt: skip
            raise

    return [Patch(DistributedDataParallel, "_pre_forward", pre_forward)]


def _names(module: DistributedDataParallel, text: str) -> list[str]:
    """The parameters that the reducer names by their numbers."""
    found = INDICES.search(text)
    ignored = module.parameters_to_ignore
    names = [name for name, one in module.module.named_parameters() if one.requires_grad and name not in ignored]
    numbers = map(int, found[1].split()) if found else ()
    return [names[number] for number in numbers if number < len(names)]
