"""What does it cost to log one result at a time?

The documents' third exercise: compute a thousand products of 100 x 100 matrices and log a norm of each, either by
reading it as soon as it is asked for, or by keeping the log on the GPU and reading it once. One of the documents logs
the Frobenius norm of the product, another the trace of M M^T; both are here. Every `.item()` waits for the queue, so
the GPU idles while the host thinks, and the host idles while the GPU computes: a thousand synchronizations instead of
one.

The documents blame Python's interpreter lock: a print "subjects the whole to the global interpreter lock, which
stalls all GPUs". The second table tests this. One thread trains on two GPUs and reads each minibatch's losses, or keeps
them; then a thread for each GPU reads its own. A program of one thread has nobody to wait for the lock, so what it
loses by reading is lost to synchronizations. PyTorch gives the lock back while `.item()` waits
(torch/csrc/autograd/python_variable_methods.cpp, THPVariable_item), so a thread that waits for one GPU does not hold
up a thread that feeds another.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from windtunnel import torch as wt
from windtunnel.experiments import _measure
from windtunnel.experiments._result import Axis, Column, Fact, Origin, Plot, Result, Series, Table, Value

GPUS = 0
VALUES = False
NO_LOCK = (
    "Emulated host threads share no interpreter lock: what a thread for each GPU gains here is the most that it could."
)


@dataclass(frozen=True)
class LoggingSizes:
    """How many products of `n` x `n` matrices; how many minibatches of `batch` rows through layers of `width`."""

    products: int = 1000
    n: int = 100
    minibatches: int = 50
    batch: int = 512
    width: int = 1024


SIZES = LoggingSizes()
SMALL = LoggingSizes(products=50, minibatches=6)

Quantity = Callable[[torch.Tensor], torch.Tensor]


class LoggingTime(NamedTuple):
    """One way to log one quantity on one device; None for what a CPU does not count."""

    device: str
    quantity: str
    way: str
    seconds: float
    synchronizations: int | None


def frobenius(matrix: torch.Tensor) -> torch.Tensor:
    """The Frobenius norm of M M."""
    norm: torch.Tensor = torch.linalg.matrix_norm(matrix @ matrix)
    return norm


def trace(matrix: torch.Tensor) -> torch.Tensor:
    """The trace of M M^T."""
    return torch.trace(matrix @ matrix.T)


QUANTITIES: dict[str, Quantity] = {"Frobenius norm": frobenius, "tr(M Mᵀ)": trace}
EACH, ONCE = "one at a time", "kept on the device"


def one_at_a_time(matrix: torch.Tensor, quantity: Quantity, products: int) -> list[float]:
    """The log, each value read as soon as it is asked for."""
    return [quantity(matrix).item() for _ in range(products)]


def kept(matrix: torch.Tensor, quantity: Quantity, products: int) -> list[float]:
    """The same log, kept on the device and read once."""
    values: list[float] = torch.stack([quantity(matrix) for _ in range(products)]).tolist()
    return values


WAYS = {EACH: one_at_a_time, ONCE: kept}


def on_cpu(sizes: LoggingSizes) -> list[LoggingTime]:
    """Both ways on the CPU, where there is no queue to wait for."""
    matrix = _matrix(sizes, wt.cpu())
    rows = []
    for name, quantity in QUANTITIES.items():
        for way, log in WAYS.items():
            work = functools.partial(log, matrix, quantity, sizes.products)
            rows.append(LoggingTime("CPU", name, way, _measure.cpu_s(work), None))
    return rows


def run(sizes: LoggingSizes, cpu: list[LoggingTime]) -> Result:
    """Both ways on the first GPU, and the minibatches on the first two, where there are any."""
    rows = cpu + (_on_gpu(sizes) if wt.num_gpus() else [])
    losses = _minibatches(sizes) if wt.num_gpus() >= 2 else {}
    facts, conclusion = _conclude(sizes, rows, losses)
    tables = tuple(_log_table(sizes, rows, origin) for origin in _origins(rows))
    return Result(
        name="logging",
        devices=_measure.devices(),
        tables=tables + ((_loss_table(sizes, losses),) if losses else ()),
        plots=tuple(_plot(rows, origin) for origin in _origins(rows)),
        facts=facts,
        conclusion=conclusion,
        notes=(NO_LOCK,) if losses else (),
    )


def _matrix(sizes: LoggingSizes, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return wt.to(torch.rand(sizes.n, sizes.n, generator=generator), device)


def _on_gpu(sizes: LoggingSizes) -> list[LoggingTime]:
    matrix = _matrix(sizes, wt.gpu(0))
    rows = []
    for name, quantity in QUANTITIES.items():
        for way, log in WAYS.items():
            work = functools.partial(log, matrix, quantity, sizes.products)
            counted = synchronizations(work)  # warms up as well
            rows.append(LoggingTime("GPU", name, way, _measure.wall_s(work, warmup=0, repeats=3), counted))
    return rows


def synchronizations(work: Callable[[], object]) -> int:
    """How often `work` makes the host wait for a GPU, as PyTorch's own sync debug mode counts."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in caught)


# ---------------------------------------------------------------------- minibatches on two GPUs


