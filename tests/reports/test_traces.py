"""The formats that other tools read: Kineto traces, memory snapshots, SARIF."""

from __future__ import annotations

import gzip
import json
import pickle
from itertools import pairwise

import pytest
from traces import DTOH

from helpers.operations import EventRecord, EventWait, Kernel, submit
from windtunnel import checks, gpus, reports
from windtunnel.errors import UsageError
from windtunnel.machine.memory.settings import parse
from windtunnel.measure import snapshot as snapshot_file
from windtunnel.reports import chrome_trace, kineto, memory_snapshot, sarif
from windtunnel.reports.parts.summary import summarize
from windtunnel.session import build_machine
from windtunnel.trace import kineto as trace_kineto
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Site
from windtunnel.trace.trace import Trace


@pytest.fixture
def events(training):
    training.trace.facts["world_size"] = 2
    document = json.loads(chrome_trace.render(training.trace, []))
    assert document["distributedInfo"]["world_size"] == 2
    return document["traceEvents"]


def of(events, category):
    return [event for event in events if event.get("cat") == category]


def test_kineto_has_the_profiler_s_categories(events):
    assert len(of(events, "kernel")) == 80
    assert len(of(events, "gpu_memcpy")) == 21
    assert {event["name"] for event in of(events, "cuda_runtime")} == {
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
        "cudaStreamSynchronize",
    }
    assert [event["name"] for event in of(events, "user_annotation")] == [f"ProfilerStep#{n}" for n in range(10)]


def test_arrows_lead_from_the_call_to_the_kernel(events):
    calls = {event["args"]["correlation"]: event for event in of(events, "cuda_runtime")}
    starts = {event["id"]: event for event in of(events, "ac2g") if event["ph"] == "s"}
    ends = {event["id"]: event for event in of(events, "ac2g") if event["ph"] == "f"}
    work = [*of(events, "kernel"), *of(events, "gpu_memcpy")]
    assert set(starts) == set(ends) == {event["args"]["correlation"] for event in work}
    for event in work:
        number = event["args"]["correlation"]
        call = calls[number]
        assert call["ts"] <= starts[number]["ts"] <= call["ts"] + call["dur"]
        assert ends[number]["ts"] == event["ts"] >= starts[number]["ts"]
        assert (ends[number]["pid"], ends[number]["tid"]) == (event["pid"], event["tid"]) == (0, 7)


def test_calls_of_a_thread_do_not_overlap(events):
    calls = sorted((event["ts"], event["dur"]) for event in of(events, "cpu_op"))
    for (start, duration), (later, _) in pairwise(calls):
        assert start + duration <= later + 1e-6


def test_each_step_is_shown_on_the_streams_that_worked_for_it(events):
    shown = of(events, "gpu_user_annotation")
    assert [event["name"] for event in shown] == [f"ProfilerStep#{n}" for n in range(10)]
    kernels = of(events, "kernel")
    for event in shown:
        inside = [
            k for k in kernels if event["ts"] <= k["ts"] and k["ts"] + k["dur"] <= event["ts"] + event["dur"] + 1e-6
        ]
        assert len(inside) == 8


def partly_overlapping(events):
    """Events that begin within another of their lane and end after it; Perfetto drops such."""
    found, lanes = [], {}
    for event in events:
        if event["ph"] == "X":
            lanes.setdefault((event["pid"], event["tid"]), []).append(event)
    for lane in lanes.values():
        open_until: list[float] = []
        for event in sorted(lane, key=lambda event: (event["ts"], -event["dur"])):
            end = event["ts"] + event["dur"]
            while open_until and open_until[-1] <= event["ts"] + 1e-6:
                open_until.pop()
            if open_until and end > open_until[-1] + 1e-6:
                found.append(event)
            open_until.append(end)
    return found


def test_nothing_reaches_out_of_what_it_began_in(program):
    program.kernel(line=1).host(40_000, line=2).kernel(line=3).item(line=4).step(1)
    program.kernel(line=5).wait("cudaEventSynchronize", line=6)
    events = json.loads(chrome_trace.render(program.trace, []))["traceEvents"]
    assert partly_overlapping(events) == []
    waits = of(events, "cuda_sync")
    assert [(wait["tid"], wait["args"]["stream"]) for wait in waits] == [(-1, 7), (-1, -1)]


