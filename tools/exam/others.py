"""Small programs of other people's, whose times stand in READMEs and issues, on emulated GPUs.

    python -m tools.exam.others [--gpu L20] [--only relu] [--rows] [--figures]

Each row of `tools/corpus/programs_published.csv` is a call that its source repeats, by name, sizes and type, with what
was printed: microseconds, milliseconds, TFLOP/s, GB/s of the bytes that the source counts, or MiB at the peak of its
memory. Here it is called as often as the clock needs. Where the source clears L2 between two calls, so does this; else
the call finds what the one before has left. What was fitted with rows in view stands on the exam's page.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch.nn import functional

import windtunnel
from tools.corpus import tables
from tools.corpus.outcomes import Outcome, figures_of, parts_of, summarize
from tools.docs import figures
from tools.exam.blocks import BLOCKS
from tools.exam.layers import LAYERS
from tools.exam.networks import NETWORKS
from windtunnel import hosts
from windtunnel.reports.parts.time import with_hosts
from windtunnel.trace.operation import Kind, Signature
from windtunnel.trace.trace import END, KIND, SIGNATURE, START

PEAK, PEAK_BAND = "MiB", 0.02
"""The unit of peaks of memory, and within what one is said to be known."""
HOSTS = {
    "xlite-dev/LeetCUDA": "reference",
    "mli/transformers-benchmarks": "desktop-5ghz",
    "ultralytics/yolov5": "p3-vm",
    "zzc0721/torch-performance-test-data": "reference",
}
"""What issues the calls of sources whose machines are their own; others are taken for rented ones."""
WARM_UP, CALLS = 10, 30
OF_NETWORKS = (4, 2)
"""The same of whole networks, which fill the queue by themselves and meet a power limit soon."""
CLEARED_BYTES = 1 << 28
Tensor = torch.Tensor
Call = Callable[[], object]


class PrintedTime(NamedTuple):
    """A row of the table. `cleared` says that nothing of the call before is in L2, `cuda` whose software it was."""

    program: str
    gpu: str
    dtype: torch.dtype
    sizes: tuple[int, ...]
    cleared: bool
    value: float
    unit: str
    cuda: str | None
    source: str

    @property
    def name(self) -> str:
        """The row in words."""
        return f"{self.program} {' x '.join(map(str, self.sizes))} {str(self.dtype).removeprefix('torch.')}"

    @property
    def host(self) -> str:
        """What issued its calls."""
        return HOSTS.get(self.source.partition("#")[0], hosts.DEFAULT)

    @property
    def us(self) -> float:
        """Microseconds of a call."""
        if self.unit in {"us", "ms"}:
            return self.value * (1e3 if self.unit == "ms" else 1.0)
        item = self.dtype.itemsize
        amount = 2 * prod(self.sizes) * (1e-6 if self.unit == "TFLOPS" else 1e-3 * item)
        return amount / self.value

    def zeros(self, *sizes: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.zeros(*sizes, dtype=dtype or self.dtype, device="cuda")


def read() -> Iterator[PrintedTime]:
    """The table."""
    for row in tables.read("programs_published.csv"):
        sizes = tuple(map(int, row["sizes"].split()))
        cleared, value = row["cleared"] == "1", float(row["value"])
        yield PrintedTime(row["program"], row["gpu"], getattr(torch, row["dtype"]), sizes, cleared, value, row["unit"],
                  row["cuda"] or None, row["source"])  # fmt: skip


def elu(x: Tensor, out: Tensor) -> Tensor:
    return torch.where(x > 0, x, 1.0 * (torch.exp(x) - 1), out=out)


def swish(x: Tensor, out: Tensor) -> Tensor:
    torch.sigmoid(x, out=out)
    return out.mul_(x)


def layer_norm(x: Tensor, _: Tensor) -> Tensor:
    mean = torch.mean(x, dim=1, keepdim=True)
    variance = 1 / torch.std(x, dim=1, keepdim=True)
    return ((x - mean) * variance) * 1.0 + 0.0


def rms_norm(x: Tensor, _: Tensor) -> Tensor:
    return (x * torch.rsqrt(torch.mean(x**2, dim=1, keepdim=True))) * 1.0


def unfused_rms_norm(x: Tensor, out: Tensor) -> Tensor:
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    return out[0] * (x * torch.rsqrt(variance + 1e-5)).to(x.dtype)


ON_TABLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda x, _: torch.relu(x),
    "sigmoid": lambda x, out: torch.sigmoid(x, out=out),
    "elu": elu,
    "gelu": lambda x, _: functional.gelu(x, approximate="tanh"),
    "hardshrink": lambda x, out: out.copy_(functional.hardshrink(x, lambd=0.5)),
    "hardswish": lambda x, out: out.copy_(functional.hardswish(x)),
    "swish": swish,
    "dot-product": lambda x, y: torch.dot(x.view(-1), y.view(-1)),
    "reduce": lambda x, _: torch.sum(x),
    "softmax": lambda x, out: torch.softmax(x, dim=1, out=out),
    "layer-norm": layer_norm,
    "rms-norm": rms_norm,
    "scale": lambda x, _: x * 1.2,
    "copy": lambda x, out: out.copy_(x),
    "fused-rms-norm": lambda x, y: functional.rms_norm(x, x.shape[-1:], y[0]),
    "unfused-rms-norm": unfused_rms_norm,
    "fused-layer-norm": lambda x, y: functional.layer_norm(x, x.shape[-1:], y[0], y[0]),
}
"""What is called on a table of numbers and another one of its size."""


def elementwise(row: PrintedTime) -> Call:
    x, y, out = (row.zeros(*row.sizes) for _ in range(3))
    return lambda: torch.add(x, y, out=out)


def product(row: PrintedTime) -> Call:
    m, n, k = row.sizes
    x, y = row.zeros(m, k), row.zeros(k, n)
    return lambda: torch.mm(x, y)


def tf32_product(row: PrintedTime) -> Call:
    torch.backends.cuda.matmul.allow_tf32 = True
    return product(row)


def scaled_product(row: PrintedTime) -> Call:
    m, n, k = row.sizes
    x, y = row.zeros(m, k), row.zeros(n, k).t()
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(x, y, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def linear(row: PrintedTime) -> Call:
    m, n, k = row.sizes
    x, w = row.zeros(m, k), row.zeros(n, k)
    return lambda: functional.linear(x, w)


ON_SIZES = {
    "elementwise": elementwise,
    "product": product,
    "tf32-product": tf32_product,
    "scaled-product": scaled_product,
    "linear": linear,
}


KINDS = {
    "dot-product": "reductions",
    "reduce": "reductions",
    "linear": "a row times a matrix",
    "softmax": "softmax and norms",
    "layer-norm": "softmax and norms",
    "rms-norm": "softmax and norms",
    "fused-rms-norm": "softmax and norms",
    "unfused-rms-norm": "softmax and norms",
    "fused-layer-norm": "softmax and norms",
}
PROGRAMS = LAYERS | BLOCKS | NETWORKS
LOSSES = ("cross-entropy", "divergence", "shannon", "variation")
"""What the names of losses have in them, among layers' programs."""


