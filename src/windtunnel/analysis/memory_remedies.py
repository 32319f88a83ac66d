"""What would have made room for a request that did not fit: the allocations before it, replayed under each remedy.

A remedy says what becomes of each allocation. The replay goes up to the request that failed. What is saved is the
difference between the most that is allocated, on a GPU of unlimited memory; whether it then fits, a replay on the GPU
itself says, fragmentation included. What would have come after it is not known: a
remedy whose effect comes later (an 8-bit optimizer where no step was taken) is not named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from windtunnel.analysis.replay import NO_LIMIT
from windtunnel.analysis.snapshot_file import Event, Snapshot
from windtunnel.analysis.what_if import WhatIfRow, outcome
from windtunnel.machine.memory.settings import Settings, parse
from windtunnel.trace.holders import LAYER
from windtunnel.trace.operation import Role
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import MEMORY_ACTIONS, MEMORY_CATEGORIES, Held, Trace

WITH_BATCH = frozenset({"activation", "input", "retained", "temporary", ""})
"""Categories of what grows with the batch, but for what is as large as a parameter."""
SHARDED = frozenset({"parameter", "gradient", "optimizer"})
EIGHT_BIT = frozenset({"Adam", "AdamW", "SGD", "Adagrad", "RMSprop"})
"""Optimizers of which bitsandbytes has one with states of 8 bits."""
STATES = re.compile(r"^(exp_avg|exp_avg_sq|momentum_buffer|square_avg|sum) of ")
QUANTIZED_FROM, BLOCK = 4096, 256
"""From how many elements on bitsandbytes keeps a state in 8 bits, and how many of them share a scale."""
GROWS = 0.3
"""Of what is needed: the share of such blocks from which on more iterations need more."""
WORTH = 0.01
"""Of what is needed: the saving from which on a remedy is named."""
NAMED = 6
REPEATED = 8
"""Blocks of one module, operator and size that are alive at once, from which on a graph goes over many iterations."""
EXPANDABLE = "expandable_segments:True"


class HistoryRow(NamedTuple):
    """A row of the history of one device, with what is known of the allocation that it begins or ends."""

    action: str
    address: int
    size_bytes: int
    stream: int
    category: str
    role: Role

    def event(self, size_bytes: int | None = None) -> Event:
        """The same as an event for a replay, of another size where one is given."""
        return Event(self.action, self.address, self.size_bytes if size_bytes is None else size_bytes, self.stream)


@dataclass
class History:
    """A device's rows up to the last request that failed, and what is known of the program."""

    device: int
    rows: list[HistoryRow]
    settings: Settings
    ranks: int = 1
    sizes: dict[str, set[int]] = field(default_factory=dict)  # of parameters, by the module that has them

    @property
    def is_sharded(self) -> bool:
        """Whether FSDP is at work."""
        return any(row.role.tensor == "unsharded parameters" for row in self.rows)

    def is_parameters(self, row: HistoryRow) -> bool:
        """Whether an allocation is as large as a parameter of its module, so that the batch does not decide."""
        return row.size_bytes in self.sizes.get(row.role.module, ())

    def replay(self, events: Iterable[Event], memory_bytes: int | None, settings: Settings | None = None) -> WhatIfRow:
        """The events on a device with so much memory, or without a limit; under other settings where some are given."""
        return outcome(Snapshot(self.device, self.settings, list(events), []), settings or self.settings, memory_bytes)

    def own(self) -> Iterator[Event]:
        """What the program did."""
        return (row.event() for row in self.rows)

    @cached_property
    def layers(self) -> str:
        """The row of layers whose activations take most ("GPT.h."); empty where there is none."""
        held: Counter[str] = Counter()
        numbers: dict[str, set[str]] = {}
        for row in self.rows:
            if row.action == "alloc" and row.category == "activation" and (found := LAYER.match(row.role.module)):
                held[found[1]] += row.size_bytes
                numbers.setdefault(found[1], set()).add(found[2])
        return next((name for name, _ in held.most_common() if len(numbers[name]) > 1), "")

    @cached_property
    def repeated(self) -> dict[int, tuple[str, str, int]]:
        """What many calls of one module left alive, by its row's number: the graph of more than one iteration."""
        alive: dict[int, int] = {}
        for number, row in enumerate(self.rows):
            if row.action == "alloc":
                alive[row.address] = number
            elif row.action == "free_completed":
                alive.pop(row.address, None)
        groups: dict[tuple[str, str, int], list[int]] = {}
        for number in alive.values():
            row = self.rows[number]
            if row.role.module and row.category in ("retained", "activation"):
                groups.setdefault((row.role.module, row.role.operator, row.size_bytes), []).append(number)
        return {number: key for key, group in groups.items() if len(group) >= REPEATED for number in group}


