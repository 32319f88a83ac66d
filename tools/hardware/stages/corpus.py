"""The corpus of findings: do the races give wrong values, and do the error texts agree?

Each program of `tests/checks/pages` runs once with `CUDA_LAUNCH_BLOCKING=1`, which orders everything, and several times
as it is. A value that is not the ordered run's comes from a race.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from typing import Any

from tools.hardware.context import Context, Items, Row, both, failed, shown
from tools.hardware.worker import in_a_process

ORDER = 20
TITLE = "The corpus of findings"
LIMIT_S = 600
ITEM_S = 240  # all runs of one page
RUN_S = 60
OPTIONS: tuple[str, ...] = ()

RACES = frozenset({"unsynchronized-access", "freed-in-use", "stale-read", "early-overwrite"})
TIMES = 3  # that a program runs as it is, on a real GPU
TOLERANCE = 1e-3  # relative: sums in another order differ by less, values of a race by more
SEED = 20
LARGEST = 1 << 28  # bytes of a tensor that is summed, on the host and in float64


def items(context: Context) -> Items:
    """A page a program; those of several ranks are left out, and those that name more GPUs than there are.

    Pages that name none have two by default, which few use: with one GPU, those few end with an invalid device ordinal.
    """
    from tests.checks import corpus

    times = TIMES if context.real else 1
    found: Items = {}
    for page in corpus.pages():
        codes = sorted(code for code, _, alarm in page.expected if alarm)
        if page.ranks == 1 and (page.gpus == corpus.GPUS or _gpus(page.gpus) <= context.gpus):
            found[page.path.stem] = lambda page=page, codes=codes: observe(page, codes, times)
    return found


def _gpus(spec: str) -> int:
    return sum(int(part.split("x")[0]) if part[0].isdigit() and "x" in part else 1 for part in spec.split(","))


def observe(page: Any, codes: list[str], times: int) -> dict[str, Any]:
    """One ordered run and `times` free ones: the error if there was one, and how many free runs had other values."""
    free = [in_a_process(lambda: _values(page, False), RUN_S) for _ in range(times)]
    errors = sorted({run["error"] for run in free if failed(run)})
    # An emulated run is the same each time; what it must agree with is itself.
    ordered = in_a_process(lambda: _values(page, True), RUN_S) if times > 1 else free[0]
    right = ordered.get("values", {})
    values = [run["values"] for run in free if not failed(run)]
    wrong = [sorted(n for n in run if not _same(run[n], right.get(n))) for run in values]
    names = sorted({name for run in wrong for name in run})
    return {
        "codes": codes,
        "raised": errors[0] if errors else "",
        "raised_when_ordered": failed(ordered),
        "runs": times,
        "wrong_runs": 0 if failed(ordered) else sum(1 for run in wrong if run),
        "wrong_values": [] if failed(ordered) else names[:8],
    }


def _values(page: Any, ordered: bool) -> dict[str, Any]:
    """What a program's own variables hold at its end: of tensors the shape and two sums, of large ones the shape."""
    if ordered:
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # read at CUDA's first use, which is yet to come in this process
    import torch

    torch.manual_seed(SEED)
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(page.path)}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(page.program, str(page.path), "exec"), names)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    found = {}
    for name, value in sorted(names.items()):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and not name.startswith("_"):
            if value.nbytes > LARGEST:
                found[name] = [*value.shape]
                continue
            flat = value.detach().to("cpu").to(torch.float64).flatten()
            sums = [float(flat.sum()), float(flat.abs().sum())]
            found[name] = [*value.shape, *(total if math.isfinite(total) else str(total) for total in sums)]
    return {"values": found}


def _same(one: Any, other: Any) -> bool:
    if other is None or len(one) != len(other):
        return False
    pairs = list(zip(one, other, strict=True))
    scale = abs(one[-1]) if isinstance(one[-1], float) else 1.0
    return all(
        a == b or (isinstance(a, float) and isinstance(b, float) and abs(a - b) <= TOLERANCE * max(scale, 1e-6))
        for a, b in pairs
    )


def rows(native: dict[str, Any], emulated: dict[str, Any]) -> list[Row]:
    """An error with another first line; a program without a race that was wrong; and for races, how often they were."""
    found = []
    for name, real, ours in both(native, emulated):
        if failed(real) or failed(ours):
            found.append(Row(name, shown(real), shown(ours), failed(real) != failed(ours)))
            continue
        if real["raised"] != ours["raised"]:
            found.append(Row(name, real["raised"] or "no error", ours["raised"] or "no error", True))
        races = sorted(RACES & set(real["codes"]))
        counted = f"{real['wrong_runs']} of {real['runs']} runs wrong"
        if races or real["wrong_runs"]:
            found.append(Row(name, counted, ", ".join(races) or "no race found", not races))
    return found
