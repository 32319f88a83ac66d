"""A program's run on a real GPU beside its emulation: what each printed, took and launched, and where they differ."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher

from windtunnel.analysis.compare import Numbers, measure
from windtunnel.trace.operation import Kind
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Trace

MOST_KERNELS = 2000
"""How many kernels of a run have their order compared; a program repeats its steps."""
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\b(?:nan|inf)\b")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b")
SAME_KERNEL = {
    "cudnn_convolution": "convolution",
    "_conv_depthwise2d": "convolution",
    "cudnn_batch_norm": "native_batch_norm",
    "_batch_norm_with_update": "native_batch_norm",
    "cudnn_batch_norm_backward": "native_batch_norm_backward",
    "batch_norm_backward": "native_batch_norm_backward",
    "zero": "fill",
    "ones_like": "fill",
    "zeros_like": "fill",
    "zeros": "fill",
    "to_copy": "copy",
    "clone": "copy",
    "clamp_min": "relu",
}
"""Operators under which one kernel is launched: on a GPU by the innermost operator, emulated by the outermost."""


@dataclass
class Outcome:
    """One run: its exit code, what it wrote, and what the trace of its first process amounts to."""

    code: int
    printed: str
    errors: str
    numbers: Numbers = field(default_factory=Numbers)
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One comparison: both sides in words, and by how much they differ (None where no number says it)."""

    name: str
    native: str
    emulated: str
    difference: float | None
    same: bool


def outcome(code: int, printed: str, errors: str, trace: Trace | None) -> Outcome:
    """What a run amounts to; a run without a trace did nothing on a GPU."""
    if trace is None:
        return Outcome(code, printed, errors)
    return Outcome(code, printed, errors, measure(trace), kernels_of(trace))


def kernels_of(trace: Trace) -> tuple[str, ...]:
    """The operators that launched the first kernels, in order of their launches, in one notation for both sides."""
    found = sorted((one.issued_ns, one.signature.name) for one in trace if one.kind == Kind.KERNEL)
    return tuple(_operator(name) for _, name in found[:MOST_KERNELS])


def _operator(name: str) -> str:
    bare = name.rsplit("::", 1)[-1].split(".", 1)[0].strip("_")
    return SAME_KERNEL.get(bare, bare)


def compare(native: Outcome, emulated: Outcome, tolerance: float) -> list[Row]:
    """All comparisons. A difference is relative to the native side, and counts where it is more than `tolerance`."""
    rows = [_words("exit code", str(native.code), str(emulated.code))]
    rows.append(_words("error", error_of(native.errors), error_of(emulated.errors)))
    rows.append(_values(native.printed, emulated.printed, tolerance))
    for words, name in (
        ("peak allocated, bytes", "peak_allocated_bytes"),
        ("peak reserved, bytes", "peak_reserved_bytes"),
        ("kernels", "kernels"),
        ("time in kernels, ns", "kernel_ns"),
    ):
        rows.append(_number(words, getattr(native.numbers, name), getattr(emulated.numbers, name), tolerance))
    steps = (native.numbers.step_ns, emulated.numbers.step_ns)
    if None not in steps:
        rows.append(_number("median step, ns", *steps, tolerance))
    else:
        rows.append(_number("time, ns", native.numbers.duration_ns, emulated.numbers.duration_ns, tolerance))
    rows.append(_order(native.kernels, emulated.kernels, tolerance))
    return rows


def to_json(rows: list[Row], tolerance: float) -> Json:
    """Plain data for `--json`."""
    return {"same": all(row.same for row in rows), "tolerance": tolerance, "rows": [asdict(row) for row in rows]}


def error_of(text: str) -> str:
    """The last line of a run's errors that names an exception; "none" without one."""
    lines = [line for line in text.splitlines() if _EXCEPTION.match(line)]
    return lines[-1].strip() if lines else "none"


def _words(name: str, native: str, emulated: str) -> Row:
    same = native == emulated
    return Row(name, native, emulated, None, same)


def _number(name: str, native: float | None, emulated: float | None, tolerance: float) -> Row:
    difference = _relative(float(native or 0), float(emulated or 0))
    return Row(name, f"{native or 0:,}", f"{emulated or 0:,}", _finite(difference), difference <= tolerance)


def _relative(native: float, emulated: float) -> float:
    if native == emulated or (math.isnan(native) and math.isnan(emulated)):
        return 0.0
    found = abs(emulated - native) / abs(native) if native else math.inf
    return found if math.isfinite(found) else math.inf


def _finite(difference: float) -> float | None:
    """A difference as a report has it: relative to nothing, or to what is no number, there is none."""
    return difference if math.isfinite(difference) else None


def _values(native: str, emulated: str, tolerance: float) -> Row:
    """The numbers that both printed, one by one; the words between them must be the same."""
    texts = [_NUMBER.sub("#", text).split() for text in (native, emulated)]
    if texts[0] != texts[1]:
        line = next(_different_lines(native, emulated), ("", ""))
        return Row("printed", line[0] or "(nothing)", line[1] or "(nothing)", None, False)
    pairs = list(zip(_numbers(native), _numbers(emulated), strict=True))
    worst = max((_relative(*pair) for pair in pairs), default=0.0)
    shown = next((pair for pair in pairs if _relative(*pair) == worst), None)
    one, other = (f"{value:.6g}" for value in shown) if shown and worst else [f"{len(pairs)} numbers"] * 2
    return Row("printed", one, other, _finite(worst), worst <= tolerance)


def _numbers(text: str) -> Iterator[float]:
    return (float(match) for match in _NUMBER.findall(text))


def _different_lines(native: str, emulated: str) -> Iterator[tuple[str, str]]:
    first, second = native.splitlines(), emulated.splitlines()
    length = max(len(first), len(second))
    for one, other in zip(first + [""] * (length - len(first)), second + [""] * (length - len(second)), strict=True):
        if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
            yield one, other


def _order(native: tuple[str, ...], emulated: tuple[str, ...], tolerance: float) -> Row:
    """How much of the two sequences of kernels is not the same, and the first place where they part."""
    if native == emulated:
        return Row("order of kernels", f"{len(native)} alike", f"{len(emulated)} alike", 0.0, True)
    alike = SequenceMatcher(None, native, emulated, autojunk=False).ratio()
    place = next(
        (at for at, pair in enumerate(zip(native, emulated, strict=False)) if pair[0] != pair[1]),
        min(len(native), len(emulated)),
    )
    one, other = (f"{place + 1}: {side[place] if place < len(side) else 'no kernel'}" for side in (native, emulated))
    return Row("order of kernels", one, other, 1.0 - alike, 1.0 - alike <= tolerance)
