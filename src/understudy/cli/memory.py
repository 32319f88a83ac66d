"""`understudy memory`: replay a memory snapshot through the allocator, and ask what other settings would have done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib import util
from pathlib import Path

import click

from understudy.analysis.replay import ReplayResult, replay
from understudy.analysis.what_if import WhatIf, WhatIfRow, what_if
from understudy.errors import UsageError
from understudy.trace.plain import Json
from understudy.trace.units import format_bytes, format_share, plural

DIFFERS = 1
MIB = 1 << 20


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
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(path: str, confs: tuple[str, ...], memory_mib: int | None, plot: str | None, as_json: bool) -> int:
    """Replay a memory SNAPSHOT, recorded on a real GPU or here, and say whether the allocator places all alike.

    SNAPSHOT is a file of torch.cuda.memory._dump_snapshot or of `understudy run --report out.snapshot.pickle`. Its
    requests and frees go through understudy's allocator, which does not see the recorded addresses. The exit code is
    0 when every placement agrees (or differs only because the driver put segments elsewhere) and 1 when not.

    \b
    understudy memory out.snapshot.pickle
    understudy memory out.snapshot.pickle --alloc-conf expandable_segments:True --plot what-if.html
    """
    if plot is not None:
        _require_plotly(plot)
    results = replay(path)
    table = what_if(path, confs, None if memory_mib is None else memory_mib * MIB) if confs or plot else None
    if plot is not None and table is not None:
        Path(plot).write_text(_page(table), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(_as_dict(path, results, table), indent=1))
    else:
        click.echo("\n".join(_lines(path, results, table)))
    return 0 if all(result.explained for result in results) else DIFFERS


def _as_dict(path: str, results: Sequence[ReplayResult], table: WhatIf | None) -> Json:
    return {
        "path": path,
        "agrees": all(result.explained for result in results),
        "devices": [result.to_json() for result in results],
        "what_if": None if table is None else table.to_json(),
    }


def _lines(path: str, results: Sequence[ReplayResult], table: WhatIf | None) -> list[str]:
    if not results:
        return [f"{path}: no device of this snapshot holds a segment or an event"]
    lines = [line for result in results for line in _replay_lines(result)]
    if table is not None:
        lines += ["", *_what_if_lines(table)]
    return lines


def _replay_lines(result: ReplayResult) -> list[str]:
    lines = [
        f"cuda:{result.device}: {result.verdict}",
        f"  settings {result.alloc_conf or 'the defaults'}; {plural(result.events, 'event')}",
        f"  placements {result.placements_agree} of {result.allocations}, "
        f"driver calls {result.driver_calls_agree} of {result.driver_calls}, "
        f"segments at the end {result.final_segments_agree} of {result.final_segments}, "
        f"blocks at the end {result.final_blocks_agree} of {result.final_blocks}",
        f"  peak {format_bytes(result.peak_allocated_bytes)} allocated, "
        f"{format_bytes(result.peak_reserved_bytes)} reserved",
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
    if table.start_blocks:
        lines.append(
            f"{plural(table.start_blocks, 'block')} from before the recording are allocated first, in order of address"
        )
    return lines


def _require_plotly(path: str) -> None:
    if not path.endswith(".html"):
        raise UsageError(f"--plot writes an HTML page, so {path!r} should end in .html")
    if util.find_spec("plotly") is None:
        raise UsageError("--plot is drawn with plotly, which is not installed: pip install 'understudy[report]'")


def _page(table: WhatIf) -> str:
    """The timelines as one page that needs no network."""
    from plotly.graph_objects import Figure, Scatter

    figure = Figure()
    seen: set[int] = set()
    for row in table.rows:
        recorded = row.device not in seen
        seen.add(row.device)
        events = [event for event, _, _ in row.timeline]
        name = f"cuda:{row.device} {_name(row, recorded)}"
        values = {
            "reserved": [reserved / MIB for _, _, reserved in row.timeline],
            "allocated": [allocated / MIB for _, allocated, _ in row.timeline],
        }
        for what, sizes in values.items():
            dash = "solid" if what == "reserved" else "dot"
            figure.add_trace(
                Scatter(
                    x=events, y=sizes, name=f"{escape(name)}: {what}", mode="lines", line={"dash": dash, "shape": "hv"}
                )
            )
    figure.update_layout(
        title=f"{escape(Path(table.path).name)} under other allocator settings (replayed)",
        xaxis_title="event of the recording",
        yaxis_title="MiB",
    )
    return str(figure.to_html(include_plotlyjs=True, full_html=True))
