"""Published times of kernels in CUDA C++ (xlite-dev/LeetCUDA's READMEs, an L20), and what those kernels do.

    python -m tools.corpus.custom_kernels [--sources DIR] [--only relu]    # in make accuracy-cuda-kernels's environment

clones the repository into DIR where it is not there, writes down the times that its READMEs print
(`custom_kernels.csv`), runs its benchmarks without data, each line twice after a warm-up, and records what a call
launches (`custom_kernel_calls.json.gz`). Nothing of its sources is kept. `make accuracy-cuda-kernels` prices the calls.

The lines have no GPU's name; where the repository names one it is an L20. What is left out, and why: README.md."""

from __future__ import annotations

import argparse
import builtins
import contextlib
import csv
import gzip
import io
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tools.corpus import recordings
from tools.corpus.outcomes import Outcome
from tools.corpus.tables import FOLDER, read
from windtunnel import gpus
from windtunnel.cost import CostModel

REPOSITORY, COMMIT = "https://github.com/xlite-dev/LeetCUDA", "cb6a0497e829741fc5e3ad5e43a5beed0d85edcd"
GPU, CUDA = "L20", "12.4"
PUBLISHED, CALLS = "custom_kernels.csv", "custom_kernel_calls.json.gz"
KINDS = {
    "dot-product": "dot_product.py", "elementwise": "elementwise.py", "embedding": "embedding.py", "gelu": "gelu.py",
    "layer-norm": "layer_norm.py", "reduce": "block_all_reduce.py", "relu": "relu.py", "rms-norm": "rms_norm.py",
    "rope": "rope.py", "sgemm": "sgemm.py", "sgemv": "sgemv.py", "sigmoid": "sigmoid.py", "softmax": "softmax.py",
    "swish": "swish.py",
}  # fmt: skip
"""The folders of `kernels/` whose figures can be an L20's, and the benchmark in each."""
NOT_THEIRS = re.compile(r"_th\b|cublas")
"""Lines of PyTorch's own kernels and of cuBLAS."""
LINE = re.compile(r"^\s*(?:out_)?([^\s:]+): .*time: ?([0-9.]+) *ms")
SHAPE = re.compile(r"^\s*([A-Za-z]+=\d+(?:, [A-Za-z]+=\d+)*)\s*$")
COUNTS = ((re.compile(r"\bwarmup: int = \d+"), "warmup: int = 1"), (re.compile(r"\biters(: int)? = \d+"), "iters = 2"))
CUBLAS = """#include <torch/extension.h>
void sgemm_cublas(torch::Tensor a, torch::Tensor b, torch::Tensor c) {}
void sgemm_cublas_tf32(torch::Tensor a, torch::Tensor b, torch::Tensor c) {}
"""
"""In place of the file of `sgemm` that calls cuBLAS, whose lines are not compared."""


class Call(NamedTuple):
    """A published line: its folder, shape, label and milliseconds, and what one of its calls launches, in order."""

    kind: str
    shape: str
    label: str
    ms: float
    recording: recordings.Recording


def is_fitted(kind: str) -> bool:
    """Whether constants may be chosen by this kind's rows; the other half judges alone."""
    return zlib.crc32(kind.encode()) % 2 == 0


def lines(text: str) -> Iterator[tuple[str, str, float]]:
    """The shape, label and milliseconds of each line that a benchmark prints; of the same line twice, both."""
    shape = ""
    for line in text.splitlines():
        if found := SHAPE.match(line):
            shape = found[1].replace(" ", "")
        elif (found := LINE.match(line)) and not NOT_THEIRS.search(found[1]):
            yield shape, found[1], float(found[2])


def published() -> dict[tuple[str, str, str], float]:
    """Milliseconds by kind, shape and label."""
    return {(row["kind"], row["shape"], row["label"]): float(row["ms"]) for row in read(PUBLISHED)}


def calls() -> list[Call]:
    """The published lines that are recorded."""
    times, found = published(), dict[tuple[str, str, str], Call]()
    major, _, minor = CUDA.partition(".")
    for row in recordings.lines(FOLDER / CALLS):
        key = (row["kind"], row["shape"], row["label"])
        if (ms := times.get(key)) is not None:
            signatures = tuple(recordings.signature(one) for one in row["signatures"])
            of = recordings.Recording(key[2], GPU, key[0], (int(major), int(minor)), ms, signatures,
                                      tuple(row["order"]))  # fmt: skip
            found[key] = Call(*key, ms, of)
    return list(found.values())


