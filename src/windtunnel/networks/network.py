"""The catalogue of networks: what connects the nodes of a cluster, one `.toml` a network in this folder.

Adding a network is adding a file, here or anywhere: a name may be a path. A path may also lead to what nccl-tests
printed: the network is then the GPU's usual one, with these times in place of modelled ones.
"""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from windtunnel import foreign
from windtunnel.errors import UsageError
from windtunnel.networks import nccl_tests
from windtunnel.networks.nccl_tests import Table

FOLDER = Path(__file__).parent
FALLBACK = "ethernet-100"
"""The network of GPUs that no maker's system of several nodes has."""

Algorithm = Literal["Ring", "Tree", "NVLSTree"]
Protocol = Literal["LL", "LL128", "Simple"]
Count = Annotated[int, Meta(ge=1, le=1024)]
Rate = Annotated[float, Meta(ge=1e6, le=1e13)]


class Network(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What connects nodes. Bandwidths are in bytes a second and one direction, as of one NIC.

    `transport` is how NCCL reaches the NICs, a row of `cost/data/network.toml`. The NICs of a node are spread over its
    `gpus_per_node`. The bandwidth between nodes is the NICs' over `oversubscription`. Of `nodes_per_nvlink` nodes the
    GPUs are on one NVLink, as in a rack of NVL72. `algorithms` and `protocols` are those that its maker's settings
    leave to NCCL (NCCL_ALGO, NCCL_PROTO), all where there are none. `latency_us` is what one hop between nodes takes
    within a collective, and `share` the share of the NICs' rate that large collectives reach, where they are known;
    else they are modelled. `default_for` names the GPUs whose network this is where nobody says another. `sources` says
    where facts are from, `measured` what nccl-tests printed on the network.
    """

    key: str
    name: str
    aliases: list[str] = []
    transport: str
    gpus_per_node: Count
    nics_per_node: Count
    nic_bandwidth_bytes_per_s: Rate
    oversubscription: Annotated[float, Meta(ge=1, le=1000)] = 1.0
    nodes_per_nvlink: Count = 1
    algorithms: list[Algorithm] = []
    protocols: list[Protocol] = []
    latency_us: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    share: Annotated[float, Meta(gt=0, le=1)] | None = None
    default_for: list[str] = []
    sources: dict[str, str] = {}
    measured: tuple[Table, ...] = ()

    def describe(self) -> dict[str, object]:
        """As plain JSON for a trace."""
        found: dict[str, object] = msgspec.to_builtins(self)
        return found


class Spread(NamedTuple):
    """How a group of ranks lies on a cluster: `nodes` of them, from each node to the next so many nodes `apart`.

    `sharing` is how many such groups a node's NICs serve at the same time: ranks on the node over the group's there.
    """

    ranks: int
    nodes: int = 1
    apart: int = 1
    sharing: int = 1

    @classmethod
    @cache
    def of_detail(cls, detail: tuple[tuple[str, str | int], ...]) -> Spread:
        """Of a collective's or a message's `Signature.detail`."""
        found = dict(detail)
        return cls(*(int(found.get(name, 1)) for name in cls._fields))

    @classmethod
    def of_ranks(cls, ranks: Sequence[int], per_node: int) -> Spread:
        """Of these ranks of a job whose nodes have so many each; 0 where all are on one."""
        if per_node < 1:
            return cls(len(ranks))
        counts = Counter(rank // per_node for rank in ranks)
        nodes = sorted(counts)
        apart = min((after - before for before, after in pairwise(nodes)), default=1)
        return cls(len(ranks), len(nodes), apart, max(1, per_node // max(counts.values())))

    def detail(self) -> tuple[tuple[str, int], ...]:
        """What a `Signature.detail` says of it beside the number of ranks; nothing on one node."""
        return tuple(zip(self._fields[1:], self[1:], strict=True)) if self.nodes > 1 else ()

    @property
    def per_node(self) -> int:
        """Its ranks on a node."""
        return max(1, -(-self.ranks // self.nodes))

    def domains(self, nodes_per_nvlink: int) -> int:
        """How many domains of so many nodes on one NVLink it touches, if it begins with one."""
        return len({number * self.apart // nodes_per_nvlink for number in range(self.nodes)})


def from_description(facts: Mapping[str, object]) -> Network:
    """The network that `describe` wrote into a trace.

    Raises:
        FileFormatError: the facts are not a network's.
    """
    return foreign.typed(dict(facts), Network, "the trace's network", "does not describe a network")


@cache
def _files() -> dict[str, Path]:
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


@cache
def _aliases() -> dict[str, str]:
    return {alias: key for key, path in _files().items() for alias in (key, *_read(path).aliases)}


@cache
def _read(path: Path) -> Network:
    data = foreign.facts(path, f"the network {path}")
    return foreign.typed(data, Network, path.name, f"does not describe a network (compare it with {FALLBACK}.toml)")


def names() -> list[str]:
    """The keys of all networks in the catalogue, sorted."""
    return sorted(_files())


def default_for(gpu_key: str) -> Network:
    """The network that nodes of such GPUs are taken to have where nobody says another."""
    found = (_read(path) for path in _files().values())
    return next((one for one in found if gpu_key in one.default_for), _read(_files()[FALLBACK]))


def find(name: str, gpu_key: str) -> Network:
    """The network of that name, or in that file: `.toml`, or what nccl-tests printed, on the GPU's usual network.

    Raises:
        UsageError: there is no such network, or the file cannot be read.
        FileFormatError: the file is neither.
    """
    plain = re.sub(r"[\s_]+", "-", name.strip()).lower()
    if key := _aliases().get(plain):
        return _read(_files()[key])
    path = Path(name)
    if name.endswith(".toml"):
        return _read(path.absolute())
    if path.suffix or os.sep in name or path.exists():
        table = nccl_tests.read(path)
        usual = default_for(gpu_key)
        return msgspec.structs.replace(usual, key=path.stem, name=f"{usual.name}, as {path.name}", measured=(table,))
    near = difflib.get_close_matches(plain, _aliases(), n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(dict.fromkeys(_aliases()[key] for key in near))}? " if near else ""
    raise UsageError(f"no network is called {name!r}: {hint}there are {', '.join(names())}, and files")


def parse(text: str) -> list[str]:
    """The names and files of a list with commas, files from the root on: for processes that work in another folder."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise UsageError("--network needs the name of a network or a file")
    return [part if part.lower() in _aliases() or not Path(part).exists() else os.path.abspath(part) for part in found]
