"""How are parameters on a GPU read, written, saved and loaded, and what does each way cost?

The documents' second exercise: "How should we read and write model parameters on the GPU?" As any tensor: `.item()`
and `.cpu()` read, `copy_` under `no_grad` writes, `state_dict` takes all of them. What differs is the price. Each
value that is read alone waits for the GPU; each parameter is a copy of its own; pinned memory makes all of these
quicker.

A saved file remembers the device of each tensor. `torch.load` puts them back there and fails where that GPU is
missing, unless `map_location` says otherwise: "cpu" loads into host memory first, and the copy into the model needs
nothing of the GPU; a GPU there holds every parameter twice until the model has taken them. safetensors holds no code
that a file could run, remembers no device, and loads to the device that is asked for.

The third table is the disk's part, which has nothing to do with the GPU: it is measured on this machine, in its
folder for temporary files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from windtunnel import torch as wt
from windtunnel.experiments import _measure
from windtunnel.experiments._result import Axis, Column, Fact, Plot, Result, Series, Table

GPUS = 0
VALUES = True
State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class ParameterSizes:
    """A model of `layers` linear layers of `width`, and how many single values are read."""

    width: int = 1024
    layers: int = 8
    values: int = 100
    repeats: int = 3


SIZES = ParameterSizes()
SMALL = ParameterSizes(width=256, layers=3, values=20, repeats=1)


class File(NamedTuple):
    """A file of all parameters: its size, and the time to write and to read it, in seconds."""

    kind: str
    size_bytes: int
    write_s: float
    read_s: float


class Move(NamedTuple):
    """One way to read or write parameters on the GPU."""

    way: str
    size_bytes: int
    seconds: float


class Load(NamedTuple):
    """One way to load a file into a model on the GPU: where its tensors come, and the memory beside the model's own."""

    way: str
    lands_on: str
    extra_bytes: int
    right: str


def on_cpu(sizes: ParameterSizes) -> list[File]:
    """The files of a model on the CPU, written and read."""
    state = _model(sizes, wt.cpu()).state_dict()
    files = []
    with _folder() as folder:
        for kind, (save, load) in KINDS.items():
            path = folder / kind
            write_s = _measure.cpu_s(lambda save=save, path=path: save(state, path))  # type: ignore[misc]
            read_s = _measure.cpu_s(lambda load=load, path=path: load(path))  # type: ignore[misc]
            files.append(File(kind, path.stat().st_size, write_s, read_s))
    return files


def _read_safely(path: Path) -> State:
    """The tensors of a safetensors file in memory of their own: the library maps the file and reads it when touched."""
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


KINDS: dict[str, tuple[Callable[[State, Path], None], Callable[[Path], State]]] = {
    "torch.save": (torch.save, torch.load),
    "safetensors": (save_file, _read_safely),
}


def run(sizes: ParameterSizes, cpu: list[File]) -> Result:
    """All ways, on the first GPU where there is one."""
    moves, loads = ([], []) if wt.num_gpus() == 0 else (_moves(sizes), _loads(sizes))
    facts, conclusion = _conclude(sizes, cpu, moves, loads)
    tables = (_moves_table(moves), _loads_table(loads)) if moves else ()
    return Result(
        name="parameters",
        devices=_measure.devices(),
        tables=(*tables, _files_table(cpu)),
        plots=(_moves_plot(moves) if moves else _files_plot(cpu),),
        facts=facts,
        conclusion=conclusion,
    )


def _model(sizes: ParameterSizes, device: torch.device) -> nn.Sequential:
    torch.manual_seed(0)
    return wt.to(nn.Sequential(*[nn.Linear(sizes.width, sizes.width) for _ in range(sizes.layers)]), device)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="windtunnel-") as name:
        yield Path(name)


def _size_bytes(state: State) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


# ---------------------------------------------------------------------- reading and writing


def _moves(sizes: ParameterSizes) -> list[Move]:
    model = _model(sizes, wt.gpu(0))
    state: State = dict(model.state_dict())
    weight = next(iter(state.values()))
    host = {name: tensor.cpu() for name, tensor in state.items()}
    pinned = {name: tensor.pin_memory() for name, tensor in host.items()}

    def values() -> None:
        for column in range(sizes.values):
            weight[0, column].item()

    def read_pinned() -> None:
        for name, tensor in state.items():
            pinned[name].copy_(tensor, non_blocking=True)

    def write_pinned() -> None:
        for name, tensor in state.items():
            tensor.copy_(pinned[name], non_blocking=True)

    everything = _size_bytes(state)
    ways: tuple[tuple[str, int, Callable[[], object]], ...] = (
        (READ_VALUES, sizes.values * weight.element_size(), values),
        (READ_AT_ONCE, sizes.values * weight.element_size(), lambda: weight[0, : sizes.values].tolist()),
        (READ_ALL, everything, lambda: [tensor.cpu() for tensor in state.values()]),
        (READ_PINNED, everything, read_pinned),
        (WRITE_ALL, everything, lambda: model.load_state_dict(host)),
        (WRITE_PINNED, everything, write_pinned),
        (FILL, everything, lambda: [tensor.fill_(0.5) for tensor in state.values()]),
    )
    return [Move(way, size, _measure.wall_s(work, repeats=sizes.repeats)) for way, size, work in ways]


READ_VALUES = "read values one by one, item()"
READ_AT_ONCE = "read the same values at once, tolist()"
READ_ALL = "read all parameters, cpu()"
READ_PINNED = "read all into pinned memory"
WRITE_ALL = "write all, load_state_dict()"
WRITE_PINNED = "write all from pinned memory"
FILL = "compute all on the GPU, fill_()"