def outcome(call: Call) -> Outcome:
    """What a call of the line takes in a long loop, beside the published milliseconds."""
    cost = CostModel(gpus.find(GPU), call.recording.cuda)
    kernels = [cost.kernel(one) for one in call.recording.signatures]
    band = max(one.band for one in kernels)
    return Outcome(call.label, call.kind, call.recording.step_ns(cost, steps=64) / 1e6, call.ms, band)


def figures_of(some: Sequence[Outcome]) -> dict[str, float]:
    """How many rows, the median factor that they are off by, and percentages within 30 %, 2.5 times and the band."""
    factors = [max(one.ratio, 1 / one.ratio) for one in some]
    near, far = (round(100 * sum(one <= most for one in factors) / len(some)) for most in (1.3, 2.5))
    inside = round(100 * sum(one.inside for one in some) / len(some))
    return {"number": len(some), "factor": round(median(factors), 2), "near": near, "far": far, "inside": inside}


def checkout(folder: Path) -> Path:
    """The repository's kernels at the commit of the figures."""
    if not (folder / "kernels").is_dir():
        for words in (["clone", "--quiet", REPOSITORY, str(folder)], ["-C", str(folder), "checkout", "-q", COMMIT]):
            subprocess.run(["git", *words], check=True)
    return folder / "kernels"


class Watched(io.StringIO):
    """What a benchmark prints: at each line, `seen` hears it."""

    def __init__(self, seen: Any) -> None:
        super().__init__()
        self.seen = seen

    def write(self, text: str) -> int:
        self.seen(text)
        return len(text)


def record(kernels: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Run a benchmark without data, and say of each of its lines what the last call of its loop launches."""
    from tools.corpus.steps import emulated

    source = (kernels / kind / KINDS[kind]).read_text("utf-8")
    for pattern, instead in COUNTS:
        source = pattern.sub(instead, source)
    found: list[dict[str, Any]] = []
    shape = ""
    with tempfile.TemporaryDirectory() as folder, emulated(GPU, CUDA) as session:
        stub = Path(folder) / "cublas.cu"
        stub.write_text(CUBLAS)
        source = source.replace('"sgemm_cublas.cu"', repr(str(stub))).replace("time.time()", "marked()")
        script = Path(folder) / KINDS[kind]
        script.write_text(source)
        marks: list[int] = []

        def marked() -> float:
            marks.append(len(session.trace))
            return time.time()

        def seen(text: str) -> None:
            nonlocal shape
            for at, label, _ in lines(f"{shape}\n{text}"):
                signatures, order = recordings.work(session.trace, marks[-2], marks[-1])
                order = [one for one in order if one != recordings.WAIT]
                once = order[len(order) // 2 :]
                kept = sorted(set(once))
                found.append({"kind": kind, "shape": at, "label": label, "signatures": [signatures[i] for i in kept],
                              "order": [kept.index(one) for one in once]})  # fmt: skip
            if header := SHAPE.match(text):
                shape = header[1]

        builtins.marked = marked  # type: ignore[attr-defined]
        before = Path.cwd()
        os.chdir(kernels / kind)
        try:
            with contextlib.redirect_stdout(Watched(seen)):
                runpy.run_path(str(script), run_name="__main__")
        finally:
            os.chdir(before)
            del builtins.marked  # type: ignore[attr-defined]
    yield from found


def readme_rows(kernels: Path) -> list[tuple[str, str, str, float]]:
    """What the READMEs print; of several tables of one program, the last is of the sources as they are."""
    found: dict[tuple[str, str, str], float] = {}
    for kind in KINDS:
        for shape, label, ms in lines((kernels / kind / "README.md").read_text("utf-8")):
            found[kind, shape, label] = ms
    return [(*key, ms) for key, ms in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, default=Path(tempfile.gettempdir()) / "leetcuda")
    parser.add_argument("--only", default="", help="record the kinds that begin so anew, and keep the others")
    options = parser.parse_args()
    kernels = checkout(options.sources)
    with (FOLDER / PUBLISHED).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("kind", "shape", "label", "ms"))
        writer.writerows(readme_rows(kernels))
    rows: dict[str, list[dict[str, Any]]] = {}
    if (FOLDER / CALLS).exists():
        for row in recordings.lines(FOLDER / CALLS):
            rows.setdefault(row["kind"], []).append(row)
    for kind in KINDS:
        if kind.startswith(options.only):
            rows[kind] = list(record(kernels, kind))
            print(f"{kind}: {len(rows[kind])} lines", file=sys.stderr, flush=True)
        with gzip.GzipFile(FOLDER / CALLS, "wb", 9, mtime=0) as packed:
            for row in (one for name in KINDS for one in rows.get(name, ())):
                packed.write((json.dumps(row, separators=(",", ":")) + "\n").encode())


if __name__ == "__main__":
    main()
