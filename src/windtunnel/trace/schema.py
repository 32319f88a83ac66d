"""What a saved trace holds, as types: a file is held to them before anything is built of it."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta

from windtunnel.trace.operation import Hazard, Lane, Note, Role, Signature, Site

Count = Annotated[int, Meta(ge=0, le=1 << 62)]
Text = Annotated[str, Meta(max_length=1 << 16)]
Share = Annotated[float, Meta(ge=0, le=1)]
Band = Annotated[float, Meta(ge=0, le=1000)]
"""A relative error: neither infinite nor not a number, since reports print times that it spans."""


class GpuFacts(TypedDict, total=False):
    """One device as `gpus.describe` writes it down."""

    key: str
    name: str
    compute_capability: tuple[int, int]
    memory_bytes: Count
    memory_bandwidth_bytes_per_s: Annotated[float, Meta(gt=0)]
    sm_count: Annotated[int, Meta(gt=0)]
    peak_flops: dict[str, Annotated[float, Meta(gt=0)]]


class DeviceFacts(TypedDict, total=False):
    """A device's totals at the end of the run."""

    physical: Annotated[int, Meta(ge=0, lt=1 << 16)]
    node: Annotated[int, Meta(ge=0)]
    local: Annotated[int, Meta(ge=0)]
    memory_bytes: Count
    context_bytes: Count
    allocated_bytes: Count
    reserved_bytes: Count
    peak_allocated_bytes: Count | None
    peak_reserved_bytes: Count | None
    peak_at_most_bytes: Count | None
    peak_band: Band | None
    peak_unsure: str
    retries: Count
    out_of_memory: Count
    asked: list[str]


class Replay(TypedDict):
    """What a setting of the allocator would have made of a device's history."""

    device: int
    setting: str
    peak_reserved_bytes: Count
    out_of_memory: Count


class Cure(TypedDict):
    """What a remedy saves of what the program needed when a request for memory failed."""

    device: Annotated[int, Meta(ge=0, lt=1 << 16)]
    remedy: str
    words: str
    needed_bytes: Count
    saved_bytes: Count
    fits: bool


class Leak(TypedDict):
    """What a loop left behind on a device: by so many `lines`, and how many `blocks` by the one that left most."""

    device: Annotated[int, Meta(ge=0, lt=1 << 16)]
    file: str
    line: int
    function: str
    lines: Count
    blocks: Count
    size_bytes: Count


class HostFacts(TypedDict):
    """The host that issued the work: its name, by what it multiplies the times of calls, and the factors between which
    four of five of its calls lie.
    """

    name: Text
    issue: NotRequired[Annotated[float, Meta(gt=0, le=100)]]
    band: tuple[Annotated[float, Meta(gt=0, le=100)], Annotated[float, Meta(gt=0, le=100)]]


class HostWorkFacts(TypedDict, total=False):
    """The host's own work between operators, measured where the program ran (`reports/parts/host.py`)."""

    steps: Count
    rounds: Count
    round_ns: Count
    pace: Annotated[float, Meta(gt=0, le=1e4)]
    blocked_share: Share
    files_share: Share
    data_lines: list[tuple[str, int, str, Count]]
    lines: list[tuple[str, int, str, Count]]
    worker_lines: list[tuple[str, int, str, Count]]
    ended_by: list[tuple[str, int, str, Count]]
    batch_ns: Count
    batch_blocked_share: Share
    workers: Count
    io_bytes: Count
    io_calls: Count


class HostWorkRecord(TypedDict):
    """The same as a report of JSON has it, and `--host-from` takes it."""

    unit: Literal["step", "round"]
    rounds: Count
    kind: Literal["data", "disk", "python", "waiting"]
    makes_data: bool
    work_ns: Count
    batch_ns: Count | None
    workers: Count
    io_bytes: Count
    file: Text
    line: Count
    function: Text


class Facts(TypedDict, total=False):
    """`Trace.facts`; what is not named here is not read by windtunnel."""

    source: str
    band: Band | None
    gpus: list[GpuFacts]
    devices: list[DeviceFacts]
    options: dict[str, object]
    versions: dict[str, str]
    program: str
    rank: Annotated[int, Meta(ge=0)]
    world_size: Annotated[int, Meta(ge=0)] | None
    nodes: Annotated[int, Meta(ge=1)]
    priorities: list[tuple[Count, Count, int]]
    network: dict[str, object]
    network_assumed: bool
    network_band: tuple[float, float] | None
    cluster: str
    played: str
    job: dict[str, Text]
    cuda_version: tuple[int, int] | None
    exit_code: int
    interrupted: bool
    frameworks: list[str]
    incomplete: bool
    unwritten: str
    processes: Annotated[int, Meta(ge=1)]
    not_decidable: list[str]
    replays: list[Replay]
    cures: list[Cure]
    command: str
    leaks: list[Leak]
    library_streams: dict[str, str]
    retimed_from: list[str]
    compile_ns: Count
    host: HostFacts
    host_work: HostWorkFacts
    memory_segments: list[dict[str, object]]
    memory_pools: list[object]
    memory_from_start: bool
    history_allocations: Count
    allocator_settings: dict[str, object]
    program_files: list[str]


class Entries(TypedDict, total=False):
    """New entries of the tables, in a journal."""

    lanes: list[object]
    signatures: list[object]
    sites: list[object]
    roles: list[object]
    hazards: list[object]
    notes: list[object]


class Tables(TypedDict):
    """The tables that rows refer to by number."""

    lanes: list[Lane]
    signatures: list[Signature]
    sites: list[Site]
    hazards: list[Hazard]
    notes: list[Note]


class Header(Tables, total=False):
    """The line of JSON in a saved trace."""

    facts: dict[str, object]
    rows: Count
    memory: Count
    roles: list[Role]
    sources: dict[str, dict[str, str]]
