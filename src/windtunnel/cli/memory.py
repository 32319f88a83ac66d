"""`windtunnel memory`: replay a memory snapshot through the allocator, and ask what other settings would have done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from windtunnel import checks
from windtunnel.analysis.remedies import SETTINGS
from windtunnel.analysis.replay import ReplayResult, replay
from windtunnel.analysis.what_if import WhatIf, WhatIfRow, what_if
from windtunnel.cli._options import verbose_option
from windtunnel.cli._progress import progress_of
from windtunnel.errors import UsageError
from windtunnel.measure import snapshot
from windtunnel.reports.parts import figures, page
from windtunnel.reports.parts.figures import Figure
from windtunnel.reports.parts.peak import peaks
from windtunnel.reports.parts.summary import RECORD, UNNAMED_LINES, holders_words
from windtunnel.trace.finding import Finding
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_bytes, format_share, plural

DIFFERS, DOES_NOT_FIT = 1, 65
MIB, GIB = 1 << 20, 1 << 30
HOLDERS = 4  # lines that held the peak
WORTH = 0.03  # of the reserved memory: what a setting must save to be named
UNLIMITED = "replayed on a GPU of unlimited memory; --memory-mib limits it"


@click.command("memory")
@click.argument("path", metavar="SNAPSHOT")
@click.option(
    "--alloc-conf",
    "confs",
    metavar="TEXT",
    multiple=True,
    help="What if PYTORCH_CUDA_ALLOC_CONF had said this? May be given several times.",
)
@click.option("--memory-mib", type=click.IntRange(min=1), metavar="N", help="Memory of the GPU in the what-if, in MiB.")
@click.option("--plot", metavar="PATH.html", help="Draw the reserved and allocated memory under each setting.")
@verbose_option
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(
    path: str, confs: tuple[str, ...], memory_mib: int | None, plot: str | None, verbose: bool, as_json: bool
) -> int:
    """Say who held the peak of a memory SNAPSHOT, what was fragmentation, and which allocator setting would help.

    SNAPSHOT is a file of torch.cuda.memory._dump_snapshot or of `windtunnel run --report out.snapshot.pickle`. Its
    requests and frees go through windtunnel's allocator, which does not see the recorded addresses. The exit code is
    0 when every placement agrees with the recorded one (or differs only because the driver put segments elsewhere)
    and 1 when not; 65 when `--memory-mib` is given and no setting that was tried fits into it.

    \b
    windtunnel memory out.snapshot.pickle
    windtunnel memory out.snapshot.pickle --alloc-conf expandable_segments:True --plot what-if.html
    """
    if plot is not None:
        _require_html(plot)
    with progress_of("replaying", 1 + 1 + len(confs or SETTINGS)) as tell:
        tell("the recording")
        results = replay(path)
        table = what_if(path, confs or SETTINGS, None if memory_mib is None else memory_mib * MIB, tell)
    asked = table if confs or plot else None
    if plot is not None:
        Path(plot).write_text(_page(table), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(_as_dict(path, results, asked), indent=1))
    else:
        click.echo("\n".join(_lines(path, results, table, verbose or bool(confs))))
    if not all(result.explained for result in results):
        return DIFFERS
    return DOES_NOT_FIT if table.memory_bytes and not all(any(_fits(rows)) for rows in _by_device(table)) else 0


def _by_device(table: WhatIf) -> list[list[WhatIfRow]]:
    """Each device's rows, the recorded settings first."""
    devices = dict.fromkeys(row.device for row in table.rows)
    return [[row for row in table.rows if row.device == device] for device in devices]


def _fits(rows: Sequence[WhatIfRow]) -> list[bool]:
    return [not row.out_of_memory for row in rows]


def _as_dict(path: str, results: Sequence[ReplayResult], table: WhatIf | None) -> Json:
    return {
        "path": path,
        "agrees": all(result.explained for result in results),
        "devices": [result.to_json() for result in results],
        "what_if": None if table is None else table.to_json(),
    }