class Worker:
    """A model on one GPU, and the losses of its minibatches."""

    def __init__(self, sizes: LoggingSizes, device: torch.device) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(sizes.width, sizes.width), nn.ReLU(), nn.Linear(sizes.width, 1)]
        self.model = wt.to(nn.Sequential(*layers), device)
        self.x = wt.to(torch.rand(sizes.batch, sizes.width), device)
        self.minibatches = sizes.minibatches

    def step(self) -> torch.Tensor:
        """One minibatch forward and backward: its loss, on the device."""
        loss: torch.Tensor = self.model(self.x).square().mean()
        loss.backward()
        return loss.detach()

    def read_each(self) -> None:
        """All minibatches, each loss read at once."""
        for _ in range(self.minibatches):
            self.step().item()


LOSS_WAYS = ("one thread, each loss read", "one thread, losses kept", "a thread for each GPU, each loss read")


def _minibatches(sizes: LoggingSizes) -> dict[str, float]:
    workers = [Worker(sizes, device) for device in wt.require_gpus(2)]

    def each() -> None:
        for _ in range(sizes.minibatches):
            for loss in [worker.step() for worker in workers]:
                loss.item()

    def kept_losses() -> None:
        steps = [[worker.step() for worker in workers] for _ in range(sizes.minibatches)]
        for losses in zip(*steps, strict=True):
            torch.stack(losses).tolist()

    def threads() -> None:
        running = [threading.Thread(target=worker.read_each) for worker in workers]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()

    ways = zip(LOSS_WAYS, (each, kept_losses, threads), strict=True)
    return {name: _measure.wall_s(work) for name, work in ways}


# ---------------------------------------------------------------------- what it shows


def _origins(rows: list[LoggingTime]) -> list[Origin]:
    return ["gpu", "cpu"] if any(row.device == "GPU" for row in rows) else ["cpu"]


def _log_table(sizes: LoggingSizes, rows: list[LoggingTime], origin: Origin) -> Table:
    columns = (
        Column("logged"),
        Column("way"),
        Column("time", "s", (origin,)),
        Column("a product", "s", (origin,)),
        *([Column("synchronizations")] if origin == "gpu" else []),
    )
    cells: list[tuple[Value, ...]] = []
    for row in rows:
        if row.device == origin.upper():
            counted = (row.synchronizations,) if origin == "gpu" else ()
            cells.append((row.quantity, row.way, row.seconds, row.seconds / sizes.products, *counted))
    title = f"{sizes.products:,} products of {sizes.n} x {sizes.n} on the {origin.upper()}"
    return Table(title, columns, tuple(cells))


def _loss_table(sizes: LoggingSizes, losses: dict[str, float]) -> Table:
    columns = (Column("way"), Column("time", "s", ("gpu",)), Column("a minibatch", "s", ("gpu",)))
    rows = tuple((way, seconds, seconds / sizes.minibatches) for way, seconds in losses.items())
    return Table(f"{sizes.minibatches} minibatches on each of two GPUs", columns, rows)


def _plot(rows: list[LoggingTime], origin: Origin) -> Plot:
    mine = [row for row in rows if row.device == origin.upper()]
    series = tuple(
        Series(way, tuple(QUANTITIES), tuple(row.seconds for row in mine if row.way == way), (origin,)) for way in WAYS
    )
    return Plot(f"Time of the log on the {origin.upper()}", Axis("logged"), Axis("time", "s"), series, "bars")


def _conclude(
    sizes: LoggingSizes, rows: list[LoggingTime], losses: dict[str, float]
) -> tuple[dict[str, Fact], tuple[str, ...]]:
    times = {(row.device, row.quantity, row.way): row for row in rows}
    where = "GPU" if wt.num_gpus() else "CPU"
    norm = next(iter(QUANTITIES))
    each, once = times[where, norm, EACH], times[where, norm, ONCE]
    facts = {
        "products": Fact(sizes.products),
        "each": Fact(each.seconds, "s"),
        "once": Fact(once.seconds, "s"),
        "ratio": Fact(each.seconds / once.seconds, "times"),
    }
    first = (
        "Reading {products} norms one at a time takes {each}, keeping them on the " + where + " and reading once {once}"
    )
    if where == "CPU":
        first += ": on a CPU there is no queue that reading could stall."
        second = "There is no GPU to compare it with here: `--gpus 2xV100` emulates two."
        return facts, (first.format(**facts), second)
    facts |= {"waits_each": Fact(each.synchronizations), "waits_once": Fact(once.synchronizations)}
    first += ": {ratio} as long, with {waits_each} synchronizations instead of {waits_once}."
    if not losses:
        return facts, (first.format(**facts), "Whether the interpreter lock has a part in it takes two GPUs to see.")
    one_thread, kept_there, two_threads = (losses[way] for way in LOSS_WAYS)
    facts |= {
        "loss_ratio": Fact(one_thread / kept_there, "times"),
        "threads_ratio": Fact(two_threads / kept_there, "times"),
    }
    second = (
        "On two GPUs, one thread that reads every minibatch's loss takes {loss_ratio} the time of one that keeps them"
    )
    if one_thread > 1.05 * kept_there:
        second += ", with no other thread to hold the interpreter lock: the synchronization costs that"
    second += "; a thread for each GPU takes {threads_ratio} that time."
    return facts, tuple(sentence.format(**facts) for sentence in (first, second))