def test_each_call_and_its_work_share_a_number_that_nothing_else_has(events):
    for categories in (("cuda_runtime", "cpu_op"), ("kernel", "gpu_memcpy", "cuda_sync")):
        work = [event for name in categories for event in of(events, name)]
        numbers = [event["args"]["correlation"] for event in work if "correlation" in event["args"]]
        assert len(numbers) == len(set(numbers)) > 0


def test_calls_are_long_enough_for_holistic_trace_analysis_to_count_them(events):
    launches = [event for event in of(events, "cuda_runtime") if event["name"] == "cudaLaunchKernel"]
    assert min(event["dur"] for event in launches) >= 2


def test_a_stream_s_wait_names_the_record_that_it_waits_for():
    machine = build_machine(gpus.parse("V100"), (11, 2), Trace(), parse(""))
    submit(machine, Kernel("aten::mm", stream=0, duration_ns=50_000))
    submit(machine, EventRecord(event=1, stream=0))
    submit(machine, EventWait(event=1, stream=1))
    events = json.loads(chrome_trace.render(machine.trace, []))["traceEvents"]
    (record,) = (event for event in of(events, "cuda_runtime") if event["name"] == "cudaEventRecord")
    (wait,) = (event for event in of(events, "cuda_sync") if event["name"] == "Stream Wait Event")
    assert wait["args"]["wait_on_cuda_event_record_corr_id"] == record["args"]["correlation"]
    assert (wait["args"]["stream"], wait["args"]["wait_on_stream"]) == (8, 7)


def test_collectives_are_named_as_nccl_names_its_kernels():
    assert trace_kineto.kernel_name("all_reduce") == "ncclDevKernel_AllReduce"
    assert trace_kineto.kernel_name("c10d::allgather_") == "ncclDevKernel_Allgather"
    assert trace_kineto.kernel_name("ncclAllReduce") == "ncclDevKernel_AllReduce"


def test_the_compressed_trace_is_the_same_and_repeatable(training):
    packed = kineto.render(training.trace, [])
    assert gzip.decompress(packed).decode() == chrome_trace.render(training.trace, [])
    assert packed == kineto.render(training.trace, [])


def test_suffixes_choose_the_longest_match():
    assert reports.find("run.kineto.json.gz") is kineto
    assert reports.find("run.kineto.json") is chrome_trace
    assert reports.find("run.snapshot.pickle") is memory_snapshot


def test_memory_events_carry_the_totals(program):
    program.memory("segment_alloc", 4096, 2 << 20, line=2).memory("alloc", 4096, 1024, line=2)
    program.memory("free_completed", 4096, 1024, line=2)
    events = json.loads(chrome_trace.render(program.trace, []))["traceEvents"]
    totals = [
        (event["args"]["Total Reserved"], event["args"]["Total Allocated"]) for event in of(events, "cpu_instant_event")
    ]
    assert totals == [(2 << 20, 1024), (2 << 20, 0)]


def test_a_snapshot_holds_the_history_and_what_is_left(program):
    base = 0x7F0000000000
    program.memory("segment_alloc", base, 2 << 20, line=2).memory("alloc", base, 1024, line=3)
    program.memory("alloc", base + 4096, 512, line=4).memory("free_requested", base, 1024, line=3)
    program.memory("free_completed", base, 1024, line=3)
    snapshot = pickle.loads(memory_snapshot.render(program.trace, []))
    assert [event["action"] for event in snapshot["device_traces"][0]] == [
        "segment_alloc",
        "alloc",
        "alloc",
        "free_requested",
        "free_completed",
    ]
    assert snapshot["device_traces"][0][1]["frames"] == [{"filename": "train.py", "line": 3, "name": ""}]
    (segment,) = snapshot["segments"]
    assert (segment["total_size"], segment["allocated_size"], segment["segment_type"]) == (2 << 20, 512, "small")
    assert [(block["address"] - base, block["size"], block["state"]) for block in segment["blocks"]] == [
        (0, 4096, "inactive"),
        (4096, 512, "active_allocated"),
        (4608, (2 << 20) - 4608, "inactive"),
    ]


