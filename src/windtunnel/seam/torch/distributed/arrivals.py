"""`init_process_group` while others are still on their way: where one of them has died, nobody waits for it."""

from __future__ import annotations

import _thread
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic_ns
from typing import cast

import torch.distributed as dist

from windtunnel import variables
from windtunnel.arrivals import HERE
from windtunnel.ranks.ledger import SUFFIX, Ledger
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.distributed import played
from windtunnel.seam.torch.state.state import State
from windtunnel.trace.operation import Note, Site

LOOK_S = 1.0
"""A rank is dead if it is so in two looks: a program of several parts may start the next one in between."""


def patches(state: State) -> list[Patch]:
    """Where `init_process_group` meets the others."""
    if not dist.is_available():
        return []
    c10d = dist.distributed_c10d
    stock = cast(Callable[..., Iterator[object]], vars(c10d)["rendezvous"])

    @functools.wraps(stock)
    def rendezvous(*args: object, **kwargs: object) -> Iterator[object]:
        played.require_agent()
        coming = stock(*args, **kwargs)
        with _looking(state):
            met = next(coming)
        HERE.joined()
        return itertools.chain([met], coming)

    return [Patch(c10d, "rendezvous", rendezvous)]


@contextmanager
def _looking(state: State) -> Iterator[None]:
    """Look after the others while this rank waits."""
    if not HERE.folder:
        yield
        return
    over = _thread.allocate_lock()
    over.acquire()
    site = state.machine.trace.sites[state.site()]  # of the thread that waits

    def look() -> None:
        before: object = None
        while not over.acquire(timeout=LOOK_S):
            gone = HERE.gone()
            if gone and gone == before:
                _tell(state, [_note(site, *one) for one in gone])
            before = gone

    _thread.start_new_thread(look, ())  # no thread of the program's: from its second on, all verbs take turns
    try:
        yield
    finally:
        over.release()


def _note(site: Site, rank: int, how: str, text: str) -> Note:
    mine = f"rank {os.environ.get('RANK', '?')}"
    detail = (
        ("rank", rank), ("group", "the default group"), ("number", 0), ("calls", 0), ("kind", "create"), ("last", ""),
        ("how", how), ("text", text), (mine, f"waits in init_process_group at {site}"),
    )  # fmt: skip
    return Note("rank-ended", site, detail)


def _tell(state: State, notes: list[Note]) -> None:
    """Write down who died, and end this process."""
    folder = os.environ.get(variables.FOLDER)
    if folder is not None:
        name = f"arrival-{os.getpid()}"
        rank = os.environ.get("RANK", "0")
        path, number = os.path.join(folder, name + SUFFIX), int(rank) if rank.isdecimal() else 0
        Ledger(path, name, number, name, monotonic_ns()).judged(notes)
    HERE.joined()
    state.groups.watch.end(notes)
