"""KernelBench's programs (github.com/ScalingIntelligence/KernelBench, MIT) from a checkout, and its published times.

Each program has a `Model`, `get_init_inputs` and `get_inputs`. They are read as they were when a machine timed them,
since one has changed from 16 to 32 bits, and run here as the checkout's own timing does: three calls to warm up, then
calls between two events with a synchronization after each; the newest timing also writes 256 MB before each call, so
that L2 holds nothing of the call before.
"""

from __future__ import annotations

import gc
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

import windtunnel
from tools.corpus.outcomes import Outcome, parts_of
from windtunnel import gpus, hosts
from windtunnel.cost import CostModel
from windtunnel.errors import WindtunnelError
from windtunnel.gpus import versions
from windtunnel.reports.parts.time import with_hosts
from windtunnel.trace.operation import Kind, Signature
from windtunnel.trace.trace import END, KIND, SIGNATURE, START

WARM_UP, TRIALS = 3, 3
CLEARED = (32, 1024, 1024)
"""Of 64-bit integers: what the newest timing writes before each call."""


class Edition(NamedTuple):
    """The programs of one commit, the CUDA of the PyTorch that timed them, and the GPUs of its folders of times."""

    commit: str
    clears_l2: bool
    cuda_version: versions.Version
    machines: dict[str, str]
    release: str = ""


EDITIONS = (
    Edition("423217d", True, (12, 8), {"H100_Modal": "H100"}),  # PyTorch 2.9
    Edition("423217d", False, (12, 4), {"H100_PCIe_LambdaLabs": "H100-PCIe"}),  # 2.5, as its commit requires
    Edition(
        "7dd9cfa",
        False,
        (12, 4),  # PyTorch 2.5
        {
            "A100-80GB_modal": "A100-80GB", "A10G_modal": "A10G", "B200_together": "B200", "H100_together": "H100",
            "L40S_modal": "L40S", "L4_modal": "L4", "T4_modal": "T4",
        },
        "v0.1",
    ),
)  # fmt: skip

FAMILIES = {
    "matmul": ("matmul", "matrix", "gemm"), "convolution, transposed": ("conv_transposed", "convtranspose"),
    "convolution, depthwise": ("depthwise",), "convolution, 3-D": ("conv_standard_3d", "conv3d"),
    "convolution, 1-D": ("conv_standard_1d",),
    "convolution": ("conv",), "pool": ("pool",), "norm": ("norm",), "scan": ("cumsum", "cumprod"),
    "loss": ("loss",), "attention": ("attention",), "softmax": ("softmax",),
    "reduction": ("reduction", "argmax", "argmin"),
}  # fmt: skip
"""Kinds of programs by words in their names; the first that fits."""


class Program(NamedTuple):
    """One file: the level of difficulty, its number there, its name, its text."""

    level: int
    number: int
    name: str
    text: str

    @property
    def family(self) -> str:
        """What kind of program it is; "element-wise" where no word of its name says so."""
        if self.level > 1:
            return "several kernels" if self.level == 2 else "networks"
        name = self.name.lower()
        return next((kind for kind, words in FAMILIES.items() if any(word in name for word in words)), "element-wise")

    @property
    def is_held_back(self) -> bool:
        """Whether it is kept to judge the clock, and so neither shown nor fitted: all but level 1's odd numbers."""
        return self.level > 1 or self.number % 2 == 0


