"""Where a model trains: one small class per placement, and the choice among them."""

from __future__ import annotations

import os

import torch.distributed as dist

from windtunnel.errors import UsageError
from windtunnel.train.strategies.ddp import Distributed
from windtunnel.train.strategies.dp import DataParallel
from windtunnel.train.strategies.fsdp import Sharded
from windtunnel.train.strategies.single import SingleDevice

__all__ = ["STRATEGIES", "DataParallel", "Distributed", "Sharded", "SingleDevice", "choose"]

STRATEGIES: dict[str, type[SingleDevice]] = {
    strategy.name: strategy for strategy in (SingleDevice, DataParallel, Distributed, Sharded)
}


def choose(strategy: str | SingleDevice, num_gpus: int) -> SingleDevice:
    """The strategy of that name, or the given object. "auto": ddp for several processes, dp on several GPUs."""
    if isinstance(strategy, SingleDevice):
        return strategy
    if strategy == "auto":
        several = dist.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) > 1
        strategy = "ddp" if several else "dp" if num_gpus > 1 else "single"
    if strategy not in STRATEGIES:
        raise UsageError(f"strategy {strategy!r} is unknown: choose 'auto', {', '.join(map(repr, STRATEGIES))}.")
    return STRATEGIES[strategy]()