def history_of(trace: Trace, device: int, settings: Settings) -> History | None:
    """A device's rows up to the last request that failed; None where none did."""
    rows: list[HistoryRow] = []
    last = 0
    alive: dict[int, tuple[str, Role]] = {}
    for code, where, stream, address, size, _, _, packed in trace.memory:
        if where != device:
            continue
        action = MEMORY_ACTIONS[code]
        if action == "alloc":
            held = Held.of(packed)
            alive[address] = MEMORY_CATEGORIES[held.category], trace.roles[held.role]
        if action in ("alloc", "free_requested", "free_completed", "oom"):
            category, role = alive.get(address, ("", Role()))
            rows.append(HistoryRow(action, address, size, stream, category, role))
        if action == "oom" and size < NO_LIMIT:
            last = len(rows)
    if not last:
        return None
    found = History(device, rows[:last], settings, int(trace.facts.get("world_size") or 1), {"": set()})
    for row in rows:
        if row.action == "alloc" and row.category in ("parameter", "optimizer"):
            found.sizes.setdefault(row.role.module, set()).add(row.size_bytes)
            found.sizes[""].add(row.size_bytes)
    return found


# ---------------------------------------------------------------------------------------------- the remedies


def half_the_batch(history: History) -> Iterator[Event]:
    """Activations, inputs and temporaries are half as large; the request that failed as well."""
    for row in history.rows:
        size = row.size_bytes
        if row.action == "oom":
            yield row.event(size if size in history.sizes[""] else size // 2)
        elif row.action != "alloc":
            yield row.event()
        elif row.category in WITH_BATCH and not history.is_parameters(row):
            yield row.event(max(1, size // 2))
        else:
            yield row.event()


class Layer:
    """One call of a layer under checkpointing: what it would have kept for its backward pass, and when it does not."""

    def __init__(self) -> None:
        self.kept: dict[int, HistoryRow] = {}  # by address, in the order in which it was made
        self.dropped: dict[int, HistoryRow] = {}
        self.restored = False

    def leave(self) -> Iterator[Event]:
        """The forward pass ends: all but the last result goes."""
        for row in list(self.kept.values())[:-1]:
            self.dropped[row.address] = row
            yield Event("free_completed", row.address, row.size_bytes, row.stream)
        self.kept.clear()

    def restore(self) -> Iterator[Event]:
        """The backward pass begins: the layer runs once more."""
        self.restored = True
        for row in self.dropped.values():
            yield row.event()
        self.dropped.clear()


def checkpointed(history: History) -> Iterator[Event]:
    """Layers of the longest row keep their results alone, and run once more when their backward pass begins."""
    row_of_layers = history.layers
    layers: dict[str, Layer] = {}
    running = ""
    for row in history.rows:
        found = LAYER.match(row.role.module)
        name = found[0] if found is not None and found[1] == row_of_layers else ""
        if row.action in ("alloc", "oom") and name != running:
            if running and not layers[running].restored:
                yield from layers[running].leave()
            running = name
        if row.action == "oom" or not name:
            yield row.event()
            continue
        layer = layers.setdefault(name, Layer())
        if row.action == "alloc" and row.category == "activation":
            if layer.restored:  # the next step's
                layer = layers[name] = Layer()
            layer.kept[row.address] = row
        elif layer.dropped and (row.address in layer.dropped or row.action == "alloc"):
            yield from layer.restore()
        elif row.action == "free_completed":
            layer.kept.pop(row.address, None)
        yield row.event()


def eight_bit(history: History) -> Iterator[Event]:
    """The optimizer's states take a byte for each element and four for each block of them."""
    for row in history.rows:
        elements = row.size_bytes // 4
        small = row.category != "optimizer" or row.role.operator not in EIGHT_BIT or elements < QUANTIZED_FROM
        if row.action != "alloc" or small or not STATES.match(row.role.tensor):
            yield row.event()
        else:
            yield row.event(elements + -(-elements // BLOCK) * 4)


def fused(history: History) -> Iterator[Event]:
    """The optimizer makes nothing in its step."""
    left_out: set[int] = set()
    for row in history.rows:
        foreach = row.role.operator.startswith("aten::_foreach") and row.category == "temporary"
        if row.action == "alloc" and foreach:
            left_out.add(row.address)
        if row.address not in left_out or row.action == "oom":
            yield row.event(512 if row.action == "oom" and _in_step(history) else None)
        if row.action == "free_completed":
            left_out.discard(row.address)


def _in_step(history: History) -> bool:
    """Whether the request that failed was one of the optimizer's own."""
    before = [row for row in history.rows if row.action == "alloc"]
    return bool(before) and before[-1].role.operator.startswith("aten::_foreach")


def sharded(history: History) -> Iterator[Event]:
    """Parameters, gradients and states are parts, and two layers' parameters are whole at a time."""
    parts = max(2, history.ranks)
    of_layers: Counter[str] = Counter()
    for row in history.rows:
        if row.action == "alloc" and row.category == "parameter":
            found = LAYER.match(row.role.module)
            of_layers[found[0] if found else ""] += row.size_bytes
    whole = of_layers.pop("", 0)
    largest = 2 * max(of_layers.values(), default=0)
    yield Event("alloc", -1, max(1, whole + largest), 0)
    for row in history.rows:
        if row.action == "alloc" and row.category in SHARDED:
            yield row.event(-(-row.size_bytes // parts))
        else:
            yield row.event()


@dataclass(frozen=True)
class Cure:
    """A remedy: its events, when it can be one, and what it is called."""

    code: str
    events: Callable[[History], Iterator[Event]]
    possible: Callable[[History], bool]
    words: Callable[[History], str]


def one_iteration(history: History) -> Iterator[Event]:
    """Of what many calls of one module leave alive, the last call's alone."""
    repeated = history.repeated
    last: dict[tuple[str, str, int], HistoryRow] = {}
    for number, row in enumerate(history.rows):
        key = repeated.get(number)
        if key is not None:
            if (before := last.get(key)) is not None:
                yield Event("free_completed", before.address, before.size_bytes, before.stream)
            last[key] = row
        yield row.event()


def _has_states(history: History) -> bool:
    return any(row.category == "optimizer" for row in history.rows)


CURES = (
    Cure(
        "one-iteration",
        one_iteration,
        lambda history: bool(history.repeated),
        lambda history: "a graph of one iteration (`backward()` in each, `.detach()` for what is kept)",
    ),
    Cure(
        "checkpointing",
        checkpointed,
        lambda history: bool(history.layers),
        lambda history: f"checkpointing {history.layers}*",
    ),
    Cure("batch", half_the_batch, lambda history: True, lambda history: "half the batch"),
    Cure(
        "sharding",
        sharded,
        lambda history: not history.is_sharded,
        lambda history: f"`fully_shard` on {max(2, history.ranks)} GPUs",
    ),
    Cure("8-bit-optimizer", eight_bit, _has_states, lambda history: "an 8-bit optimizer (bitsandbytes)"),
    Cure("fused-optimizer", fused, _has_states, lambda history: "the optimizer with `fused=True`"),
)


def cures(trace: Trace, device: int, settings: Settings, memory_bytes: int) -> list[Json]:
    """What each remedy saves of what the program needed when a request failed, those that save most first.

    Args:
        trace: a run whose history was kept from the start.
        device: whose memory.
        settings: the allocator's.
        memory_bytes: how much the allocator may take.

    Returns:
        One dict a remedy that saves something: `device`, `remedy` (a code), `words`, `needed_bytes` (without it),
        `saved_bytes` and `fits`. Empty where no request failed.
    """
    history = history_of(trace, device, settings)
    if history is None:
        return []
    before = history.replay(history.own(), None)
    needed = before.peak_allocated_bytes
    found: list[Json] = []
    grows = sum(history.rows[number].size_bytes for number in history.repeated) > GROWS * needed

    def add(code: str, words: str, saved: int, on_device: WhatIfRow) -> None:
        one: Json = {"device": device, "remedy": code, "words": words, "needed_bytes": needed, "saved_bytes": saved}
        cured = code == "one-iteration" or not grows  # what grows gets there with any other remedy, only later
        found.append({**one, "fits": cured and not on_device.out_of_memory})

    if not settings.expandable_segments:
        expandable = parse(EXPANDABLE, base=settings)
        saved = before.peak_reserved_bytes - history.replay(history.own(), None, expandable).peak_reserved_bytes
        if saved >= WORTH * needed:
            words = f"PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}"
            add("expandable-segments", words, saved, history.replay(history.own(), memory_bytes, expandable))
    for cure in CURES:
        if not cure.possible(history):
            continue
        after = history.replay(cure.events(history), None).peak_allocated_bytes
        if needed - after >= WORTH * needed:
            add(cure.code, cure.words(history), needed - after, history.replay(cure.events(history), memory_bytes))
    return sorted(found, key=lambda one: -int(one["saved_bytes"]))[:NAMED]
