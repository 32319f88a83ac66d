"""One host: facts from a `.toml` file, checked field by field, and the loop that compares two of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import thread_time_ns
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from windtunnel import foreign
from windtunnel.errors import FileFormatError, UsageError

FOLDER = Path(__file__).parent
DEFAULT = "cloud-vm"
ROUNDS, REPEATS = 20_000, 15
Factor = Annotated[float, Meta(gt=0.01, lt=100)]


class Tables(Struct, forbid_unknown_fields=True):
    """The file's content."""

    description: str
    source: str
    issue: Factor
    python_ns: Annotated[float, Meta(gt=0.1, lt=1e5)]
    band: tuple[Factor, Factor]
    backward_us: Annotated[float, Meta(ge=0, lt=1e4)] = 0.0
    parameter_us: Annotated[float, Meta(ge=0, lt=1e4)] = 0.0
    event_us: Annotated[float, Meta(ge=0, lt=1e4)] = 0.0


@dataclass(frozen=True)
class Host:
    """A host's processor.

    `issue` multiplies the time of a framework's call from Python to the launch (`dispatch_us` in `operators/*.toml`),
    `python_ns` is what a round of `loop` takes it. Beside dispatch, `backward_us` is what a kernel of a backward pass
    takes it (autograd's node), `parameter_us` what a parameter and each tensor of its state take an optimizer that
    works on lists of them, `event_us` what a new event that tells the time takes. `band` are the factors between which
    four of five of its calls lie.
    """

    name: str
    description: str
    source: str
    issue: float
    python_ns: float
    band: tuple[float, float]
    backward_us: float = 0.0
    parameter_us: float = 0.0
    event_us: float = 0.0

    def describe(self) -> dict[str, object]:
        """As plain JSON for a trace."""
        return {"name": self.name, "issue": self.issue, "band": list(self.band)}


def names() -> list[str]:
    """The hosts of the catalogue."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


@cache
def find(name: str) -> Host:
    """A host of the catalogue by its name, or one that a `.toml` file describes.

    Raises:
        UsageError: there is no such host, or the file cannot be read.
        FileFormatError: the file does not describe a host.
    """
    path = FOLDER / f"{name}.toml" if name in names() else Path(name)
    if path.suffix != ".toml":
        raise UsageError(f"there is no host {name!r}; there are {', '.join(names())}, or a .toml file of your own")
    data = foreign.facts(path, name, "; `windtunnel calibrate --host` writes one")
    found = foreign.typed(
        data, Tables, path.name, "does not describe a host (`windtunnel calibrate --host` writes one)"
    )
    if found.band[0] > found.band[1]:
        raise FileFormatError(f"{path.name} does not describe a host: its band ends before it begins")
    return Host(path.stem, *msgspec.structs.astuple(found))


def loop(rounds: int = ROUNDS) -> float:
    """The processor time of a round of plain Python, in nanoseconds: integers and a dictionary."""
    begin_ns = thread_time_ns()
    total = 0
    table: dict[int, int] = {}
    for number in range(rounds):
        table[number & 255] = total
        total = (total + number * 7) % 1000003
    return (thread_time_ns() - begin_ns) / rounds


@cache
def python_ns_here() -> float:
    """What a round takes this machine, at best."""
    return min(loop() for _ in range(REPEATS))


def measured_here(issue: float | None) -> str:
    """A host's file for this machine; `issue` is None where no GPU told, and then follows from Python's speed."""
    rented = find("cloud-vm")
    python_ns = python_ns_here()
    said = "calls of operators on its GPU" if issue is not None else "plain Python alone, for want of a GPU"
    issue = python_ns / rented.python_ns * rented.issue if issue is None else issue
    low, high = rented.band
    pace = issue / rented.issue
    return (
        "# Measured by `windtunnel calibrate --host`; `--host` reads it.\n"
        'description = "this machine"\n'
        f'source = "measured: {said}"\n'
        f"issue = {issue:.3f}\nbackward_us = {pace * rented.backward_us:.1f}\n"
        f"parameter_us = {pace * rented.parameter_us:.2f}\nevent_us = {pace * rented.event_us:.1f}\n"
        f"python_ns = {python_ns:.1f}\nband = [{low}, {high}]\n"
    )