def call_of_layer(row: PrintedTime, drops: bool) -> Call:
    """A layer's forward, backward or both, before which the benchmark of its time drops gradients."""
    name, what = row.program.split()
    layer = PROGRAMS[name](row.dtype, *row.sizes)
    call = layer.call(what)

    def repeated() -> None:
        for x in layer.dropped if drops else ():
            x.grad = None
        with torch.enable_grad():
            call()

    return repeated


def call_of(row: PrintedTime, drops: bool = True) -> Call:
    """What the program repeats."""
    if " " in row.program:
        with torch.enable_grad():
            return call_of_layer(row, drops)
    if row.program in ON_SIZES:
        return ON_SIZES[row.program](row)
    of, x, y = ON_TABLES[row.program], row.zeros(*row.sizes), row.zeros(*row.sizes)
    return lambda: of(x, y)


def outcome(row: PrintedTime) -> Outcome:
    """What the clock says of a row."""
    with windtunnel.emulate(row.gpu, no_data=True, host=row.host, cuda_version=row.cuda) as session, torch.no_grad():
        torch.backends.cuda.matmul.allow_tf32 = False
        call = call_of(row)
        warm_up, calls = OF_NETWORKS if row.program.split()[0] in NETWORKS else (WARM_UP, CALLS)
        spent_ms, begun, out = 0.0, 0, None
        kernels: list[tuple[Signature, int]] = []
        for number in range(warm_up + calls):
            if row.cleared or number == warm_up:
                torch.cuda.synchronize()
            if row.cleared:
                torch.empty(CLEARED_BYTES, dtype=torch.uint8, device="cuda").fill_(1)
            if row.cleared or number == warm_up:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                begun = len(session.trace.rows)
            out = call()  # held until the next one has been made, as in the source
            if number >= warm_up and (row.cleared or number == warm_up + calls - 1):
                rows = [session.trace.rows[at] for at in range(begun, len(session.trace.rows))]
                ran = (one for one in rows if one[KIND] == Kind.KERNEL)
                kernels += ((session.trace.signatures[one[SIGNATURE]], one[END] - one[START]) for one in ran)
                end.record()
                torch.cuda.synchronize()
                spent_ms += begin.elapsed_time(end)
        del out
        session.write_band()
        band = session.trace.facts["band"]
    device = session.machine.devices[0]
    parts = parts_of(device.cost, kernels, 1e6 * spent_ms, limited=device.sustained.met is not None)
    share = max(0.0, 1.0 - sum(part for _, part in parts))
    within = None if band is None else with_hosts(band, share, hosts.find(row.host).band)
    return Outcome(row.name, row.gpu, 1e3 * spent_ms / calls, row.us, band, within=within, parts=parts)


