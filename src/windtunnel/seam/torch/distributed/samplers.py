"""The epochs of DistributedSampler, written down for the comparison with those of other ranks (`ranks.samplers`)."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator

from torch.utils.data import DistributedSampler

from windtunnel.ranks.samplers import Epoch
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State

MOST = 256
"""Passes at one line that are written down."""


def patches(state: State) -> list[Patch]:
    """The sampler's iteration, which loaders of whatever kind come to."""
    stock = DistributedSampler.__iter__
    passes: Counter[int] = Counter()

    @functools.wraps(stock)
    def __iter__(self: DistributedSampler[object]) -> Iterator[object]:  # noqa: N807  it takes that name's place
        state.machine.trace.facts["replicas"] = self.num_replicas
        ledger = state.groups.watch.ledger
        if ledger is not None:
            number = state.site()
            passes[number] += 1
            if passes[number] <= MOST:
                size = len(self.dataset)  # type: ignore[arg-type]  # the sampler asks as well
                told = self.num_replicas, self.rank, self.seed, self.epoch, bool(self.shuffle)
                ledger.say("epoch", Epoch(state.machine.trace.sites[number], passes[number], size, *told))
        return stock(self)

    return [Patch(DistributedSampler, "__iter__", __iter__)]
