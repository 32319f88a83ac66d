"""Record what published models launch in a step, and what the kernels of `make hardware` are to the cost model.

    python -m tools.corpus.record images [--most 130]    # needs timm: in make accuracy-images's environment
    python -m tools.corpus.record transformers           # FP32 transformers
    python -m tools.corpus.record throughputs            # the training programs of make accuracy
    python -m tools.corpus.record languages              # llm-foundry's trainings, one GPU's share
    python -m tools.corpus.record compiled [--most 60] [--minutes 15]   # timm, both ways
    python -m tools.corpus.record held-out [--most 30] [--minutes 15]   # the same of rows that judge alone
    python -m tools.corpus.record kernels --result tests/conformance/hardware/2026-11-26-H100-80GB-HBM3.json

The recordings are made once and kept (`*_steps.json.gz`). Those of compiled models take half a minute each: a recording
that ends early, or at `--minutes`, leaves a file that ends in `.part`, with which the same command goes on. `kernels`
needs an environment with the result's PyTorch: each call of `tools/hardware/kernels/` runs once without data on the
emulated GPU, and its signatures are written beside the microseconds that the result has for it
(`kernels_GENERATION_GPU.json.gz`, which `calibrate_neighbours.py` fits).
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.corpus.recordings import work
from tools.corpus.tables import FOLDER
from windtunnel import emulate, gpus

if TYPE_CHECKING:
    from tools.corpus.steps import Step

CHOICES = ("transformers", "images", "throughputs", "languages", "compiled", "held-out", "kernels")


def recording(row: Any, ms: float, step: Step, group: str = "") -> dict[str, Any]:
    """A published row and its step, as JSON has it; of one of two ways of running it, with the name of the group."""
    signatures, order = work(step.trace, step.begin, step.end)
    if group:
        signatures = [one._replace(name=named(one.name)) for one in signatures]
    major, _, minor = row.cuda.partition(".")
    return {"model": row.model, "gpu": row.gpu, "group": group or row.group, "cuda": (int(major), int(minor)), "ms": ms,
            "signatures": signatures, "order": order}  # fmt: skip


def named(name: str) -> str:
    """A generated kernel's name by its kind alone: what it fuses, and its number, decide no price."""
    return name[: len("triton_poi")] if name.startswith("triton_") else name


def transformers() -> Iterator[dict[str, Any]]:
    """NeuSight's whole models."""
    from tools.corpus import transformers as of

    for row in of.rows():
        step = of.run(row)
        yield recording(row, row.ms, step)


def throughputs() -> Iterator[dict[str, Any]]:
    """The training programs of `training`."""
    from tools.corpus import training as of

    for row in of.rows():
        run = of.run(row.model, row.gpu, row.kind, row.batch, row.cuda)
        yield recording(row, 1000.0 * run.samples / row.published, run.step)


def languages() -> Iterator[dict[str, Any]]:
    """llm-foundry's trainings."""
    from tools.corpus import language_models as of

    for row in of.rows():
        yield recording(row, row.ms, of.run(row))


def images(most: int) -> Iterator[dict[str, Any]]:
    """timm's results: all of the RTX 3090, and as many others as asked for, chosen by a seed."""
    from tools.corpus import images as of

    timm = of.import_timm()
    rows = of.in_order()
    for row in rows[: most + sum(row.gpu == "RTX3090" for row in rows)]:
        try:
            step = of.run(timm, row)
        except RuntimeError as error:  # it does not fit, or needs data
            print(f"{row.model:32} {row.group}: left out, {of.why(error)}")
            continue
        yield recording(row, row.ms, step)


def compiled(held_out: bool, most: int, minutes: float) -> Iterator[dict[str, Any]]:
    """timm's compiled results, chosen by a seed: for each row the eager and the compiled step of the model.

    Raises:
        SystemExit: the minutes are over; the rows so far are in a file of their own.
    """
    from tools.corpus import compiled as of
    from tools.corpus.images import import_timm

    timm = import_timm()
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
        eager, other = of.run(timm, row)
    except RuntimeError as error:  # it does not fit, or needs data
        print(f"{row.model:32} left out, {of.why(error)}")
        return []
    return [
        recording(row, 1000.0 * row.batch / images_per_s, step, group)
        for group, step, images_per_s in (("eager", eager, row.eager), ("compiled", other, row.compiled))
    ]


def kernels(result: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each call that a result of `make hardware` has a time of, after its head."""
    import torch

    from tools.hardware import kernels as of

    yield {"gpu": gpus.find(result["emulated_as"]).key, "torch": result["versions"]["torch"],
           "driver": result["driver"], "date": result["date"]}  # fmt: skip
    native = result["stages"]["families"]["native"]
    for family, table in of.families().items():
        with emulate(result["emulated_as"], no_data=True, assume=1) as session:
            for name, call in table(False):
                if (us := native.get(family, {}).get(name)) is None:
                    continue
                call()  # what only the first call does (workspaces, plans) is not part of it
                torch.cuda.synchronize()
                begin = len(session.trace)
                call()
                torch.cuda.synchronize()
                signatures, order = work(session.trace, begin)
                yield {"family": family, "name": name, "us": us, "signatures": signatures, "order": order}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=CHOICES)
    parser.add_argument("--most", type=int, default=118, help="rows of GPUs with hundreds of them")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of compiled models, end after so many")
    parser.add_argument("--result", type=Path, help="of kernels, the result of make hardware")
    options = parser.parse_args()
    most, minutes = options.most, options.minutes
    if options.what == "kernels":
        if options.result is None:
            parser.error("kernels needs --result FILE, a result of make hardware")
        result = json.loads(options.result.read_text("utf-8"))
        lines = [json.dumps(one) for one in kernels(result)]
        gpu = gpus.find(result["emulated_as"])
        path = FOLDER / f"kernels_{gpu.generation}_{gpu.key.lower()}.json.gz"
        path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
        print(f"wrote {path}: {len(lines) - 1} calls")
        return
    found: Iterable[dict[str, Any]] = {
        "transformers": transformers,
        "throughputs": throughputs,
        "languages": languages,
        "images": lambda: images(most),
        "compiled": lambda: compiled(False, most, minutes),
        "held-out": lambda: compiled(True, most, minutes),
    }[options.what]()
    lines = []
    for row in found:
        lines.append(json.dumps(row, separators=(",", ":")) + "\n")
        print(f"{row['model']:32} {row['group']:24} {len(row['order'])} kernels and waits", flush=True)
    out = FOLDER / f"{options.what.removesuffix('s').replace('-', '_')}_steps.json.gz"
    with gzip.GzipFile(out, "wb", 9, mtime=0) as file:
        file.write("".join(lines).encode())


if __name__ == "__main__":
    main()
