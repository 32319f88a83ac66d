"""The HTML report in headless Chromium: it draws, it zooms, it asks for nothing, and it stays quiet in the console.

A script added to a copy of the page plays the user and writes what it saw into the page, which is then dumped.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from chromium import CHROMIUM

from understudy import checks
from understudy.reports import html
from understudy.trace.finding import Finding
from understudy.trace.operation import Kind, Lane, Signature, Site

sys.path.insert(0, str(Path(__file__).parents[1] / "checks"))

from traces import HTOD, Program

HOSTILE = "<img src=x onerror='window.hacked=1'><a href='javascript:window.hacked=1'>x</a>"
WATCHER = """<script>
window.seen = {errors: [], refused: []};
addEventListener("error", (event) => seen.errors.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => seen.refused.push(event.blockedURI));
</script>"""
USER = """<script>
const chart = document.getElementById("timeline-chart");
const bars = () => chart.data.reduce((sum, trace) => sum + trace.x.length, 0);
const range = () => chart.layout.xaxis.range.map(Number);
const press = (selector) => document.querySelector(selector).click();
seen.all = {bars: bars(), range: range(), lanes: chart.layout.yaxis.categoryarray};
for (let i = 0; i < 12; i++) press('[data-zoom="0.5"]');
seen.close = {bars: bars(), range: range(), text: chart.data[0].customdata[0]};
press('[data-move="0.5"]');
seen.moved = {range: range()};
press('[data-zoom="all"]');
seen.back = {range: range()};
Plotly.relayout(chart, {"xaxis.range[0]": 1, "xaxis.range[1]": 1.2}).then(() => {
  seen.dragged = {bars: bars(), range: range()};
  seen.drawn = document.querySelectorAll(".chart .main-svg").length;
  seen.wide = document.documentElement.scrollWidth <= window.innerWidth;
  seen.requests = performance.getEntriesByType("resource").map((entry) => entry.name);
  seen.hacked = window.hacked === 1;
  seen.ready = performance.now();
  const result = document.createElement("pre");
  result.id = "seen";
  result.textContent = JSON.stringify(seen);
  document.body.append(result);
});
</script>"""


def program(steps: int) -> Program:
    made = Program(gpus=2)
    made.trace.facts["gpus"] = [
        {
            "name": "Tesla V100-SXM2-16GB",
            "memory_bytes": 16 << 30,
            "compute_capability": [7, 0],
            "peak_flops": {"fp32": 15.7e12, "fp16": 125e12},
            "memory_bandwidth_bytes_per_s": 900e9,
        }
    ] * 2
    made.row(Kind.KERNEL, Lane(0, 0), Signature(HOSTILE), Site(HOSTILE, 1, HOSTILE), 0, 10, 0)
    for step in range(steps):
        made.copy(HTOD, 1 << 16, line=10).memory("alloc", step, 1 << 16, 10, "input")
        for kernel in range(10):
            made.kernel("aten::addmm", ns=8_000, line=12, flops=1 << 24, stream=kernel % 2)
        made.kernel("aten::relu", line=13, device=1).item(line=15).step(step)
    return made


def visit(page: str, folder: Path, *options: str):
    path = folder / "run.html"
    path.write_text(page.replace("<body>", "<body>" + WATCHER, 1).replace("</body>", USER + "</body>", 1), "utf-8")
    done = subprocess.run(
        [
            str(CHROMIUM),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={folder / 'profile'}",
            "--virtual-time-budget=20000",
            *options,
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    result = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert result is not None
    return json.loads(unescape(result[1]))


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    made = program(steps=300)
    findings = checks.run(made.trace)
    findings.append(Finding("host-sync", "info", HOSTILE, HOSTILE, Site(HOSTILE, 3, HOSTILE)))
    return visit(html.render(made.trace, findings), tmp_path_factory.mktemp("page"))


def test_nothing_goes_wrong_and_nothing_is_asked_for(seen):
    assert seen["errors"] == []
    assert seen["refused"] == []
    assert [name for name in seen["requests"] if not name.startswith(("data:", "blob:"))] == []


def test_what_the_program_named_stays_text(seen):
    assert seen["hacked"] is False


def test_timeline_memory_and_roofline_are_drawn(seen):
    assert seen["drawn"] >= 3
    assert sorted(seen["all"]["lanes"]) == ["cuda:0 stream 0", "cuda:0 stream 1", "cuda:1 stream 0", "host thread 0"]
    assert seen["all"]["bars"] > 500


def test_zooming_in_shows_single_operations(seen):
    whole, close = seen["all"]["range"], seen["close"]["range"]
    assert close[1] - close[0] < (whole[1] - whole[0]) / 1000
    assert 0 < seen["close"]["bars"] < 100
    assert "for " in seen["close"]["text"]


def test_moving_and_going_back(seen):
    close, moved = seen["close"]["range"], seen["moved"]["range"]
    assert moved[0] == pytest.approx((close[0] + close[1]) / 2)
    assert seen["back"]["range"] == pytest.approx(seen["all"]["range"])


def test_dragging_a_range_draws_it_anew(seen):
    assert seen["dragged"]["range"] == pytest.approx([1, 1.2])
    assert 0 < seen["dragged"]["bars"] < 200


def test_a_phone_scrolls_in_one_direction_only(tmp_path):
    made = program(steps=5)
    seen = visit(html.render(made.trace, checks.run(made.trace)), tmp_path, "--window-size=500,900")
    assert seen["wide"] is True


def test_a_hundred_thousand_operations_can_be_looked_at(tmp_path):
    made = program(steps=7_700)
    seen = visit(html.render(made.trace, checks.run(made.trace)), tmp_path)
    assert seen["errors"] == []
    assert 0 < seen["close"]["bars"] < seen["all"]["bars"] < 5_000