def peak(row: PrintedTime) -> Outcome:
    """What memory a row's call takes at its peak, in MiB."""
    with windtunnel.emulate(row.gpu, no_data=True, host=row.host, cuda_version=row.cuda), torch.no_grad():
        call = call_of(row, drops=False)
        for _ in range(3):
            torch.cuda.reset_peak_memory_stats()
            call()
        taken = torch.cuda.max_memory_allocated() / 2**20
        return Outcome(row.name, row.gpu, taken, row.value, PEAK_BAND)


def kind_of(row: PrintedTime) -> str:
    """What kind of kernels the program is made of, or which of the layers it is."""
    if row.unit == PEAK:
        return "peaks of memory"
    if " " in row.program:
        name = row.program.split()[0]
        what = "networks: " if name in NETWORKS else "layers: "
        return "losses" if any(one in name for one in LOSSES) else what + name
    if "product" in row.program and row.program != "dot-product":
        of = "TF32" if row.program == "tf32-product" else str(row.dtype).removeprefix("torch.")
        return f"products in {of}"
    return f"{'alone, from memory' if row.cleared else 'repeated'}: {KINDS.get(row.program, 'element-wise')}"


def times() -> list[PrintedTime]:
    """The rows that are no peaks."""
    return [row for row in read() if row.unit != PEAK]


def judged(row: PrintedTime) -> Outcome:
    """The outcome of a row, time or peak."""
    return peak(row) if row.unit == PEAK else outcome(row)


def shown(one: Outcome) -> str:
    """Between which factors of the predicted time the published one is said to lie."""
    if one.within is None:
        return "+-" + ("?" if one.band is None else f"{one.band:.0%}")
    return f"{one.within[0]:.2f} to {one.within[1]:.2f}"


def write_figures(found: Sequence[tuple[PrintedTime, Outcome]]) -> None:
    """Write the table of docs/exam.md: by GPU, and by kind of program."""
    parts: dict[str, list[Outcome]] = defaultdict(list)
    for one in sorted((one for row, one in found if row.unit != PEAK), key=lambda one: one.group):
        parts[one.group].append(one)
    for row, one in sorted(found, key=lambda pair: kind_of(pair[0])):
        parts[kind_of(row)].append(one)
    parts["all"] = [one for row, one in found if row.unit != PEAK]
    rows = {
        name: {"what": name, **figures_of(some, lambda one: f"{one.model} on {one.group}")}
        for name, some in parts.items()
    }
    figures.record("exam-others", rows | {"all": {**rows["all"], "what": "all times"}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="", help="rows whose GPU's name begins so")
    parser.add_argument("--only", default="", help="rows of programs whose name has this in it")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--figures", action="store_true", help="write the table of docs/exam.md")
    options = parser.parse_args()
    found = [(row, judged(row)) for row in read() if row.gpu.startswith(options.gpu) and options.only in row.program]
    if options.rows:
        for row, one in found:
            unit = PEAK if row.unit == PEAK else "us"
            print(f"{one.group:16} {one.model:40} {one.predicted:9.1f} of {one.published:9.1f} {unit} "
                  f"{one.ratio - 1.0:+7.1%}, {'in' if one.inside else 'out'}side {shown(one)}")  # fmt: skip
    summarize(one for row, one in found if row.unit != PEAK)
    print()
    summarize(one._replace(group=kind_of(row)) for row, one in found)
    if options.figures:
        write_figures(found)


if __name__ == "__main__":
    main()
