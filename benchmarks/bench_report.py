"""How large the HTML report of a long run is, how long it takes to write, and to open in headless Chromium.

python benchmarks/bench_report.py                    # 100,000 operations
python benchmarks/bench_report.py --operations 300000
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from understudy import checks
from understudy.reports import html
from understudy.trace.operation import Kind, Lane, Signature, Site
from understudy.trace.trace import Trace

NAMES = ("aten::addmm", "aten::relu", "aten::mm", "aten::native_layer_norm", "aten::_foreach_add_")
READY = """<script>
addEventListener("load", () => requestAnimationFrame(() => setTimeout(() => {
  const result = document.createElement("pre");
  result.id = "ready";
  result.textContent = String(performance.now());
  document.body.append(result);
})));
</script>"""


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


def opened(page: str, chromium: str) -> tuple[float, float]:
    """Seconds until the page has drawn its charts, as its own clock says; and of processor time, start-up included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "run.html"
        path.write_text(page.replace("</body>", READY + "</body>", 1), "utf-8")
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={name}/profile",
            "--timeout=300000",
        ]
        done = subprocess.run(
            [chromium, *flags, "--dump-dom", path.as_uri()], capture_output=True, text=True, check=True
        )
    found = re.search(r'<pre id="ready">([\d.]+)</pre>', done.stdout)
    if found is None:
        raise RuntimeError("the page did not say when it was ready")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return float(found[1]) / 1000, used


def main() -> None:
    """Print size and times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=100_000)
    trace = run_of(parser.parse_args().operations)
    begin = time.perf_counter()
    findings = checks.run(trace)
    checked = time.perf_counter()
    page = html.render(trace, findings)
    written = time.perf_counter()
    print(f"{len(trace):,} operations: {len(page.encode()) / 1e6:.2f} MB")
    print(f"checks {checked - begin:.2f} s, page {written - checked:.2f} s")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        print("no Chromium here to open it")
        return
    seconds, processor = opened(page, chromium)
    print(f"opened in {seconds:.2f} s; Chromium took {processor:.2f} s of processor time, its start included")


if __name__ == "__main__":
    main()
