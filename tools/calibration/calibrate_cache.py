"""What L2 holds and how fast it is, fitted on streaming kernels that other people repeated, and each card left out.

The kernels read one array and write another, and the other way round in the next launch, so that the reuse distance of
all they touch is what one of them moves (gpu-benches, `repeated small kernels`, the best of its block sizes). How long
a launch takes and what memory gives are each card's own here; only L2's room, how sharply it ends and its bytes a clock
and bit of memory's bus are fitted, the latter for memory on the package (HBM) and beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tools.corpus import tables
from tools.fitting import Array, Residuals, rounded, search, write
from windtunnel.cost.cache import ON_PACKAGE_BITS, beyond, step_of, told
from windtunnel.machine.reuse import LEAST_BYTES
from windtunnel.trace.operation import REUSED, Signature

HEAD = "What L2 holds of a kernel's bytes, and how fast it is: cost/cache.py."
SOURCE = "fitted: repeated streaming kernels of github.com/te42kyfo/gpu-benches on A40, L40, A100 and H200"
BEGIN = {"room": 1.0, "steepness": 8.0, "package": 0.5, "beside": 5.0}
MOST = 0.5
"""An error beyond this counts no more."""


class Card(NamedTuple):
    """A card's facts, and the kernels that it ran: bytes and microseconds."""

    name: str
    clock_mhz: float
    bus_bits: int
    l2_bytes: int
    size: Array
    us: Array

    @property
    def kind(self) -> str:
        """Where its memory is."""
        return "package" if self.bus_bits >= ON_PACKAGE_BITS else "beside"


Constants = dict[str, float]


def read() -> list[Card]:
    """The table by card."""
    rows = defaultdict(list)
    for row in tables.read("l2_published.csv"):
        facts = row["gpu"], float(row["clock_mhz"]), int(row["bus_bits"]), int(row["l2_mib"]) << 20
        rows[facts].append((float(row["bytes"]), float(row["bytes"]) / float(row["gb_per_s"]) / 1e3))
    return [Card(*facts, *np.array(some).T) for facts, some in rows.items()]


def in_a_loop(signature: Signature, moved_bytes: int) -> Signature:
    """A kernel of a call that was repeated at once: it touched its operands when it ran before."""
    if moved_bytes < LEAST_BYTES:
        return signature
    return signature._replace(detail=(*signature.detail, (REUSED, told({step_of(moved_bytes): 1.0}))))


def parts(card: Card, of: Constants) -> tuple[Array, Array]:
    """Microseconds of L2 for what it holds, and the bytes that it does not."""
    missed = beyond(card.size, of["room"] * card.l2_bytes, of["steepness"])
    return card.size * (1.0 - missed) / (of[card.kind] * card.bus_bits * card.clock_mhz), card.size * missed


def predicted(card: Card, of: Constants) -> Array:
    """Microseconds of its kernels: its own launch and memory, by least squares of the relative errors."""
    held_us, missed = parts(card, of)
    columns = np.stack([np.ones_like(held_us), missed / 1e6], axis=1) / card.us[:, None]
    own, *_ = np.linalg.lstsq(columns, (card.us - held_us) / card.us, rcond=None)
    return np.maximum(1e-3, held_us + np.maximum(own, 0.0) @ np.stack([np.ones_like(held_us), missed / 1e6]))


def fit(cards: Sequence[Card]) -> Constants:
    """The constants with the least mean of the logarithmic errors."""

    def loss(of: Constants) -> float:
        errors = [np.abs(np.log(predicted(card, of) / card.us)) for card in cards]
        return float(np.mean([np.mean(np.minimum(one, MOST)) for one in errors]))

    def move(of: Constants, name: str, change: float) -> Constants:
        return of | {name: of[name] * float(np.exp(change))}

    return search(BEGIN, BEGIN, loss, move, 0.2, least=0.002, shrink=lambda step: step / 2)


def table(of: Constants) -> list[tuple[str, dict[str, Any]]]:
    """The tables of the data file."""
    room = {"room": rounded(of["room"]), "steepness": rounded(of["steepness"]), "source": SOURCE}
    kinds = [{"memory": kind, "bytes_per_clock_and_bit": rounded(of[kind]), "source": SOURCE}
             for kind in ("package", "beside")]  # fmt: skip
    return [("room", room), *(("bandwidth", row) for row in kinds)]


def calibrate() -> None:
    """Write the constants, and print the errors: fitted, and of each card with those of the others."""
    cards = read()
    of = fit(cards)
    write("cache", HEAD, table(of))
    print(", ".join(f"{name} {value:.3g}" for name, value in of.items()))
    show(cards, of)


def show(cards: list[Card], of: Constants) -> None:
    """The errors with these constants, and left out."""
    for card in cards:
        Residuals("fitted", card.name, card.us / predicted(card, of)).report()
        others = fit([one for one in cards if one is not card])
        Residuals("left out", card.name, card.us / predicted(card, others)).report()


def check() -> None:
    """The errors of the constants, fitted anew: nothing is written."""
    cards = read()
    show(cards, fit(cards))