def _lines(path: str, results: Sequence[ReplayResult], table: WhatIf | None, verbose: bool) -> list[str]:
    if not results:
        return [
            f"{path}: this snapshot is empty, no device holds a segment or an event",
            "  record while the GPU is used: `torch.cuda.memory._record_memory_history()` at the program's start, "
            "`_dump_snapshot` at its end",
        ]
    trace = snapshot.load(path)
    findings = checks.run(trace)
    rows = {(row.device, row.alloc_conf): row for row in table.rows} if table is not None else {}
    lines = []
    for result in results:
        mine = [row for (device, _), row in rows.items() if device == result.device]
        lines += _answer(result, trace, [one for one in findings if one.device == result.device], mine)
        if table is not None and table.memory_bytes and mine:
            lines.append(f"  {_room(mine, table.memory_bytes)}")
        if verbose or not result.explained:
            lines += _replay_lines(result)
        lines.append(f"  {_agreement(result)}")
    if table is not None and verbose:
        lines += ["", *_what_if_lines(table)]
    return lines


def _answer(result: ReplayResult, trace: Trace, findings: list[Finding], rows: list[WhatIfRow]) -> list[str]:
    """Who held the peak, how much was fragmentation, what would help."""
    unused = result.peak_reserved_bytes - result.peak_allocated_bytes
    share = unused / result.peak_reserved_bytes if result.peak_reserved_bytes else 0.0
    lines = [
        f"cuda:{result.device}: {format_bytes(result.peak_allocated_bytes)} allocated at the peak, "
        f"{format_bytes(result.peak_reserved_bytes)} reserved; {format_share(share)} of that was cached or fragmented"
    ]
    held = peaks(trace).get(result.device)
    if held is not None and held.allocated_bytes:
        words = holders_words(held, HOLDERS) or (UNNAMED_LINES if result.allocations else "")
        lines += [f"  {words}"] if words else []
        known = {name: size for name, size in held.categories.items() if name != "other"}
        if known:
            lines.append("  made of " + ", ".join(f"{name} {format_bytes(size)}" for name, size in known.items()))
    for finding in findings:
        if finding.code == "out-of-memory":
            message = finding.message.partition("; most of it held by")[0]  # as the lines above say
            lines += [f"  ran out of memory: {message}", f"  fix: {finding.advice}"]
            return lines
    if rows and result.allocations:
        lines.append(f"  {_help(rows)}")
    return lines


def _help(rows: list[WhatIfRow]) -> str:
    """Which setting needs least, by replay."""
    own, *others = rows
    best = min(others, key=lambda row: row.peak_reserved_bytes, default=own)
    saved = own.peak_reserved_bytes - best.peak_reserved_bytes
    if saved < WORTH * own.peak_reserved_bytes:
        return f"no allocator setting saves {format_share(WORTH)} of it (replayed: {len(others)} settings)"
    return (
        f"PYTORCH_CUDA_ALLOC_CONF={best.alloc_conf} would reserve {format_bytes(best.peak_reserved_bytes)}, "
        f"{format_bytes(saved)} less (replayed)"
    )


def _room(rows: list[WhatIfRow], memory_bytes: int) -> str:
    """Whether it fits into the memory that was given, and under which settings."""
    own = rows[0]
    if not own.out_of_memory:
        return f"fits into {format_bytes(memory_bytes)} (replayed)"
    words = f"does not fit: {format_bytes(own.over_bytes)} over on cuda:{own.device}, which has "
    fitting = [row.alloc_conf for row, fits in zip(rows, _fits(rows), strict=True) if fits]
    if fitting:
        return f"{words}{format_bytes(memory_bytes)}; with PYTORCH_CUDA_ALLOC_CONF={fitting[0]} it fits (replayed)"
    return f"{words}{format_bytes(memory_bytes)}, nor under any setting that was tried (replayed)"


def _agreement(result: ReplayResult) -> str:
    if not result.allocations:
        return RECORD
    if result.agrees:
        return f"our replay agrees with every placement ({result.placements_agree} of {result.allocations})"
    if result.explained:
        return (
            f"our replay agrees with every placement ({result.allocations} of {result.allocations}), given the "
            "driver's recorded addresses: these decide between free blocks of equal size"
        )
    return f"our replay {result.verdict}"


