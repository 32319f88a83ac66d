"""Record the kernels that published models launch in a step, so that fits price them again without running the models.

    python tools/calibration/record_steps.py images [--most 130]    # needs timm: in make accuracy-images's environment
    python tools/calibration/record_steps.py transformers           # FP32 transformers
    python tools/calibration/record_steps.py throughputs            # the training programs of make accuracy
    python tools/calibration/record_steps.py compiled [--most 60] [--minutes 15]   # timm, both ways
    python tools/calibration/record_steps.py held-out [--most 30] [--minutes 15]   # the same of rows that judge alone

What a step launches depends on the model, the batch and the layout and not on a constant of the cost model, so the
recordings (`image_steps.json.gz`, `transformer_steps.json.gz`, `throughput_steps.json.gz`, `compiled_steps.json.gz`,
`held_out_steps.json.gz`) are made once and kept. Each is a published row, the signatures of its step's kernels and
their order, in which -1 stands for a wait of the host. Those of compiled models take half a minute each: a recording
that ends early, or at `--minutes`, leaves a file that ends in `.part`, with which the same command goes on.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools" / "calibration")]

from windtunnel.cost import CostModel  # noqa: E402
from windtunnel.trace.operation import Kind, Signature  # noqa: E402
from windtunnel.trace.trace import Trace  # noqa: E402

FOLDER = Path(__file__).resolve().parent
IMAGES = "fitted: timm's published results, AMP, torch 1.12 to 2.9 (image_models.csv, compiled_models.csv)"
"""The source of what was fitted on the recorded image models."""
WAIT = -1
SEED = 18
HELD_OUT_SEED = 20261125
"""Draws the compiled models that nothing is fitted on."""


class Recording(NamedTuple):
    """One published step: where it was measured, its milliseconds there, and what it launches in order."""

    model: str
    gpu: str
    group: str
    cuda: tuple[int, int]
    ms: float
    signatures: tuple[Signature, ...]
    order: tuple[int, ...]

    def step_ns(self, cost: CostModel, steps: int = 2) -> float:
        """The length of the last of so many steps on one stream, where the host launches ahead or the device waits."""
        lengths = [cost.kernel(one).duration_ns for one in self.signatures]
        calls = [cost.dispatch_ns(one.name) for one in self.signatures]
        host = ready = before = 0
        for _ in range(steps):
            before = max(host, ready)
            for index in self.order:
                if index == WAIT:
                    host = max(host + cost.synchronize_ns, ready)
                    continue
                host += calls[index]
                ready = max(ready, host + cost.launch_ns) + lengths[index]
        return max(host, ready) - before


def read(name: str) -> list[Recording]:
    """The recordings of a file of this folder."""
    found = []
    with gzip.open(FOLDER / name, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            signatures = tuple(signature(one) for one in row["signatures"])
            order = tuple(row["order"])
            cuda = (int(row["cuda"][0]), int(row["cuda"][1]))
            found.append(Recording(row["model"], row["gpu"], row["group"], cuda, row["ms"], signatures, order))
    return found


def signature(of: list[Any]) -> Signature:
    """A signature from what JSON holds of it."""
    name, shapes, dtypes, *numbers, detail = of
    pairs = tuple((key, value) for key, value in detail)
    return Signature(name, tuple(map(tuple, shapes)), tuple(dtypes), *numbers, pairs)


def work(trace: Trace, begin: int, end: int | None = None) -> tuple[list[Signature], list[int]]:
    """The signatures of the trace's kernels from row `begin` to `end`, each once, and their order."""
    numbers: dict[Signature, int] = {}
    order = []
    for row in list(trace.rows)[begin:end]:
        if row[0] == Kind.KERNEL:
            order.append(numbers.setdefault(trace.signatures[row[2]], len(numbers)))
        elif row[0] == Kind.SYNCHRONIZE:
            order.append(WAIT)
    return list(numbers), order


def transformers() -> Iterator[dict[str, Any]]:
    """NeuSight's whole models."""
    import reference_transformers as of

    for row in of.rows():
        trace, begin = of.run(row)[2:]
        signatures, order = work(trace, begin)
        yield {"model": row.model, "gpu": row.gpu, "group": f"{row.gpu} {row.mode}", "cuda": (12, 1), "ms": row.ms,
               "signatures": signatures, "order": order}  # fmt: skip


