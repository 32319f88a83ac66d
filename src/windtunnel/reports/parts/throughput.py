"""How many samples a step takes, where the trace says so, and what says it; nothing is guessed without being named."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from statistics import median

import numpy as np

from windtunnel.trace.blocks import blocks
from windtunnel.trace.operation import Kind, Site
from windtunnel.trace.trace import Trace

SKIPPED_STEPS = 3  # as in _time.py: from so many steps on, the first is left out
HTOD = "Memcpy HtoD"
TOKEN_BYTES = 8  # of int64, which torch.nn.Embedding takes; input of two dimensions in float64 is rare


@dataclass(frozen=True)
class Samples:
    """`number` of samples a step and process. `loader` says that a DataLoader at `site` delivered them.

    Otherwise they are the first dimension of what the line `site` copies to a device, on which all such copies of the
    steps agree.
    """

    number: float
    site: Site
    loader: bool

    def words(self, step_ns: int | None, line: str, processes: int) -> str:
        """Throughput with what it is derived from; empty without a step. `line` is the site as the report writes it."""
        if not step_ns:
            return ""
        source = f"the DataLoader at {line}" if self.loader else f"the first dimension of what {line} copies"
        each = f" in each of {processes} processes" if processes > 1 else ""
        return f"{self.number * 1e9 / step_ns:,.0f} samples a second{each} ({self.number:,.4g} a step, by {source})"


def measure(trace: Trace) -> Samples | None:
    """The samples of a steady step; None where neither a loader nor the copies of the inputs say how many."""
    delivered: list[int] = []
    lines: Counter[int] = Counter()
    batch = 0
    for block in blocks(trace):
        which = (block.kind == Kind.BATCH) | (block.kind == Kind.STEP)
        for kind, site, value in zip(
            *(one[which].tolist() for one in (block.kind, block.site, block.value)), strict=True
        ):
            if kind == Kind.BATCH:
                batch += value
                lines[site] += 1
            else:
                delivered.append(batch)
                batch = 0
    number = median(delivered[len(delivered) >= SKIPPED_STEPS :]) if delivered else 0
    if number:
        return Samples(number, trace.sites[lines.most_common(1)[0][0]], True)
    return _of_copies(trace)


def tokens(trace: Trace) -> float | None:
    """The tokens of a steady step: the elements of int64 tensors of two dimensions that one line copies to a device.

    A flat tensor counts as the indices that an embedding takes of it: all, or half where the labels lie behind them.
    Where several lines copy such tensors, those of the line with most; None where none does.
    """
    inputs, steps = _inputs(trace)
    looked_up = _looked_up(trace)
    counts: Counter[int] = Counter()
    for (site, shape, item_bytes), (times, _) in inputs.items():
        if item_bytes == TOKEN_BYTES and (number := prod(shape) if len(shape) == 2 else _flat(shape, looked_up)):
            counts[site] += number * times
    return max(counts.values()) / steps if counts and steps else None


def _looked_up(trace: Trace) -> set[int]:
    """How many indices of two dimensions the program's embeddings take at once."""
    found = (one.shapes[1] for one in trace.signatures if one.name == "aten::embedding" and len(one.shapes) > 1)
    return {prod(shape) for shape in found if len(shape) == 2}


def _flat(shape: tuple[int, ...], looked_up: set[int]) -> int:
    """The tokens in a tensor of one dimension; 0 if it has none."""
    if len(shape) != 1:
        return 0
    return max((number for number in looked_up if shape[0] in (number, 2 * number)), default=0)


def _of_copies(trace: Trace) -> Samples | None:
    """The samples by the copies to devices: their first dimension, where all of them agree on it."""
    inputs, steps = _inputs(trace)
    if steps < 1 or len({shape[0] for _, shape, _ in inputs}) != 1:
        return None
    (site, shape, item_bytes), (times, _) = max(inputs.items(), key=lambda item: item[1][1])
    if shape[0] < 2 or times < steps or (item_bytes == TOKEN_BYTES and _flat(shape, _looked_up(trace))):
        return None
    return Samples(shape[0] * times / steps, trace.sites[site], False)


def _inputs(trace: Trace) -> tuple[dict[tuple[int, tuple[int, ...], int], tuple[int, int]], int]:
    """What the steady steps copied to devices by (line, shape, bytes of an element): times and bytes; the steps.

    Tensors of one shape that a line copies with no kernel between them (inputs and labels) are of one batch.
    """
    if not any(signature.name.startswith(HTOD) for signature in trace.signatures):
        return {}, 0
    ends = trace.rows.column(0).count(Kind.STEP)
    skip = ends >= SKIPPED_STEPS
    inputs: dict[tuple[int, tuple[int, ...], int], tuple[int, int]] = {}
    fresh: set[tuple[int, tuple[int, ...], int]] = set()
    steps = before = kernels = 0
    for block in blocks(trace):
        so_far = kernels + np.cumsum(block.kind == Kind.KERNEL)
        which = (block.kind == Kind.COPY) | (block.kind == Kind.STEP)
        columns = block.kind, block.signature, block.site, block.value, so_far
        for kind, number, site, size, kernels in zip(*(one[which].tolist() for one in columns), strict=True):
            if kernels > before:
                fresh.clear()
                before = kernels
            if kind == Kind.STEP:
                steps += 1
                if steps == ends:
                    return inputs, ends - skip
                if skip and steps == 1:
                    inputs.clear()
                continue
            signature = trace.signatures[number]
            if signature.name.startswith(HTOD) and signature.shapes and signature.shapes[0]:
                key = site, signature.shapes[0], size // max(1, prod(signature.shapes[0]))
                times, total = inputs.get(key, (0, 0))
                inputs[key] = times + (key not in fresh), total + size
                fresh.add(key)
        kernels = int(so_far[-1])
    return inputs, ends - skip
