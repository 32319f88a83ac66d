"""The command: runs the stages, writes the result, prints where the GPU and the emulation differ."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tools import ROOT
from tools.hardware import stages
from tools.hardware.context import Row, unfinished
from tools.hardware.sides import EMULATED, NATIVE, Run

RESULTS = ROOT / "tests" / "conformance" / "hardware"
MINUTES = 40
HOW = {NATIVE: "natively", EMULATED: "emulated"}
SHOWN = 30  # rows of a stage in the printed table
LARGEST_BYTES = 1 << 20
NEEDED = {
    "torch": "everything",
    "psutil": "emulation",
    "pynvml": "emulation",
    "click": "emulation",
    "rich": "emulation",
}
NEEDED |= {"platformdirs": "emulation", "pytest": "the documents' stage"}


def main(arguments: list[str] | None = None) -> int:
    """Run it; 0 when it ran to its end, whatever it found, 2 where it cannot run."""
    given = _parser().parse_args(arguments)
    if given.compare:
        return _show_again(Path(given.compare))
    missing = {name: what for name, what in NEEDED.items() if find_spec(name) is None}
    if missing:
        print("not installed: " + ", ".join(f"{name} (for {what})" for name, what in missing.items()), file=sys.stderr)
    if "torch" in missing:
        return 2
    chosen = _chosen(given.stages)
    ends_at = time.monotonic() + 60 * given.minutes
    run = Run(Path(given.folder).resolve(), ends_at, given.stand_in, given.short, tuple(given.items))
    if given.fresh and run.folder.exists():
        shutil.rmtree(run.folder)
    run.folder.mkdir(parents=True, exist_ok=True)
    first = Run(run.folder, ends_at, given.stand_in)
    machine = first.known("machine", NATIVE) if given.side == EMULATED else first.side("machine", NATIVE)
    if given.side == EMULATED and not machine:
        print(f"make hardware: {run.folder} has no native results: run --side native on a GPU first", file=sys.stderr)
        return 2
    problem = _problem(machine)
    if problem:
        print(f"make hardware: {problem}", file=sys.stderr)
        return 2
    _describe(run, machine, given.model)
    can_emulate = not any(what == "emulation" for what in missing.values())
    asked = [given.side] if given.side else [NATIVE, EMULATED] if can_emulate else [NATIVE]
    result = _head(run, machine, missing)
    path = RESULTS / f"{result['date']}-{_slug(result)}.json" if not given.output else Path(given.output)
    run.waiting = [name for name in chosen for _ in asked]
    for name in chosen:
        print(f"{stages.load(name).TITLE} ...", file=sys.stderr, flush=True)
        native = machine if name == "machine" else _one(run, name, NATIVE, asked)
        emulated = _one(run, name, EMULATED, asked)
        seconds = {side: run.seconds.get(f"{name}.{side}", 0.0) for side in (NATIVE, EMULATED)}
        result["stages"][name] = {"seconds": seconds, NATIVE: native, EMULATED: emulated}
        _write(path, result)  # after each stage, so that none loses the others
    show(result)
    print(f"\nwrote {path}; logs, snapshots and profiles are in {run.folder}")
    return 0


def _one(run: Run, name: str, side: str, asked: list[str]) -> dict[str, Any]:
    """The results of a side: run where it was asked for, else what there is of it."""
    return run.side(name, side) if side in asked else run.known(name, side)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make hardware", description=__doc__)
    parser.add_argument(
        "--stages", metavar="A,B", default="", help=f"of {', '.join(stages.names())}; all when left out"
    )
    parser.add_argument("--items", nargs="*", default=[], metavar="NAME", help="of the stages; all when left out")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="how long it may take  [default: 40]")
    parser.add_argument("--model", default="", help="the GPU to emulate, when the catalogue lacks the real one's name")
    parser.add_argument("--stand-in", default="", metavar="MODEL", help="no GPU here: the emulation of MODEL plays it")
    parser.add_argument(
        "--short", action="store_true", help="small sizes and few items: a test of the stages themselves"
    )
    parser.add_argument("--fresh", action="store_true", help="run again what an earlier run has done")
    parser.add_argument("--folder", default=str(ROOT / "runs" / "hardware"), help="for logs and large files")
    parser.add_argument(
        "--output", default="", metavar="FILE", help="the result  [default: tests/conformance/hardware/]"
    )
    parser.add_argument(
        "--side",
        choices=tuple(HOW),
        help="run one side alone; the other's results, from another machine with the same torch, are read in --folder",
    )
    parser.add_argument("--compare", default="", metavar="FILE", help="print the differences in a result, run nothing")
    return parser


def _chosen(text: str) -> list[str]:
    wanted = [name for name in text.split(",") if name]
    unknown = sorted(set(wanted) - set(stages.names()))
    if unknown:
        raise SystemExit(f"make hardware: there is no stage {unknown[0]!r}; there are {', '.join(stages.names())}")
    return [name for name in stages.names() if not wanted or name in wanted]


def _problem(machine: dict[str, Any]) -> str:
    """Why this machine cannot run it, in words; "" when it can."""
    device = machine.get("device", {"error": "the first process did not get so far; see log.txt"})
    if "error" not in device:
        return ""
    torch = machine.get("versions", {}).get("torch", "")
    return (
        f"there is no GPU here that torch {torch} can use ({device['error']}): name a Python whose torch can, "
        "HARDWARE_PYTHON=/path/to/python, or let the emulation play the GPU, ARGS='--stand-in A100'"
    )


def _describe(run: Run, machine: dict[str, Any], model: str) -> None:
    """What to emulate: the catalogue's GPU of that name and nearest size, or the one most like it."""
    device = machine["device"]
    run.gpus = min(2, device["count"])
    cuda = str(machine["versions"].get("cuda") or "")
    if not run.stand_in and re.fullmatch(r"\d+\.\d+", cuda):
        run.cuda_version = cuda
    run.model = model or run.stand_in or _nearest(device)