# ---------------------------------------------------------------------- loading


MAP_CPU, MAP_GPU, SAFE = 'map_location="cpu"', 'map_location="cuda:0"', 'safetensors, device="cuda:0"'
WITHOUT = "no map_location"


def _loads(sizes: ParameterSizes) -> list[Load]:
    gpu = wt.gpu(0)
    origin = wt.gpu(wt.num_gpus() - 1)  # another GPU than the model's, where there are two
    saved = _model(sizes, origin).state_dict()
    expected = {name: tensor.cpu() for name, tensor in saved.items()}
    with _folder() as folder:
        torch.save(saved, folder / "model.pt")
        save_file({name: tensor.contiguous() for name, tensor in saved.items()}, folder / "model.safetensors")
        del saved
        ways: dict[str, Callable[[], State]] = {
            WITHOUT: lambda: torch.load(folder / "model.pt"),
            MAP_CPU: lambda: torch.load(folder / "model.pt", map_location="cpu"),
            MAP_GPU: lambda: torch.load(folder / "model.pt", map_location=gpu),
            SAFE: lambda: load_file(folder / "model.safetensors", device=str(gpu)),
        }
        return [_load(way, load, sizes, expected) for way, load in ways.items()]


def _load(way: str, load: Callable[[], State], sizes: ParameterSizes, expected: State) -> Load:
    gpu = wt.gpu(0)
    model = _model(sizes, gpu)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    wt.synchronize()
    torch.cuda.reset_peak_memory_stats(gpu)
    before = wt.memory(gpu).allocated_bytes
    state = load()
    model.load_state_dict(state)
    extra = wt.memory(gpu).peak_allocated_bytes - before
    right = all(torch.equal(value.cpu(), expected[name]) for name, value in model.state_dict().items())
    places = sorted({str(tensor.device) for tensor in state.values()})
    return Load(way, ", ".join(places), extra, "yes" if right else "no")


# ---------------------------------------------------------------------- what it shows


def _moves_table(moves: list[Move]) -> Table:
    columns = (
        Column("way"),
        Column("bytes", "B"),
        Column("time", "s", ("gpu",)),
        Column("bandwidth", "B/s", ("gpu",)),
    )
    rows = tuple((*move, move.size_bytes / move.seconds) for move in moves)
    return Table("Reading and writing parameters on the GPU", columns, rows)


def _loads_table(loads: list[Load]) -> Table:
    columns = (
        Column("torch.load or load_file with"),
        Column("lands on"),
        Column("memory of cuda:0 beside the model", "B", ("gpu",)),
        Column("right values"),
    )
    return Table("Loading a file that another device saved into a model on cuda:0", columns, tuple(loads))


def _files_table(files: list[File]) -> Table:
    columns = (
        Column("file"),
        Column("size", "B"),
        Column("write", "s", ("cpu",)),
        Column("read", "s", ("cpu",)),
    )
    return Table("The disk's part", columns, tuple(files))


def _moves_plot(moves: list[Move]) -> Plot:
    series = Series("GPU", tuple(move.way for move in moves), tuple(move.seconds for move in moves), ("gpu",))
    return Plot("Time of each way", Axis("way"), Axis("time", "s", log=True), (series,), "bars")


def _files_plot(files: list[File]) -> Plot:
    kinds = tuple(file.kind for file in files)
    write = Series("write", kinds, tuple(file.write_s for file in files), ("cpu",))
    read = Series("read", kinds, tuple(file.read_s for file in files), ("cpu",))
    return Plot("Time of each file", Axis("file"), Axis("time", "s"), (write, read), "bars")


def _conclude(
    sizes: ParameterSizes, files: list[File], moves: list[Move], loads: list[Load]
) -> tuple[dict[str, Fact], tuple[str, ...]]:
    file = files[0]
    facts: dict[str, Fact] = {
        "size": Fact(file.size_bytes, "B"),
        "write": Fact(file.write_s, "s"),
        "read": Fact(file.read_s, "s"),
    }
    if not moves:
        first = "On the CPU a file of {size} is written in {write} and read in {read}."
        return facts, (first.format(**facts), "There is no GPU to read from here: `--gpus V100` emulates one.")
    taken = {move.way: move.seconds for move in moves}
    extra = {load.way: load.extra_bytes for load in loads}
    facts |= {
        "values": Fact(sizes.values),
        "values_ratio": Fact(taken[READ_VALUES] / taken[READ_AT_ONCE], "times"),
        "read_all": Fact(taken[READ_ALL], "s"),
        "read_pinned": Fact(taken[READ_ALL] / taken[READ_PINNED], "times"),
        "write_pinned": Fact(taken[WRITE_ALL] / taken[WRITE_PINNED], "times"),
        "extra_cpu": Fact(extra[MAP_CPU], "B"),
        "extra_gpu": Fact(extra[MAP_GPU], "B"),
    }
    first = "Reading {values} values one by one takes {values_ratio} the time of reading them at once; all parameters "
    first += "come to the host in {read_all}, and pinned memory makes that {read_pinned} as fast and writing "
    first += "{write_pinned}."
    second = (
        'Loading with map_location="cpu" takes {extra_cpu} of the GPU beside the model, loading straight to the GPU '
    )
    second += "{extra_gpu} until the model has taken the values."
    return facts, tuple(sentence.format(**facts) for sentence in (first, second))