def _replay_lines(result: ReplayResult) -> list[str]:
    lines = [
        f"  settings {result.alloc_conf or 'the defaults'}; {plural(result.events, 'event')}",
        f"  placements {result.placements_agree} of {result.allocations}, "
        f"driver calls {result.driver_calls_agree} of {result.driver_calls}, "
        f"segments at the end {result.final_segments_agree} of {result.final_segments}, "
        f"blocks at the end {result.final_blocks_agree} of {result.final_blocks}",
    ]
    if result.start_segments:
        lines.append(
            f"  {plural(result.start_segments, 'segment')} ({format_bytes(result.start_bytes)}) were there before the "
            "recording began"
        )
    first = result.first_disagreement
    if first is not None:
        lines.append(
            f"  first difference: event {first.event}, {first.action} of {first.size} bytes: recorded "
            f"{first.recorded}, here {first.replayed}"
        )
    return lines


def _name(row: WhatIfRow, recorded: bool) -> str:
    return f"{row.alloc_conf or 'defaults'}{' (recorded)' if recorded else ''}"


def _what_if_lines(table: WhatIf) -> list[str]:
    rows = [
        ("device", "settings", "peak reserved", "peak allocated", "fragmentation", "driver calls", "retries", "OOM")
    ]
    seen: set[int] = set()
    for row in table.rows:
        recorded = row.device not in seen
        seen.add(row.device)
        rows.append(
            (
                f"cuda:{row.device}",
                _name(row, recorded),
                format_bytes(row.peak_reserved_bytes),
                format_bytes(row.peak_allocated_bytes),
                format_share(row.fragmentation),
                str(row.driver_calls),
                str(row.retries),
                str(row.out_of_memory),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if table.memory_bytes is None:
        lines.append(UNLIMITED)
    if table.start_blocks:
        lines.append(
            f"{plural(table.start_blocks, 'block')} from before the recording are allocated first, in order of address"
        )
    return lines


def _require_html(path: str) -> None:
    if not path.endswith(".html"):
        raise UsageError(f"--plot writes an HTML page, so {path!r} should end in .html")
    page.require()


def _page(table: WhatIf) -> str:
    """The timelines as one page that needs no network: a figure a device, a colour for each setting."""
    devices: dict[int, list[WhatIfRow]] = {}
    for row in table.rows:
        devices.setdefault(row.device, []).append(row)
    return figures.render(
        f"{Path(table.path).name} under other allocator settings",
        [_figure(device, rows) for device, rows in devices.items()],
        [
            "Replayed. Solid lines show reserved memory, dashed lines allocated memory.",
            *([UNLIMITED] if table.memory_bytes is None else []),
        ],
    )


def _figure(device: int, rows: list[WhatIfRow]) -> Figure:
    traces: list[Json] = []
    most: list[str] = []
    largest = max((size for row in rows for _, _, size in row.timeline), default=0)
    unit, called = (GIB, "GiB") if largest >= 2 * GIB else (MIB, "MiB")
    for number, row in enumerate(rows):
        name = _name(row, number == 0)
        events = [event for event, _, _ in row.timeline]
        reserved, allocated = ([sizes[index] for sizes in row.timeline] for index in (2, 1))
        most.append(f"{name}: {format_bytes(max(reserved, default=0))}")
        for what, sizes, dash in (("reserved", reserved, ""), ("allocated", allocated, figures.DASHED)):
            traces.append(
                {
                    "kind": "line",
                    "name": name,
                    "colour": figures.ORDER[number % len(figures.ORDER)],
                    "dash": dash,
                    "stepped": True,
                    "x": events,
                    "y": [size / unit for size in sizes],
                    "unlisted": what == "allocated",
                }
            )
    layout = {
        "height": figures.HEIGHT,
        "xaxis": figures.axis("event of the recording, by its number", [x for trace in traces for x in trace["x"]]),
        "yaxis": figures.axis(f"memory ({called})", [y for trace in traces for y in trace["y"]]),
    }
    spoken = f"Peak of the reserved memory on cuda:{device}: {'; '.join(most)}."
    return Figure(f"cuda:{device}", spoken, {"traces": traces, "layout": layout})