def git(checkout: Path, *words: str) -> str:
    """What git prints of a checkout; ends with a sentence where it has no such commit or file."""
    done = subprocess.run(["git", "-C", str(checkout), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip().removeprefix("fatal: ")
        raise SystemExit(f"{checkout} is no clone of KernelBench with its whole history ({why}); clone it anew")
    return done.stdout


def read(checkout: Path, commit: str, path: str) -> str:
    """A file of a commit."""
    return git(checkout, "show", f"{commit}:{path}")


def programs(checkout: Path, commit: str, everything: bool) -> Iterator[Program]:
    """The programs that may be looked at, by level and number; those held back only with `everything`."""
    names = git(checkout, "ls-tree", "-r", "--name-only", commit, "KernelBench").splitlines()
    paths = [Path(name) for name in names if name.endswith(".py")]
    named = [(int(path.parent.name.removeprefix("level")), int(path.name.split("_")[0]), path) for path in paths
             if path.parent.name.startswith("level") and path.name[0].isdigit()]  # fmt: skip
    for level, number, path in sorted(named):
        one = Program(level, number, path.stem, "")
        if level <= 3 and (everything or not one.is_held_back):
            yield one._replace(text=read(checkout, commit, str(path)))


def times_path(machine: str) -> str:
    """Where the eager times of a machine lie."""
    return f"results/timing/{machine}/baseline_time_torch.json"


def timed(checkout: Path, edition: Edition, machine: str) -> str:
    """The commit whose programs a machine timed: the last of the edition that wrote its times."""
    return git(checkout, "log", "-1", "--format=%H", edition.commit, "--", times_path(machine)).strip()


def published(checkout: Path, edition: Edition, machine: str, everything: bool) -> dict[tuple[int, str], float]:
    """Mean times in milliseconds by level and name."""
    text = read(checkout, edition.commit, times_path(machine))
    found: dict[tuple[int, str], float] = {}
    for key, rows in json.loads(text).items():
        level = int(key.removeprefix("level"))
        for file, row in rows.items():
            one = Program(level, int(file.split("_")[0]), file.removesuffix(".py"), "")
            if row and (everything or not one.is_held_back):
                found[level, one.name] = float(row["mean"])
    return found


def cuda_of(edition: Edition, gpu: str) -> versions.Version:
    """The CUDA that timed an edition's programs on a GPU."""
    return max(edition.cuda_version, versions.default_cuda(gpus.parse(gpu)))


class Prediction(NamedTuple):
    """A program's time on an emulated GPU in milliseconds, its kernels' band, and what hosts make of that.

    `kernels` are the calls of one trial with their nanoseconds.
    """

    ms: float
    band: float | None
    within: tuple[float, float] | None
    kernels: tuple[tuple[Signature, int], ...]


def predicted(program: Program, gpu: str, edition: Edition, host: str = hosts.DEFAULT) -> Prediction:
    """What the clock says of a program, which runs without data.

    What is between two events and no kernel is the host's: it widens the band as a report widens a step's.
    """
    names: dict[str, Any] = {"__name__": program.name}
    cuda_version = ".".join(map(str, cuda_of(edition, gpu)))
    with windtunnel.emulate(gpu, no_data=True, host=host, cuda_version=cuda_version) as session, torch.no_grad():
        exec(compile(program.text, f"{program.name}.py", "exec"), names)
        with torch.device("cuda"):  # inputs of gigabytes are made where they cost nothing
            inputs = [one.cuda() if isinstance(one, torch.Tensor) else one for one in names["get_inputs"]()]
            model = names["Model"](*names["get_init_inputs"]()).cuda()
        spent, busy = [], []
        kernels: tuple[tuple[Signature, int], ...] = ()
        for trial in range(WARM_UP + TRIALS):
            if edition.clears_l2:
                torch.empty(CLEARED, dtype=torch.int64, device="cuda").fill_(42)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            before = len(session.trace.rows)
            model(*inputs)
            rows = [session.trace.rows[at] for at in range(before, len(session.trace.rows))]
            end.record()
            torch.cuda.synchronize()
            if trial >= WARM_UP:
                spent.append(start.elapsed_time(end))
                ran = [row for row in rows if row[KIND] == Kind.KERNEL]
                kernels = tuple((session.trace.signatures[row[SIGNATURE]], row[END] - row[START]) for row in ran)
                busy.append(sum(ns for _, ns in kernels) / 1e6)
        session.write_band()
        band = session.trace.facts["band"]
    share = max(0.0, 1.0 - sum(busy) / sum(spent))
    within = None if band is None else with_hosts(band, share, hosts.find(host).band)
    return Prediction(sum(spent) / len(spent), band, within, kernels)


class Row(NamedTuple):
    """A program on a machine: what the clock says beside what was published, and what it ran."""

    program: Program
    outcome: Outcome
    gpu: str
    edition: Edition
    kernels: tuple[tuple[Signature, int], ...]


def outcomes(checkout: Path, gpu: str, word: str, everything: bool, host: str = hosts.DEFAULT) -> Iterator[Row]:
    """Each program with `word` in its name on each machine with a published time whose GPU's name begins with `gpu`."""
    for edition in EDITIONS:
        for machine, key in edition.machines.items():
            if not key.startswith(gpu):
                continue
            times = published(checkout, edition, machine, everything)
            for program in programs(checkout, timed(checkout, edition, machine), everything):
                time = times.get((program.level, program.name))
                if time is None or word not in program.name:
                    continue
                try:
                    found = predicted(program, key, edition, host)
                except (WindtunnelError, RuntimeError) as error:
                    print(f"{program.name} on {key} ({machine}) did not run: {str(error).splitlines()[0]}", flush=True)
                    continue
                gc.collect()
                group = f"{key} {edition.commit}"
                parts = parts_of(CostModel(gpus.find(key), cuda_of(edition, key)), found.kernels, 1e6 * found.ms)
                one = Outcome(program.name[:32], group, found.ms, time, found.band, within=found.within, parts=parts)
                yield Row(program, one, key, edition, found.kernels)