def test_torch_s_own_tool_reads_the_snapshot(program):
    from torch.cuda import _memory_viz

    program.memory("segment_alloc", 1 << 32, 2 << 20, line=2).memory("alloc", 1 << 32, 1024, line=3)
    snapshot = memory_snapshot.as_dict(program.trace)
    assert "1.0KiB" in _memory_viz.trace(snapshot)
    assert "2.0MiB" in _memory_viz.segsum(snapshot)
    assert "MemoryViz" in _memory_viz.trace_plot(snapshot)


def test_a_snapshot_of_an_emulated_gpu_is_reported_as_one(program, tmp_path):
    program.memory("segment_alloc", 1 << 32, 2 << 20, line=2).memory("alloc", 1 << 32, 1024, line=3)
    path = tmp_path / "run.snapshot.pickle"
    path.write_bytes(memory_snapshot.render(program.trace, []))
    emulated = summarize(snapshot_file.load(path), [])
    assert emulated.verdict.startswith("EMULATED on 2 x Tesla V100-SXM2-16GB: 1.00 KiB allocated (modelled)")
    assert emulated.times_are == "what the allocator recorded"
    data = pickle.loads(path.read_bytes())
    del data["windtunnel"]  # as a real GPU's
    path.write_bytes(pickle.dumps(data))
    measured = summarize(snapshot_file.load(path), [])
    assert measured.verdict.startswith("MEASURED on 1 GPU of unknown model: 1.00 KiB allocated, 2.00 MiB reserved")


def test_a_snapshot_of_ours_names_the_gpus_and_their_memory(program, tmp_path):
    program.memory("segment_alloc", 1 << 32, 2 << 20, line=2).memory("alloc", 1 << 32, 1024, line=3)
    program.trace.facts["gpus"] = [{"name": "Tesla T4", "memory_bytes": 15 << 30, "sms": 40}]
    path = tmp_path / "run.snapshot.pickle"
    path.write_bytes(memory_snapshot.render(program.trace, []))
    report = summarize(snapshot_file.load(path), [])
    assert report.verdict.startswith("EMULATED on 1 x Tesla T4: ")
    assert report.devices[0].memory_bytes == 15 << 30


@pytest.mark.parametrize("gpus", [3, "Tesla T4", [3], [{"name": 4}], [{"name": "T4"}] * 1000])
def test_gpus_that_a_snapshot_names_wrongly_are_unknown(program, tmp_path, gpus):
    program.memory("segment_alloc", 1 << 32, 2 << 20, line=2).memory("alloc", 1 << 32, 1024, line=3)
    data = memory_snapshot.as_dict(program.trace)
    data["windtunnel"]["gpus"] = gpus
    path = tmp_path / "run.snapshot.pickle"
    path.write_bytes(pickle.dumps(data))
    assert "of unknown model" in summarize(snapshot_file.load(path), []).verdict


def test_a_run_without_history_has_no_snapshot(training):
    with pytest.raises(UsageError, match="--memory-history"):
        memory_snapshot.render(training.trace, [])


