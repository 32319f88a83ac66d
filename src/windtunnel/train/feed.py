"""Makes the feed for the data given to `fit`, `evaluate` or `predict`, in one process or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from windtunnel.train import divided, recipe
from windtunnel.train.data import Feed, LoaderFeed, TensorFeed, Tensors, require_batches
from windtunnel.train.strategies import SingleDevice


def make_feed(
    source: Any,
    strategy: SingleDevice,
    seed: int,
    prepare: Callable[[object], object] | None,
    batch_size: int,
    shuffle: bool,
    ordered: bool = False,
) -> Feed:
    """The feed for the data given to `fit`, `evaluate` or `predict`.

    A tensor, a tuple or dict of tensors, a TensorDataset, Tensors and any other data set with a length are cut into
    batches of `batch_size`. A DataLoader gives its own batches (with several processes, of its batch size per process).
    Any other iterable yields batches, which several processes take in turn. Without `shuffle`, Tensors keep their order
    too. With `ordered`, batches are those of the data in its order, however many processes there are.

    Raises UsageError if the data cannot be divided among the processes.
    """
    if type(source) is TensorDataset:
        source = tuple(source.tensors)
    elif isinstance(source, Dataset) and not isinstance(source, IterableDataset) and hasattr(source, "__len__"):
        source = DataLoader(source, batch_size, shuffle=shuffle)
    is_data = isinstance(source, torch.Tensor) or (
        isinstance(source, tuple | Mapping)
        and all(isinstance(x, torch.Tensor) for x in (source.values() if isinstance(source, Mapping) else source))
    )
    if is_data:
        parts = source if isinstance(source, tuple) else (source,)
        source = Tensors(*parts, batch_size=batch_size, shuffle=shuffle)
    if strategy.world_size > 1:
        feed = divided.make_feed(source, strategy, seed, prepare, shuffle, ordered)
    elif isinstance(source, Tensors):
        feed = TensorFeed(source, strategy, seed, prepare, shuffle)
    else:
        require_batches(source)
        feed = LoaderFeed(source, strategy, prepare)
    feed.recipe = recipe.of_data(source)
    return feed
