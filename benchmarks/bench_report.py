"""How large the HTML report of a long run is, how long it takes to write, and to open in headless Chromium.

python -m benchmarks.bench_report --record           # 100,000 operations, and their figures
python -m benchmarks.bench_report --operations 300000
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
from tools.docs import figures

from windtunnel import checks
from windtunnel.reports import html
from windtunnel.trace.operation import Kind, Lane, Signature, Site
from windtunnel.trace.trace import Trace

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

from chromium import CHROMIUM, Browser

CHARTS = ("#timeline-chart", ".memory-chart", "#roofline-chart")
NAMES = ("aten::addmm", "aten::relu", "aten::mm", "aten::native_layer_norm", "aten::_foreach_add_")


def run_of(operations: int) -> Trace:
    """A run of two streams on each of two GPUs, with steps, copies, waits and a history of allocations."""
    trace = Trace()
    gpu = {"name": "Tesla V100-SXM2-16GB", "memory_bytes": 16 << 30, "compute_capability": [7, 0]}
    gpu |= {"peak_flops": {"fp32": 15.7e12, "fp16": 125e12}, "memory_bandwidth_bytes_per_s": 900e9}
    trace.facts["gpus"] = [gpu, gpu]
    names = [trace.signatures.number(Signature(name, flops=1 << 24, read_bytes=1 << 20)) for name in NAMES]
    copy = trace.signatures.number(Signature("Memcpy HtoD (Pinned -> Device)", detail=(("non_blocking", 1),)))
    wait = trace.signatures.number(Signature("aten::_local_scalar_dense"))
    step = trace.signatures.number(Signature("Optimizer.step"))
    lanes = [trace.lanes.number(Lane(device, stream)) for device in range(2) for stream in range(2)]
    host = trace.lanes.number(Lane(-1, 0))
    sites = [trace.sites.number(Site("train.py", line, "main")) for line in range(1, 40)]
    for number in range(operations):
        now, site = number * 9_000, sites[number % len(sites)]
        if number % 500 == 499:
            trace.rows.append((Kind.STEP, host, step, site, now, now, now, number // 500))
        elif number % 100 == 99:
            trace.rows.append((Kind.SYNCHRONIZE, lanes[0], wait, site, now, now, now + 5_000, 0))
        elif number % 50 == 49:
            trace.rows.append((Kind.COPY, lanes[0], copy, site, now, now, now + 7_000, 1 << 16))
        else:
            kind = names[number % len(names)]
            trace.rows.append((Kind.KERNEL, lanes[number % 4], kind, site, now, now + 2_000, now + 9_000, 1 << 20))
        if number % 20 < 2:
            action = 0 if number % 20 == 0 else 2
            trace.memory.append((action, 0, 0, number // 20, 1 << 20, now, site, 4))
    return trace


def used_s(browser: Browser) -> float:
    """Processor time of all processes of Chromium so far."""
    parent = psutil.Process(browser.process.pid)
    return sum(sum(one.cpu_times()[:2]) for one in [parent, *parent.children(recursive=True)])


def opened(page: str) -> list[tuple[str, float, float]]:
    """What a reader does, the seconds until it is on the screen, and Chromium's processor time meanwhile."""
    rows = []
    with tempfile.TemporaryDirectory() as name, Browser(Path(name)) as browser:
        path = Path(name) / "run.html"
        path.write_text(page, "utf-8")
        time.sleep(1)  # Chromium's own start is no part of the page
        reads: list[tuple[str, Callable[[], object]]] = [("opened", lambda: browser.open(path))]
        reads += [(f"scrolled to {chart}", partial(browser.show, chart)) for chart in CHARTS]
        for label, act in reads:
            used, began = used_s(browser), time.perf_counter()
            act()
            browser.settle()
            rows.append((label, time.perf_counter() - began, used_s(browser) - used))
    return rows


def main() -> None:
    """Print size and times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--record", action="store_true", help="write docs/figures/report-page.json")
    options = parser.parse_args()
    trace = run_of(options.operations)
    begin = time.perf_counter()
    findings = checks.run(trace)
    checked = time.perf_counter()
    page = html.render(trace, findings)
    written = time.perf_counter()
    print(f"{len(trace):,} operations: {len(page.encode()) / 1e6:.2f} MB")
    print(f"checks {checked - begin:.2f} s, page {written - checked:.2f} s")
    if CHROMIUM is None:
        print("no Chromium here to open it")
        return
    rows = opened(page)
    for label, seconds, processor in [*rows, ("all", sum(row[1] for row in rows), sum(row[2] for row in rows))]:
        print(f"{label}: {seconds:.2f} s, {processor:.2f} s of processor time")
    if options.record:
        values = {
            "size": f"{len(page.encode()) / 1e6:.2f} MB",
            "open": f"{rows[0][2]:.2f} s",
            "scroll": f"{sum(row[2] for row in rows):.2f} s",
            "checks": f"{checked - begin:.2f} s",
            "write": f"{written - checked:.2f} s",
        }
        figures.record("report-page", {name: {"value": value} for name, value in values.items()})


if __name__ == "__main__":
    main()
