"""The HTML report: one file, nothing from elsewhere, and nothing of the program's text that is not escaped."""

from __future__ import annotations

import base64
import json
import re
import struct
from html.parser import HTMLParser
from importlib import util

import pytest
from traces import Program

from windtunnel import checks, reports
from windtunnel.errors import UsageError
from windtunnel.reports import html
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Kind, Lane, Signature, Site

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class Elements(HTMLParser):
    """Every start tag with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def data_of(page: str):
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert block is not None
    return json.loads(block[1])


def unpacked(text: str, count: int) -> list[int]:
    data = base64.b64decode(text)
    return list(struct.unpack(f"<{count}{'H' if len(data) == 2 * count else 'I'}", data))


def test_the_page_says_what_the_summary_says(training):
    findings = checks.run(training.trace)
    page = html.render(training.trace, findings)
    assert "EMULATED" in page
    assert page.count('class="finding') == len(findings)
    assert "<td>train.py:15</td>" in page


def test_the_page_loads_nothing(training):
    elements = Elements(html.render(training.trace, [])).found
    assert not [tag for tag, attributes in elements if "src" in attributes or tag == "link"]
    policy = next(
        attributes["content"] for tag, attributes in elements if "content" in attributes and "http-equiv" in attributes
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_what_the_program_named_is_escaped(program, tmp_path):
    script = tmp_path / "x.py"
    script.write_text(f"# {HOSTILE}\n")
    program.trace.facts["program"] = HOSTILE
    program.row(Kind.KERNEL, Lane(0, 0), Signature(HOSTILE), Site(HOSTILE, 1, HOSTILE), 0, 10, 0)
    program.memory("alloc", 1, 512, line=1)
    program.trace.sites.append(Site(HOSTILE, 1))
    findings = [
        Finding("host-sync", "warning", f"`{HOSTILE}` {HOSTILE}", HOSTILE, Site(str(script), 1, HOSTILE)),
        Finding("host-sync", "warning", "x", "y", Site(HOSTILE, 1, "", ((HOSTILE, 1, HOSTILE),))),
    ]
    page = html.render(program.trace, findings)
    tags = [tag for tag, _ in Elements(page).found]
    assert tags.count("script") == 3
    assert "img" not in tags
    assert data_of(page)["timeline"]["whats"][0][1] == HOSTILE


def test_arithmetic_has_a_unit():
    assert [html.format_flop(flop) for flop in (0, 12, 5_620, 5.62e13)] == ["", "12 FLOP", "5.62 kFLOP", "56.2 TFLOP"]


def test_code_around_a_finding_is_shown(training, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("".join(f"line_{number} = {number} < 5\n" for number in range(1, 20)))
    training.trace.folder = str(tmp_path)
    page = html.render(training.trace, [Finding("host-sync", "warning", "m", "a", Site("train.py", 10))])
    assert "line_7 = 7 &lt; 5" in page
    assert "line_13" in page
    assert "line_14" not in page
    assert re.search(r'class="marked"><span class="number">   10</span>  line_10', page)


def test_the_timeline_holds_every_operation(program):
    program.kernel("a", ns=1000).kernel("b", ns=2000, stream=1).kernel("a", ns=3000)
    line = data_of(html.render(program.trace, []))["timeline"]
    assert [(lane["label"], lane["count"]) for lane in line["lanes"]] == [
        ("host main thread", 2),
        ("cuda:0 stream 0", 2),
        ("cuda:0 stream 1", 1),
    ]
    launches, first = line["lanes"][:2]
    assert {line["classes"][line["whats"][what][0]] for what in unpacked(launches["whats"], 2)} == {"host launches"}
    assert unpacked(launches["durations"], 2) == [5_000, 5_000]  # each until the next one
    assert unpacked(first["starts"], 2) == [0, 10_000]
    assert unpacked(first["durations"], 2) == [1000, 3000]
    assert [line["whats"][what][1] for what in unpacked(first["whats"], 2)] == ["a", "a"]


def test_long_runs_keep_their_range(program):
    program.kernel(ns=1000).host(3_600_000_000_000).kernel(ns=1_000_000_000)
    line = data_of(html.render(program.trace, []))["timeline"]
    lane = next(lane for lane in line["lanes"] if lane["label"] == "cuda:0 stream 0")
    start = unpacked(lane["starts"], lane["count"])[1] * line["unit_ns"]
    assert abs(start - 3_600_000_005_000) <= 2 * line["unit_ns"]


def test_memory_over_time_names_the_peak_s_owners(program):
    program.kernel().memory("alloc", 1, 1000, 5, "parameter").memory("alloc", 2, 3000, 6, "activation").kernel()
    program.memory("free_completed", 2, 3000, 6, "activation").kernel()
    page = html.render(program.trace, [])
    (device,) = data_of(page)["memory"]
    assert device["peak_bytes"] == 4000
    assert device["categories"] == {"activation": [0, 3000, 0], "parameter": [1000, 1000, 1000]}
    assert [(owner["line"], owner["size_bytes"]) for owner in device["owners"]] == [
        ("train.py:6", 3000),
        ("train.py:5", 1000),
    ]


def test_the_peak_survives_thinning(program):
    for number in range(5000):
        program.memory("alloc", number, 10, 5)
        if number == 777:
            program.memory("alloc", 9999, 10**9, 6).memory("free_completed", 9999, 10**9, 6)
    (device,) = data_of(html.render(program.trace, []))["memory"]
    assert len(device["times"]) <= 2000
    assert max(device["categories"]["other"]) == device["peak_bytes"] == 778 * 10 + 10**9


@pytest.mark.long
def test_a_hundred_thousand_operations_stay_below_ten_megabytes():
    program = Program()
    for number in range(100_000):
        program.kernel(f"aten::op{number % 50}", line=number % 300)
    assert len(html.render(program.trace, []).encode()) < 10 << 20


def test_a_missing_package_is_named(training, tmp_path, monkeypatch):
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"windtunnel\[report\]"):
        reports.write(tmp_path / "run.html", training.trace, [])


def test_a_run_of_waits_alone_has_a_timeline(program):
    program.now_ns = 10**13
    program.wait("cudaDeviceSynchronize", line=3)
    program.trace.facts["source"] = "measured"
    page = html.render(program.trace, [])
    assert "the profile holds no work on a GPU" in page


def test_what_the_host_does_after_the_last_operation_is_left_out(program):
    program.kernel(ns=1_000).wait("cudaStreamSynchronize", line=3).host(10**13)
    lanes = data_of(html.render(program.trace, []))["timeline"]["lanes"]
    assert [(lane["label"], lane["count"]) for lane in lanes] == [("host main thread", 2), ("cuda:0 stream 0", 1)]
    host, device = (unpacked(lane["durations"], lane["count"]) for lane in lanes)
    assert (host[-1], device) == (1_000, [1_000])


SCRIPT = """
x = x.to("cuda")
loss = net(x)
loss.backward()
optimizer.step()
"""


def steps(program, tmp_path, count=4):
    """Steps whose lines say which phase they are; each takes and gives back memory, most of it in its backward pass."""
    (tmp_path / "train.py").write_text(SCRIPT)
    program.trace.folder = str(tmp_path)
    for number in range(1, count + 1):
        program.copy("Memcpy HtoD (Pageable -> Device)", 1000, 2)
        program.memory("alloc", 1, 1000, 3, "activation").kernel("aten::mm", ns=20_000, line=3)
        program.memory("alloc", 2, 3000, 4, "temporary").kernel("aten::mm", ns=40_000, line=4)
        program.memory("free_completed", 2, 3000, 4).memory("alloc", 3, 500, 5, "optimizer")
        program.kernel("aten::_foreach_mul_", ns=10_000, line=5).wait("cudaDeviceSynchronize", line=5)
        program.memory("free_completed", 1, 1000, 5).memory("free_completed", 3, 500, 5).step(number)


def test_steps_and_phases_have_borders(program, tmp_path):
    steps(program, tmp_path)
    line = data_of(html.render(program.trace, []))["timeline"]
    assert [number for _, number in line["steps"]] == [1, 2, 3, 4]
    assert [name for _, _, name in line["phases"]] == 4 * ["data", "forward", "backward", "optimizer"]
    lengths = {name: length for _, length, name in line["phases"]}
    assert (lengths["forward"], lengths["backward"], lengths["optimizer"]) == (20_000, 40_000, 10_000)
    assert line["step_ns"] == [line["steps"][0][0], line["steps"][2][0]]


def test_without_a_backward_pass_nothing_is_a_phase(program):
    program.kernel(line=3).kernel(line=4).step(1)
    assert data_of(html.render(program.trace, []))["timeline"]["phases"] == []


def test_memory_shows_a_steady_step_with_its_phases_and_peak(program, tmp_path):
    steps(program, tmp_path)
    program.trace.facts["devices"] = [{"memory_bytes": 10_000, "context_bytes": 2_000}]
    (device,) = data_of(html.render(program.trace, []))["memory"]
    step = device["step"]
    assert step["number"] == 2
    assert [border["words"] for border in step["borders"]] == ["forward", "backward", "optimizer"]
    assert step["peak"] == {"at": 1, "size_bytes": 4000}
    assert step["categories"]["temporary"] == [0, 3000, 0, 0, 0, 0]
    assert device["capacity_bytes"] == 8_000


def test_code_is_shown_without_its_common_indent(training, tmp_path):
    (tmp_path / "train.py").write_text("".join(f"        line_{number} = 0\n" for number in range(1, 21)))
    training.trace.folder = str(tmp_path)
    page = html.render(training.trace, [Finding("host-sync", "warning", "m", "a", Site("train.py", 10))])
    assert re.search(r'class="marked"><span class="number">   10</span>  line_10', page)


def test_a_snapshot_has_no_figures_of_work(program):
    program.memory("alloc", 0, 1 << 30, 5).memory("alloc", 1, 1 << 29, 6)
    program.trace.facts |= {"recorded_by": "torch.cuda.memory", "source": "measured", "not_decidable": ["host-sync"]}
    page = html.render(program.trace, [])
    assert re.findall(r"<dt>(.*?)</dt>", page) == ["peak of memory", "findings"]
    assert "a snapshot holds no work, so only its memory is judged" in page
    assert "host-sync" not in page
