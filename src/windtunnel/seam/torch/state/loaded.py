"""Memory of loaded checkpoints: what of it still lives, and is no part of a model or an optimizer, when memory ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch

from windtunnel.seam.living import living
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.state.observers import Observers
from windtunnel.seam.torch.tags import Storage, Tag, parts_of, storage_of


class Loaded:
    """The storages on devices that were made while a checkpoint was loaded, and the line that loaded each."""

    def __init__(self, observers: Observers) -> None:
        self._placed = observers.placed
        self._sites: WeakKeyDictionary[Tag, int] = WeakKeyDictionary()

    @contextmanager
    def loading(self, site: int) -> Iterator[None]:
        """What is placed meanwhile belongs to a checkpoint."""

        def told(storage: Storage, index: int, tag: Tag) -> None:
            self._sites[tag] = site

        self._placed.append(told)
        try:
            yield
        finally:
            self._placed.remove(told)

    def held(self, device: int) -> tuple[int, int]:
        """The line that loaded most of what lives on a device only for a checkpoint's sake, and its bytes; 0 and 0."""
        alive = [tag for tag in self._sites if tag.device == device and tag.block is not None]
        used = _used() if alive else frozenset()
        sizes: Counter[int] = Counter()
        for tag in alive:
            if id(tag) not in used:
                sizes[self._sites[tag]] += tag.size
        return sizes.most_common(1)[0] if sizes else (0, 0)


def _used() -> frozenset[int]:
    """The tags of all that modules and optimizers hold, by identity: a loaded state may be one of theirs itself."""
    found: set[int] = set()
    owners: list[list[object]] = [
        [*one._parameters.values(), *one._buffers.values()] for one in living(torch.nn.Module)
    ]
    for optimizer in living(torch.optim.Optimizer):
        states = (state for state in optimizer.state.values() if isinstance(state, dict))
        owners.append([value for state in states for value in state.values()])
    for held in owners:
        for tensor in tensors_in(held):
            for part in (tensor,) if tensor.layout is torch.strided else parts_of(tensor):
                found.add(id(storage_of(part)._wt))
    return frozenset(found)