def test_sarif_places_findings(training, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    training.hazard("unsynchronized-access", 12, 15)
    findings = checks.run(training.trace)
    log = json.loads(sarif.render(training.trace, findings))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    first = run["results"][0]
    assert (first["ruleId"], first["level"]) == ("unsynchronized-access", "error")
    place = first["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("train.py", 15)
    assert first["relatedLocations"][0]["physicalLocation"]["region"]["startLine"] == 12
    assert {result["level"] for result in run["results"]} == {"error", "warning", "note"}
    assert all(run["tool"]["driver"]["rules"][r["ruleIndex"]]["id"] == r["ruleId"] for r in run["results"])


def test_sarif_carries_the_page_of_each_check(training):
    log = json.loads(sarif.render(training.trace, [Finding("host-sync", "warning", "waits", "wait less")]))
    (rule,) = log["runs"][0]["tool"]["driver"]["rules"]
    assert "## Use instead" in rule["help"]["markdown"]
    assert rule["fullDescription"]["text"] == "Lines at which the host waits for a device."


def test_sarif_carries_edits_as_fixes(training, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n\ny = x.sum()\n")
    training.trace.folder = str(tmp_path)
    found = [Finding(code, "error", "early", "wait", Site("train.py", 3)) for code in ("stale-read", "freed-in-use")]
    mended, other = json.loads(sarif.render(training.trace, found))["runs"][0]["results"]
    ((change,),) = (fix["artifactChanges"] for fix in mended["fixes"])
    assert change["artifactLocation"] == {"uri": "train.py"}
    (replacement,) = change["replacements"]
    assert replacement["deletedRegion"] == {"startLine": 3, "startColumn": 1, "endLine": 3, "endColumn": 1}
    assert replacement["insertedContent"] == {"text": "torch.cuda.synchronize()\n"}
    assert "fixes" not in other


def test_sarif_links_to_pages_where_their_address_is_known(training, monkeypatch):
    finding = Finding("host-sync", "warning", "waits", "wait less")
    known = {"Repository": "https://a.example/b", "Documentation": "https://a.example/b/docs/index.md"}
    for addresses, uri in (({}, None), (known, "https://a.example/b/docs/checks/host-sync.md")):
        monkeypatch.setattr("windtunnel.version.addresses", lambda addresses=addresses: addresses)
        monkeypatch.setattr("windtunnel.reports.sarif.addresses", lambda addresses=addresses: addresses)
        driver = json.loads(sarif.render(training.trace, [finding]))["runs"][0]["tool"]["driver"]
        assert driver["rules"][0].get("helpUri") == uri
        assert driver.get("informationUri") == addresses.get("Repository")


def test_sarif_finds_a_place_for_what_has_no_line(program):
    finding = Finding("near-full-memory", "warning", "full", "take less")
    (run,) = json.loads(sarif.render(program.trace, [finding]))["runs"]
    assert run["results"] == []
    (notice,) = run["invocations"][0]["toolExecutionNotifications"]
    assert (notice["descriptor"]["id"], notice["message"]["text"]) == ("near-full-memory", "full. take less")
    program.trace.facts["program"] = ["train.py", "--epochs", "3"]
    (run,) = json.loads(sarif.render(program.trace, [finding]))["runs"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("train.py", 1)


@pytest.mark.parametrize("file", ["<string>", "<stdin>", "Cell In[3]"])
def test_sarif_places_nothing_in_what_is_no_file(program, file):
    """scorecard-action#1149: GitHub refuses, or cannot show, a result whose place is no file."""
    finding = Finding("host-sync", "warning", "waits", "wait less", Site(file, 3), other=Site(file, 4))
    (run,) = json.loads(sarif.render(program.trace, [finding]))["runs"]
    assert run["results"] == []
    (notice,) = run["invocations"][0]["toolExecutionNotifications"]
    assert notice["message"]["text"].startswith(str(Site(file, 3)))
    program.trace.facts["program"] = "train.py"
    (result,) = json.loads(sarif.render(program.trace, [finding]))["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "train.py"
    assert "relatedLocations" not in result


def test_sarif_paths_are_uris(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inside = tmp_path / "my dir" / "a#b.py"
    for _ in range(30):
        program.kernel().copy(DTOH, 4096, line=3)
    (finding,) = checks.run(program.trace)
    here = finding._replace(site=finding.site._replace(file=str(inside)))
    there = finding._replace(site=finding.site._replace(file="/elsewhere/x y.py"))
    log = json.loads(sarif.render(program.trace, [here, there]))
    first, second = (
        result["locations"][0]["physicalLocation"]["artifactLocation"] for result in log["runs"][0]["results"]
    )
    assert first == {"uri": "my%20dir/a%23b.py", "uriBaseId": "SRCROOT"}
    assert second["uri"] == "file:///elsewhere/x%20y.py"
