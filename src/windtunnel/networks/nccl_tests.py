"""What nccl-tests prints: a collective among ranks on nodes, and its time by size."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from windtunnel import foreign
from windtunnel.errors import FileFormatError, UsageError

COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "send",
}
_NAMED = re.compile(rf"\b({'|'.join(sorted(COLLECTIVES, key=len, reverse=True))})_perf")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device")
_ROW = re.compile(
    r"^\s*(?:\[[^\]]*\]\s*(?:<stdout>:)?)?\s*(?:\d+:\s*)?"
    r"(\d+)\s+\d+\s+[a-z]\w*\s+(?:sum|prod|max|min|avg|none|\s)\s*(?:-?\d+\s+)?"
    r"(\d+(?:\.\d*)?)\s+(\d+(?:\.\d*)?)\s+(\d+(?:\.\d*)?)(?![\d.])"
)
MOST_ROWS = 10_000


class Table(Struct, frozen=True):
    """The microseconds of a collective of `ranks` on `nodes` by the size that nccl-tests prints, smallest first."""

    collective: str
    ranks: int
    nodes: int
    size_bytes: list[int]
    time_us: list[float]


def read(path: Path) -> Table:
    """What a run of nccl-tests printed, in a file.

    Raises:
        FileFormatError: there is no such output in it, or it names neither the collective nor the ranks.
        UsageError: it cannot be read.
    """
    try:
        text = foreign.read_bytes(path).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"the network {path} cannot be read: {error.strerror}") from error
    return parse(text, path.name)


def parse(text: str, name: str) -> Table:
    """The table in an output; errors call it `name`.

    Raises:
        FileFormatError: there is none.
    """
    times: dict[int, list[float]] = {}
    ratios: list[float] = []
    hosts: dict[int, str] = {}
    for line in text.splitlines():
        if found := _RANK.search(line):
            hosts[int(found[1])] = found[2]
        elif (found := _ROW.match(line)) and int(found[1]) > 0 and float(found[2]) > 0 and len(times) < MOST_ROWS:
            times.setdefault(int(found[1]), []).append(float(found[2]))
            if float(found[3]) >= 1.0:
                ratios.append(float(found[4]) / float(found[3]))
    if not times:
        raise FileFormatError(f"{name} is no network: neither a .toml nor what nccl-tests prints")
    if len(hosts) < 2:
        raise FileFormatError(f"{name} does not name its ranks: keep the lines '#  Rank  0 ... on HOST device 0'")
    if len(set(hosts.values())) < 2:
        raise FileFormatError(f"{name} was measured on one node: a network needs nccl-tests on two nodes or more")
    named = _NAMED.search(text)
    collective = COLLECTIVES[named[1]] if named else _by_ratio(ratios, len(hosts))
    if not collective:
        raise FileFormatError(f"{name} does not name its collective: keep the command, such as all_reduce_perf")
    sizes = sorted(times)
    return Table(
        collective, len(hosts), len(set(hosts.values())), sizes, [sum(times[s]) / len(times[s]) for s in sizes]
    )


def _by_ratio(ratios: list[float], ranks: int) -> str:
    """The collective whose bus bandwidth is so much more than its algorithm's; only all-reduce's is its own."""
    ratio = sorted(ratios)[len(ratios) // 2] if ratios else 0.0
    return "all_reduce" if ranks > 2 and abs(ratio - 2 * (ranks - 1) / ranks) < 0.03 else ""
