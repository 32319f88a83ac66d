"""The report of JSON as types, of which its JSON Schema is made (`windtunnel explain --schema`)."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from windtunnel.trace.plain import Json

Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Cause = dict[str, int]


class Frame(TypedDict):
    """A line of the program, by 1; `stack` holds its callers, innermost first."""

    file: str
    line: int
    function: str
    stack: NotRequired[list[dict[str, str | int]]]


class Times(TypedDict):
    """Where durations come from, with their relative error."""

    source: str
    band: float | None
    host_factor: float | None


class Host(TypedDict):
    """The host's own work, measured where the program ran."""

    source: Literal["measured"]
    unit: Literal["step", "round"]
    rounds: Count
    kind: Literal["data", "disk", "python", "waiting"]
    work_ns: Count
    batch_ns: Count | None
    workers: Count
    step_with_host_ns: Count
    makes_data: bool
    waited_share: Share
    io_bytes: Count
    file: str
    line: int
    function: str
    workers_that_would_hide_it: Count | None


class Edit(TypedDict):
    """Replace the characters from (`line`, `column`) to (`end_line`, `end_column`), by 1 and by 0, with `text`."""

    file: str
    line: Annotated[int, Meta(ge=1)]
    column: Count
    end_line: Annotated[int, Meta(ge=1)]
    end_column: Count
    text: str


class Finding(TypedDict):
    """What is wrong at a line, what it costs and what to do; `edit` does it where that is mechanical."""

    edit: Edit | None
    code: str
    severity: Literal["error", "warning", "info"]
    file: str
    line: int
    function: str
    message: str
    advice: str
    count: Count
    lost_ns: Count
    size_bytes: Count
    saved_share: float | None
    saved_of: str
    device: int
    other: Frame | None
    allocated: Frame | None
    stack: list[dict[str, str | int]]


class Timing(TypedDict):
    """The steady step, what each moment of a device was spent on, and the operators that took most of it."""

    steps: Count
    step_ns: Count | None
    step_range_ns: tuple[Count, Count] | None
    measured_near: bool | None
    first_step_ns: int | None
    steps_per_s: float | None
    first_uses: list[dict[str, str | int]]
    devices: list[dict[str, int | Cause]]
    operators: list[dict[str, str | int | float | None]]
    samples: dict[str, str | int | float | None] | None


class Device(TypedDict):
    """One device's totals; bytes are null where they are not known."""

    index: Count
    name: str
    memory_bytes: Count | None
    peak_allocated_bytes: Count | None
    peak_reserved_bytes: Count | None
    peak_source: Literal["modelled", "measured"]
    peak_band: float | None
    peak_at_most_bytes: Count | None
    peak_unsure: str | None
    peak: Json | None
    kernels: Count
    kernel_ns: Count
    copies: Count
    copied_bytes: Count
    collectives: Count
    busy_share: Share
    synchronizations: Count
    wait_ns: Count
    waits: list[dict[str, str | int]]
    transfers: list[dict[str, str | int]]


class Step(TypedDict):
    """An optimizer's step."""

    number: int
    start_ns: int
    end_ns: int
    kernels: Count
    kernel_ns: Count
    copied_bytes: Count
    synchronizations: Count


class Ending(TypedDict):
    """Of `windtunnel run --json` alone: how it ended."""

    exit_code: int
    program_exit_code: int
    gates: list[str]
    lost: list[str]


class Report(TypedDict):
    """`run --json`, `report --json` and `--report run.json`: times in whole ns, sizes in bytes, shares from 0 to 1."""

    schema_version: Literal[2]
    emulated: bool
    times: Times
    verdict: str
    why: str
    next: str
    program: str
    operations: Count
    duration_ns: Count
    timing: Timing
    host: Host | None
    devices: list[Device]
    compiled: Json | None
    steps: list[Step]
    not_decidable: list[str]
    findings: list[Finding]
    facts: Json
    run: NotRequired[Ending]


def schema_of_type(kind: object, title: str) -> Json:
    """The JSON Schema (2020-12) of a type."""
    schema: Json = msgspec.json.schema(kind)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}
