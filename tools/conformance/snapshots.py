"""Replay memory snapshots that others recorded on real GPUs, and run a recorded training again on an emulated one.

    python -m tools.conformance.snapshots                    the event histories kept in tests/conformance/memory
    python -m tools.conformance.snapshots --snapshots DIR    those of snapshots.tsv, from git clones of the named
                                                             repositories: DIR/OWNER/NAME (bare ones will do)
    ... --trainings                 besides, the recorded trainings on an emulated RTX 4090, without data;
                                    needs einops, einx and jaxtyping
    ... --extract BLOB OUT.json.gz  nothing but that snapshot's requests, frees and blocks, as plain data

Prints the tables of docs/memory.md and of tests/conformance/memory/README.md. A snapshot is found by the id of its git
blob, so it is the recorded file or none. The exit code is 1 when a replay differs without an explanation.
"""

from __future__ import annotations

import argparse
import csv
import gc
import gzip
import importlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

import windtunnel
from windtunnel import foreign
from windtunnel.analysis.replay import ReplayResult, replay

HERE = Path(__file__).resolve().parent
TABLE = HERE / "snapshots.tsv"
KEPT = HERE.parents[1] / "tests" / "conformance" / "memory"
MIB = 1 << 20


class Source(NamedTuple):
    """One recorded snapshot: a file at a commit of a public repository."""

    repository: str
    commit: str
    blob: str
    path: str


def sources() -> list[Source]:
    """The lines of snapshots.tsv."""
    with TABLE.open(encoding="utf-8", newline="") as lines:
        return [Source(**row) for row in csv.DictReader(lines, delimiter="\t")]