def throughputs() -> Iterator[dict[str, Any]]:
    """The training programs of `reference_steps`."""
    import reference_steps as of

    for row in of.rows():
        run = of.run(row["model"], row["key"], row["kind"], int(row["batch"]), row["cuda"])
        numbers = {one: index for index, one in enumerate(dict.fromkeys(filter(None, run.work)))}
        major, _, minor = row["cuda"].partition(".")
        order = [WAIT if one is None else numbers[one] for one in run.work]
        yield {"model": row["model"], "gpu": row["key"], "group": f"{row['kind']} {row['batch']}",
               "cuda": (int(major), int(minor)), "ms": 1000.0 * run.samples / float(row["value"]),
               "signatures": list(numbers), "order": order}  # fmt: skip


def images(most: int) -> Iterator[dict[str, Any]]:
    """timm's results: all of the RTX 3090, and as many others as asked for, chosen by a seed."""
    import reference_images as of

    timm = of.import_timm()
    rows = of.in_order()
    for row in rows[: most + sum(row.gpu == "RTX3090" for row in rows)]:
        try:
            trace, begin = of.run(timm, row)[2:]
        except RuntimeError as error:  # it does not fit, or needs data
            why = str(error).partition(". GPU")[0].splitlines()[0]
            print(f"{row.model:32} {row.gpu} {row.mode} {row.layout}: left out, {why}")
            continue
        signatures, order = work(trace, begin)
        major, _, minor = row.cuda.partition(".")
        yield {"model": row.model, "gpu": row.gpu, "group": f"{row.gpu} {row.mode} {row.layout}",
               "cuda": (int(major), int(minor)), "ms": 1000.0 * row.batch / row.throughput,
               "signatures": signatures, "order": order}  # fmt: skip


def compiled(held_out: bool, most: int, minutes: float) -> Iterator[dict[str, Any]]:
    """timm's compiled results, chosen by a seed: for each row the eager and the compiled step of the model.

    Raises:
        SystemExit: the minutes are over; the rows so far are in a file of their own.
    """
    import reference_compiled as of
    import reference_images

    timm = reference_images.import_timm()
    part = FOLDER / ("held_out_steps.part" if held_out else "compiled_steps.part")
    done = [json.loads(line) for line in part.read_text().splitlines()] if part.exists() else []
    end = time.monotonic() + 60.0 * minutes
    for number, row in enumerate(of.held_out(most) if held_out else of.chosen(most)):
        if number == len(done):
            if time.monotonic() > end:
                raise SystemExit(f"{number} of {most} rows are recorded: the same command goes on")
            done.append(both_ways(of, timm, row))
            with part.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[number], separators=(",", ":")) + "\n")
        yield from done[number]
    part.unlink(missing_ok=True)


def both_ways(of: Any, timm: Any, row: Any) -> list[dict[str, Any]]:
    """The recordings of one row: of the eager and the compiled step, or none where the model does not fit."""
    try:
        run = of.run(timm, row)
    except RuntimeError as error:  # it does not fit, or needs data
        print(f"{row.model:32} left out, {str(error).partition('. GPU')[0].splitlines()[0]}")
        return []
    major, _, minor = row.cuda.partition(".")
    found = []
    for group, step, images_per_s in (("eager", run.eager, row.eager), ("compiled", run.compiled, row.compiled)):
        signatures, order = work(run.trace, step.begin, step.end)
        signatures = [one._replace(name=named(one.name)) for one in signatures]
        found.append({"model": row.model, "gpu": of.GPU, "group": group, "cuda": (int(major), int(minor)),
                      "ms": 1000.0 * row.batch / images_per_s, "signatures": signatures, "order": order})  # fmt: skip
    return found


def named(name: str) -> str:
    """A generated kernel's name by its kind alone: what it fuses, and its number, decide no price."""
    return name[: len("triton_poi")] if name.startswith("triton_") else name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("transformers", "images", "throughputs", "compiled", "held-out"))
    parser.add_argument("--most", type=int, default=118, help="rows of GPUs with hundreds of them")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of compiled models, end after so many")
    options = parser.parse_args()
    most, minutes = options.most, options.minutes
    found = {
        "transformers": transformers,
        "throughputs": throughputs,
        "images": lambda: images(most),
        "compiled": lambda: compiled(False, most, minutes),
        "held-out": lambda: compiled(True, most, minutes),
    }[options.what]()
    out = FOLDER / f"{options.what.removesuffix('s').replace('-', '_')}_steps.json.gz"
    lines = []
    for row in found:
        lines.append(json.dumps(row, separators=(",", ":")) + "\n")
        print(f"{row['model']:32} {row['group']:24} {len(row['order'])} kernels and waits", flush=True)
    with gzip.GzipFile(out, "wb", 9, mtime=0) as file:
        file.write("".join(lines).encode())


if __name__ == "__main__":
    main()