def _nearest(device: dict[str, Any]) -> str:
    from windtunnel import gpus

    known = [gpus.find(name) for name in gpus.names()]
    named = [gpu for gpu in known if gpu.name == device["name"]]
    if not named:
        print(f"the catalogue has no {device['name']!r}: the most alike is emulated; --model names another")
    capability = device["compute_capability"]

    def unlike(gpu: Any) -> tuple[float, float]:
        major, minor = gpu.compute_capability
        return (
            abs(10 * (major - capability[0]) + minor - capability[1]),
            abs(gpu.memory_bytes - device["total_memory"]),
        )

    return str(min(named or known, key=unlike).key)


def _head(run: Run, machine: dict[str, Any], missing: dict[str, str]) -> dict[str, Any]:
    return {
        "schema": 1,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "gpu": machine["device"]["name"],
        "gpus": run.gpus,
        "stand_in": run.stand_in,
        "emulated_as": run.model,
        "driver": machine.get("driver", ""),
        "versions": machine["versions"],
        "commit": _commit(),
        "missing": missing,
        "stages": {},
    }


def _commit() -> str:
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    if shutil.which("git") is None:
        return ""
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def _slug(result: dict[str, Any]) -> str:
    name = f"stand-in-{result['stand_in']}" if result["stand_in"] else result["gpu"]
    return re.sub(r"[^A-Za-z0-9]+", "-", name.removeprefix("NVIDIA ")).strip("-")


def _write(path: Path, result: dict[str, Any]) -> None:
    text = json.dumps(result, indent=1, sort_keys=True)
    if len(text) > LARGEST_BYTES:
        text = json.dumps(result, separators=(",", ":"), sort_keys=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text + "\n", encoding="utf-8")
    os.replace(part, path)


# ---------------------------------------------------------------------- the table


def differences(result: dict[str, Any]) -> dict[str, list[Row]]:
    """The compared rows of each stage of a result."""
    found = result["stages"]
    return {name: stages.load(name).rows(found[name][NATIVE], found[name][EMULATED]) for name in found}


def show(result: dict[str, Any]) -> None:
    """Print what a result says: the rows that differ and the figures, a stage at a time."""
    kind = f"EMULATED {result['stand_in']} in its stead" if result["stand_in"] else f"driver {result['driver']}"
    print(f"{result['gpu']} ({kind}), torch {result['versions']['torch']}, beside emulated {result['emulated_as']}")
    for name, rows in differences(result).items():
        stage = result["stages"][name]
        differ = [row for row in rows if row.differs]
        took = " + ".join(f"{stage['seconds'][side]:.0f} s" for side in (NATIVE, EMULATED))
        ran = f"{len(stage[NATIVE])} items natively, {len(stage[EMULATED])} emulated"
        print(f"\n{stages.load(name).TITLE}: {ran}, {len(differ)} differ ({took})")
        for side, how in HOW.items():
            for item in unfinished(stage[side]):
                print(f"    out of time {how}: {item}; a run of this stage goes on there")
        shown = [*differ, *(row for row in rows if not row.differs)][:SHOWN]
        width = max((len(row.item) for row in shown), default=0)
        for row in shown:
            print(f"  {'≠' if row.differs else ' '} {row.item:{min(width, 60)}}  {row.native}  |  {row.emulated}")
        if len(rows) > SHOWN:
            print(f"    ... and {len(rows) - SHOWN} more rows")


def _show_again(path: Path) -> int:
    show(json.loads(path.read_text(encoding="utf-8")))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