def git(clone: Path, *arguments: str) -> bytes | None:
    """What git prints; None where it cannot."""
    done = subprocess.run(["git", "-C", str(clone), *arguments], capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else None


# ---------------------------------------------------------------------------------------------- replays


class Line(NamedTuple):
    """One snapshot's replay, summed up over its devices."""

    events: int
    allocations: int
    modelled: int
    recorded: int
    driver_calls: tuple[int, int]
    final_blocks: tuple[int, int]
    verdict: str


def line(results: list[ReplayResult]) -> Line:
    """The numbers of one snapshot: `modelled` with addresses of our driver, `recorded` with those of the recording."""
    best = [result.with_recorded_addresses or result for result in results]
    agree = all(result.agrees for result in results)
    explained = all(result.explained for result in results)
    return Line(
        sum(r.events for r in results),
        sum(r.allocations for r in results),
        sum(r.placements_agree for r in results),
        sum(r.placements_agree for r in best),
        (sum(r.driver_calls_agree for r in best), sum(r.driver_calls for r in best)),
        (sum(r.final_blocks_agree for r in best), sum(r.final_blocks for r in best)),
        "" if agree else "addresses" if explained else "DIFFERS",
    )


def cells(found: Line) -> str:
    """The numbers as columns of a table."""
    calls, blocks = ("/".join(map(str, pair)) for pair in (found.driver_calls, found.final_blocks))
    numbers = (found.events, found.allocations, found.modelled, found.recorded, calls, blocks, found.verdict)
    return " | ".join(map(str, numbers))


def replays(clones: Path | None) -> Iterator[tuple[str, list[ReplayResult] | None]]:
    """(where it is from, its replay) of every snapshot; None where the clone does not hold it."""
    if clones is None:
        for path in sorted(KEPT.glob("*.json.gz")):
            yield path.name, replay(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        for source in sources():
            where = f"{source.repository} | `{source.path}` | {source.commit}"
            data = git(clones / source.repository, "cat-file", "blob", source.blob)
            if data is None:
                yield where, None
                continue
            path = Path(folder) / "snapshot.pickle"
            path.write_bytes(data)
            yield where, replay(path)


def print_replays(clones: Path | None) -> bool:
    """Print the table; whether every replay agrees or is explained."""
    start = "file" if clones is None else "repository | file | commit"
    columns = f"{start} | events | allocations | modelled | recorded | driver calls | final blocks | differs by"
    print(f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}")
    missing, histories, total = 0, 0, Line(0, 0, 0, 0, (0, 0), (0, 0), "")
    good = True
    for where, results in replays(clones):
        if results is None:
            missing += 1
            print(f"| {where} | not there |")
            continue
        found = line(results)
        print(f"| {where} | {cells(found)} |", flush=True)
        good = good and found.verdict != "DIFFERS"
        histories += found.allocations > 0
        sums: list[Any] = [mine + theirs for mine, theirs in zip(total[:4], found[:4], strict=True)]
        total = Line._make((*sums, (0, 0), (0, 0), ""))
    print(
        f"\n{histories} histories with allocations: {total.events} events, {total.allocations} allocations; "
        f"{total.modelled} agree with modelled addresses, {total.recorded} with recorded ones"
        + (f"; {missing} snapshots are not there" if missing else "")
    )
    return good


# ---------------------------------------------------------------------------------------------- trainings

PROGRAM = Source("Wedsonlin/assignment2-systems", "8630bcfe2d", "", "cs336-basics/cs336_basics")
GPU = "RTX4090"
"""The GPU of the recording has its 128 multiprocessors."""
WORDS = {128: False, 256: False, 512: True, 1024: True}
"""Length of the recorded trainings' texts, and whether they ran under bfloat16 autocast (the recorded types say so)."""


def recorded(clones: Path, words: int) -> tuple[float, float, float]:
    """Peak and end of the recorded step in allocated MiB, and its reserved MiB, from the snapshot."""
    name = f"results/medium_{words}_training_memory_snapshot.pickle"
    source = next(s for s in sources() if s.repository == PROGRAM.repository and s.path == name)
    data = git(clones / source.repository, "cat-file", "blob", source.blob)
    if data is None:
        raise SystemExit(f"{clones / source.repository} does not hold {name}.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        path.write_bytes(data)
        (result,) = replay(path, "recorded")
        end = sum(b["size"] for s in _segments(path) for b in s["blocks"] if b["state"] != "inactive")
    return result.peak_allocated_bytes / MIB, end / MIB, result.peak_reserved_bytes / MIB


def _segments(path: Path) -> list[dict[str, Any]]:
    from windtunnel.analysis.snapshot_file import read

    return [segment for snapshot in read(path) for segment in snapshot.segments]


def modelled(basics: Any, words: int, autocast: bool) -> tuple[float, float, float]:
    """The same of the same step, emulated without data: 24 layers of width 1024, batches of 4, AdamW written out."""
    with windtunnel.emulate(GPU, no_data=True, assume=0.0):
        model = (
            basics["model"]
            .BasicsTransformerLM(
                vocab_size=10000, context_length=words, d_model=1024, num_layers=24, num_heads=16, d_ff=4096
            )
            .to("cuda")
        )
        optimizer = basics["optimizer"].AdamW(model.parameters())
        steps = torch.randint(low=0, high=10000, size=(2, 3, 4, words), device="cuda")
        for number in range(3):
            if number == 2:
                torch.cuda.reset_peak_memory_stats()
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
                output = model(steps[0, number])
                loss = basics["nn_utils"].cross_entropy(output, steps[1, number])
            loss.backward()
            optimizer.step()
            if number < 2:
                optimizer.zero_grad()
                del output, loss
        numbers = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated(), torch.cuda.max_memory_reserved()
        del model, optimizer, steps, output, loss
        gc.collect()
    return numbers[0] / MIB, numbers[1] / MIB, numbers[2] / MIB


def print_trainings(clones: Path) -> None:
    """Print recorded beside modelled."""
    archive = git(clones / PROGRAM.repository, "archive", PROGRAM.commit, PROGRAM.path)
    if archive is None:
        raise SystemExit(f"{clones / PROGRAM.repository} is no clone of {PROGRAM.repository}.")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        sys.path.insert(0, str((Path(folder) / PROGRAM.path).parent))
        names = ("model", "optimizer", "nn_utils")
        basics = {name: importlib.import_module(f"cs336_basics.{name}") for name in names}
        print("\n| words, numbers | peak, recorded | modelled | | at the end | modelled | reserved | modelled |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        for words, autocast in WORDS.items():
            real, ours = recorded(clones, words), modelled(basics, words, autocast)
            pairs = [f"{one:.1f} | {other:.1f}" for one, other in zip(real, ours, strict=True)]
            numbers = "bfloat16 autocast" if autocast else "FP32"
            print(f"| {words}, {numbers} | {pairs[0]} | {ours[0] / real[0] - 1:+.1%} | {pairs[1]} | {pairs[2]} |")


# ---------------------------------------------------------------------------------------------- extracts

SEGMENT = ("device", "address", "total_size", "stream", "segment_type", "segment_pool_id", "is_expandable")
BLOCK = ("size", "requested_size", "state")
SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size", "garbage_collection_threshold", "expandable_segments")


def extract(clones: Path, blob: str, out: Path) -> None:
    """Write a snapshot's actions, sizes, addresses and blocks, without stacks, in the JSON form that a replay reads."""
    source = next(source for source in sources() if source.blob.startswith(blob))
    data: Any = foreign.from_pickle(
        git(clones / source.repository, "cat-file", "blob", source.blob) or b"", source.path
    )
    settings = data.get("allocator_settings", {})
    kept = {
        "source": f"{source.repository} {source.path} at {source.commit}",
        "allocator_settings": {key: settings[key] for key in SETTINGS if key in settings},
        "segments": [
            {**_some(segment, SEGMENT), "blocks": [_some(block, BLOCK) for block in segment["blocks"]]}
            for segment in data["segments"]
        ],
        "device_traces": [
            [[event["action"], event["addr"], event["size"], event["stream"]] for event in trace]
            for trace in data["device_traces"]
        ],
    }
    text = json.dumps(kept, separators=(",", ":"))
    out.write_bytes(gzip.compress(text.encode(), mtime=0))


def _some(entry: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: entry[key] for key in keys if key in entry}


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--snapshots", type=Path, metavar="DIR", help="git clones of the repositories: DIR/OWNER/NAME")
    parser.add_argument("--trainings", action="store_true", help="also run the recorded trainings, emulated")
    parser.add_argument("--extract", nargs=2, metavar=("BLOB", "OUT"), help="keep one snapshot without its stacks")
    arguments = parser.parse_args()
    if arguments.extract:
        extract(arguments.snapshots, arguments.extract[0], Path(arguments.extract[1]))
        return 0
    if arguments.trainings and arguments.snapshots is None:
        parser.error("--trainings needs --snapshots DIR, for the program and what it recorded")
    good = print_replays(arguments.snapshots)
    if arguments.trainings:
        print_trainings(arguments.snapshots)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
