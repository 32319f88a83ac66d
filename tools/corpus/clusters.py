"""Trainings of language models on 2 to 512 GPUs, each run as a cluster, beside what was published of them.

MPT by llm-foundry (`mpt_fsdp.py`), and GPT by Megatron-DeepSpeed as vTrain timed it (`megatron_gpt.py`). The network of
a row is the one that its source names, or that of NVIDIA's own system. Pipelines of more than `MOST_STAGES` are left
out: each stage is a process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tools.corpus import tables
from tools.corpus.language_models import SIZES
from tools.corpus.outcomes import Outcome, error_figures, tau
from windtunnel.gpus.variation import later

FOLDER = Path(__file__).resolve().parent
STEP = re.compile(r"step of ([\d.]+) ms")
MOST_STAGES = 8
FIGURES_STAGES = 4
"""Those of the trainings whose errors the documentation shows: longer pipelines are hardly ever run so."""


class ClusterRow(NamedTuple):
    """A published training: the GPUs, how it was divided among them, and the milliseconds of its step."""

    source: str
    model: str
    gpu: str
    network: str
    gpus: int
    per_node: int
    length: int
    batch: int
    accumulate: int
    tensor: int
    stages: int
    recompute: bool
    strategy: str
    pure: bool
    step_ms: float

    @property
    def cluster(self) -> str:
        return f"{self.gpus // self.per_node}x{self.per_node}x{self.gpu}"

    @property
    def layout(self) -> str:
        words = f"batch {self.batch}, {self.accumulate} a step"
        return f"TP {self.tensor}, PP {self.stages}, {words}" if self.source != "llm-foundry" else words

    def command(self) -> list[str]:
        """The program and its arguments."""
        numbers = {"length": self.length, "batch": self.batch, "accumulate": self.accumulate}
        if self.source == "llm-foundry":
            layers, width, heads = SIZES[self.model]
            words = ["mpt_fsdp.py", "--strategy", self.strategy, *(["--pure"] if self.pure else [])]
        else:
            width, layers, heads = map(int, re.findall(r"\d+", self.model))
            words = ["megatron_gpt.py"]
            numbers |= {"tensor": self.tensor, "stages": self.stages}
        numbers |= {"layers": layers, "width": width, "heads": heads}
        for name, number in numbers.items():
            words += [f"--{name}", str(number)]
        return [str(FOLDER / words[0]), *words[1:], *(["--recompute"] if self.recompute else [])]


def rows() -> list[ClusterRow]:
    """The published trainings."""
    found = []
    for row in tables.read("cluster_trainings.csv"):
        ranks, batch, accumulate = int(row["gpus"]), int(row["micro_batch"]), int(row["accumulate"])
        step_ms = float(row["step_ms"] or 0.0)
        if not step_ms:
            step_ms = 1e3 * ranks * batch * accumulate * int(row["length"]) / float(row["tokens_per_s"])
        found.append(
            ClusterRow(row["source"], row["model"], row["gpu"], row["network"], ranks, int(row["per_node"]),
                int(row["length"]), batch, accumulate, int(row["tensor"]), int(row["stages"]),
                row["recompute"] == "True", row["strategy"], row["reduced"] == "16 bits", step_ms)
        )  # fmt: skip
    return found


def run(row: ClusterRow) -> tuple[float, float]:
    """The milliseconds of a step whose slowest GPU is later than the clock, and the relative band around it.

    Raises:
        RuntimeError: the program failed, or does not fit.
    """
    options = ["--json", "--cluster", row.cluster, "--network", row.network, "--check-fold", "0"]
    command = [sys.executable, "-m", "windtunnel", "run", *options, *row.command()]
    ended = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    step = STEP.search(ended.stderr)
    if ended.returncode or step is None:
        raise RuntimeError(next((line for line in ended.stderr.splitlines() if "Error" in line), ended.stderr[-300:]))
    timing = json.loads(ended.stdout)["timing"]
    middle, ends = timing["step_ns"], timing["step_range_ns"]
    band = max(middle / ends[0] - 1.0, ends[1] / middle - 1.0) if middle else 0.0
    return float(step[1]) * (1.0 + later(row.gpus)), band


def predicted(some: Sequence[ClusterRow]) -> Iterator[tuple[ClusterRow, Outcome]]:
    """Each row that runs, with what came of it; a line of each other one is printed."""
    for row in some:
        try:
            ms, band = run(row)
        except RuntimeError as error:
            print(f"{row.model} on {row.cluster}, {row.layout}: left out: {error}", flush=True)
            continue
        yield row, Outcome(row.model, f"{row.source}, {row.gpu}", ms, row.step_ms, band)


def declines(found: Sequence[tuple[ClusterRow, Outcome]]) -> list[tuple[str, float, float]]:
    """By how many percent a GPU does less in the largest cluster of a model than in the smallest: published, predicted.

    Only rows of one batch and one number of micro-batches are compared.
    """
    series: dict[str, list[tuple[ClusterRow, Outcome]]] = defaultdict(list)
    for row, one in found:
        if row.source == "llm-foundry":
            series[f"{row.model} on {row.gpu}, {row.layout}, {row.strategy}"].append((row, one))
    made = []
    for name, some in series.items():
        in_order = sorted(some, key=lambda pair: pair[0].gpus)
        (first, one), (last, other) = in_order[0], in_order[-1]
        if first.gpus < last.gpus:
            published, model = one.published / other.published, one.predicted / other.predicted
            made.append((name, 100.0 * (1.0 - published), 100.0 * (1.0 - model)))
    return made


def layouts(found: Sequence[tuple[ClusterRow, Outcome]]) -> list[tuple[float, float, str]]:
    """Predicted and published times of layouts, with the model and the number of GPUs that they divide."""
    return [
        (one.predicted, one.published, f"{row.model} on {row.gpus}")
        for row, one in found
        if row.source.startswith("vTrain, nodes")
    ]


def figures_of(found: Sequence[tuple[ClusterRow, Outcome]]) -> dict[str, dict[str, Any]]:
    """The rows of docs/figures/cluster-trainings.json."""
    kinds = {
        "a100": [pair for pair in found if pair[1].group == "llm-foundry, A100-SXM4-40GB"],
        "h100": [pair for pair in found if pair[1].group == "llm-foundry, H100-SXM5-80GB"],
        "both": [pair for pair in found if pair[0].source == "llm-foundry"],
        "vtrain": [pair for pair in found if pair[0].source.startswith("vTrain") and pair[0].stages <= FIGURES_STAGES],
    }
    made: dict[str, dict[str, Any]] = {}
    for name, some in kinds.items():
        counts = sorted(row.gpus for row, _ in some)
        made[name] = {"gpus": f"{counts[0]} to {counts[-1]}", **error_figures([one for _, one in some])}
    made["both"]["points"] = round(median(abs(published - model) for _, published, model in declines(kinds["both"])), 1)
    made["vtrain"]["tau"] = round(tau(layouts(kinds["vtrain"])), 2)
    return made


def summarize(found: Sequence[tuple[ClusterRow, Outcome]]) -> None:
    """The declines, and how well the layouts of a model are ranked."""
    some = declines(found)
    for name, published, model in some:
        print(f"{name}: {published:+.1f} % published, {model:+.1f} % predicted")
    if some:
        off = [abs(published - model) for _, published, model in some]
        print(f"decline, off by: median {median(off):.1f} points, most {max(off):.1f}, of {len(some)} series")
    pairs = layouts(found)
    if len(pairs) > 1:
        print(f"layouts of a model on as many GPUs: Kendall's tau {tau(pairs):.2f}, {len(pairs)} rows")
