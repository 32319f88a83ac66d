"""Files that anybody may have written get an answer: a result, or one sentence, in little time and memory."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tools import ROOT
from tools.fuzz.formats import FORMATS

from windtunnel import cli, foreign, gpus
from windtunnel.analysis import compare, snapshot_file
from windtunnel.analysis.retime import retime
from windtunnel.errors import FileFormatError
from windtunnel.trace.operation import Hazard, Kind, Lane, Note, Signature, Site
from windtunnel.trace.trace import Trace

SECRET = "a line that is nobody's business"


def segment(address: int, size: int) -> dict[str, Any]:
    block = {"size": size, "state": "active_allocated", "requested_size": size}
    place = {"device": 0, "address": address, "total_size": size, "stream": 0, "segment_type": "large"}
    return {**place, "blocks": [block]}


def shared_events() -> bytes:
    event = {"action": "alloc", "addr": 1 << 21, "size": 512, "stream": 0, "frames": []}
    return pickle.dumps({"segments": [], "device_traces": [[event] * 1000] * 1000})


PICKLES: dict[str, tuple[bytes, str]] = {
    "a memo of gigabytes": (b"\x80\x02}r\xff\xff\xff\x7f.", "takes more memory or time than its size explains"),
    "a key of a million tuples": (b"\x80\x04}" + b")" + b"\x85" * 1_000_000 + b"Ns.", "more memory or time"),
    "one list a million times": (shared_events(), "refers to the same data far more often"),
    "bytes that are not there": (
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b".",
        "not a pickle of plain data",
    ),
    "a function": (b"cos\nsystem\n(S'true'\ntR.", "asks for os.system"),
    "an object elsewhere": (b"Pnumber\n.", "refers to data outside itself"),
    "nested lists": (b"\x80\x04" + b"]" * 400 + b"a" * 399 + b".", "nested too deeply"),
    "nothing": (b"\x80\x04", "not a pickle of plain data"),
}


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_that_is_out_of_proportion_is_refused(name: str) -> None:
    data, sentence = PICKLES[name]
    with pytest.raises(FileFormatError, match=sentence):
        foreign.from_pickle(data, "x.pickle")


def test_a_pickle_whose_parts_share_data_is_read() -> None:
    frames = [{"filename": "a.py", "line": number, "name": "f"} for number in range(30)]
    value = [{"addr": number, "frames": frames} for number in range(5000)]
    assert foreign.from_pickle(pickle.dumps(value), "x") == value


def test_segments_beyond_any_gpu_are_refused() -> None:
    data = {"segments": [segment(number << 40, 1 << 40) for number in range(1, 21)], "device_traces": [[]]}
    with pytest.raises(FileFormatError, match="20,480 GiB on one device"):
        snapshot_file.from_dict(data)


def test_histories_of_more_devices_than_there_can_be_are_refused() -> None:
    data = json.dumps({"segments": [], "device_traces": [[]] * 5000}).encode()
    with pytest.raises(FileFormatError, match="histories of 5,000 devices"):
        snapshot_file.decode(data, "x.snapshot.json")


def test_a_report_with_a_number_that_is_infinite_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    names = ("kernels", "kernel_ns", "copies", "copied_bytes", "collectives", "synchronizations", "wait_ns")
    device = {"name": "V100", "busy_share": 0.5, **dict.fromkeys(names, 1), "kernels": float("inf")}
    path.write_text(json.dumps({"devices": [device], "duration_ns": 1, "timing": {"step_ns": None}}))
    with pytest.raises(FileFormatError, match=r"is not a report of windtunnel \(cannot convert float infinity"):
        compare.load(path)


def test_packed_data_unpacks_within_bounds() -> None:
    text = b"rows " * 1000
    assert foreign.unpacked(gzip.compress(text) + gzip.compress(text), "x") == text * 2
    with pytest.raises(FileFormatError, match="would unpack to more than"):
        foreign.unpacked(gzip.compress(bytes(64 << 20)), "x")
    with pytest.raises(FileFormatError, match="not a complete gzip file: it is truncated"):
        foreign.unpacked(gzip.compress(os.urandom(1000))[:-5], "x")
    with pytest.raises(FileFormatError, match="not a complete gzip file"):
        foreign.unpacked(b"\x1f\x8b" + bytes(40), "x")


def test_deep_json_is_refused() -> None:
    with pytest.raises(FileFormatError, match="nested too deeply"):
        foreign.from_json('{"traceEvents":' + "[" * 100_000, "x")


@pytest.mark.parametrize("command", ["report", "memory", "compare"])
def test_a_pipe_and_a_device_are_no_files(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (str(pipe), "/dev/zero"):
        assert cli._run([command, path, *([path] if command == "compare" else [])]) == 2
        assert capsys.readouterr().err == f"windtunnel: {path} is a pipe or a device: give a file\n"


# ---------------------------------------------------------------------- traces


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """A trace of a program of one line, which lies in `tmp_path`."""
    (tmp_path / "train.py").write_text("import torch\nx = torch.ones(3, device='cuda').item()\n")
    trace = Trace()
    trace.folder = str(tmp_path)
    trace.facts |= {"gpus": [{"name": "Tesla T4", "memory_bytes": 1 << 34}], "devices": [{}], "program": "train.py"}
    site, lane = trace.sites.number(Site("train.py", 2, "main")), trace.lanes.number(Lane(0, 0))
    kernel = trace.signatures.number(Signature("aten::ones", ((3,),), ("float32",)))
    for number in range(40):
        trace.rows.append((Kind.KERNEL, lane, kernel, site, number * 10, number * 10, number * 10 + 5, 12))
        trace.rows.append((Kind.SYNCHRONIZE, lane, kernel, site, number * 10, number * 10, number * 10 + 9, 0))
    return trace


def saved(trace: Trace, path: Path, change: Callable[[dict[str, Any], array[int]], None]) -> Path:
    """The trace as a file, its header and rows changed."""
    trace.save(path)
    magic, header, body = gzip.decompress(path.read_bytes()).split(b"\n", 2)
    value, rows = json.loads(header), array("q", body)
    change(value, rows)
    path.write_bytes(gzip.compress(magic + b"\n" + json.dumps(value).encode() + b"\n" + rows.tobytes()))
    return path


def test_lines_of_the_program_travel_with_its_trace(trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "a.trace")
    (tmp_path / "train.py").unlink()
    page = tmp_path / "a.html"
    assert cli._run(["report", str(tmp_path / "a.trace"), "-o", str(page)]) == 0
    assert "torch.ones(3, device=" in page.read_text()


def test_packed_data_that_this_machine_has_no_memory_for_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(bytes(40 << 20), 1)
    monkeypatch.setattr(foreign.psutil, "virtual_memory", lambda: SimpleNamespace(available=100 << 20))
    with pytest.raises(FileFormatError, match=r"^a\.gz takes more memory to read than the 0\.1 GiB that are free$"):
        foreign.unpacked(packed, "a.gz")
    monkeypatch.setattr(foreign.psutil, "virtual_memory", lambda: SimpleNamespace(available=200 << 20))
    assert foreign.unpacked(packed, "a.gz") == bytes(40 << 20)


def test_json_that_this_machine_has_no_memory_for_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"[{'[],' * 12_000_000}[]]"
    monkeypatch.setattr(foreign.psutil, "virtual_memory", lambda: SimpleNamespace(available=2 << 30))
    with pytest.raises(FileFormatError, match=r"^a\.json takes about 3 GiB of memory to read, and 2 GiB are free$"):
        foreign.from_json(text, "a.json")


@pytest.mark.parametrize("kind", ["file", "pipe", "device"])
def test_a_file_that_a_trace_names_is_not_opened(trace: Trace, tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret.txt"
    if kind == "pipe":
        os.mkfifo(secret)
    else:
        secret.write_text(f"{SECRET}\n" * 9)
    name = "/dev/zero" if kind == "device" else str(secret)

    def rename(header: dict[str, Any], rows: array[int]) -> None:
        header["sites"] = [[name, *fields[1:]] if fields[0] else fields for fields in header["sites"]]

    file = saved(trace, tmp_path / "a.trace", rename)
    for suffix in ("html", "json", "md", "txt", "sarif"):
        page = tmp_path / f"a.{suffix}"
        assert cli._run(["report", str(file), "-o", str(page)]) == 0
        assert SECRET not in page.read_text()


def test_lines_are_taken_from_a_folder_that_the_person_names(trace: Trace, tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text(f"{SECRET}\n" * 9)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").write_text("\nx = 'mine'\n")

    def forget(header: dict[str, Any], rows: array[int]) -> None:
        header["sources"] = {}
        header["notes"] = [["data-parallel", ["../outside.py", 2, "f", []], [["devices", 2], ["batch", 8]]]]

    file, page = saved(trace, tmp_path / "a.trace", forget), tmp_path / "a.html"
    assert cli._run(["report", str(file), "-o", str(page), "--source", str(tmp_path / "mine")]) == 0
    text = page.read_text()
    assert "x = &#39;mine&#39;" in text
    assert SECRET not in text


DAMAGE: dict[str, Callable[[dict[str, Any], array[int]], None]] = {
    "a lane that there is not": lambda header, rows: rows.__setitem__(1, 9),
    "a kind that there is not": lambda header, rows: rows.__setitem__(0, 99),
    "a time before time": lambda header, rows: rows.__setitem__(5, -1),
    "an end before the start": lambda header, rows: rows.__setitem__(6, 0) or rows.__setitem__(5, 1),  # type: ignore[func-returns-value]
    "a note that there is not": lambda header, rows: rows.__setitem__(
        slice(0, 8), array("q", [9, 0, 0, 0, 0, 0, 0, 3])
    ),
    "sites of another shape": lambda header, rows: header.update(sites=[["a", "b"]]),
    "a name that is a number": lambda header, rows: header["facts"].update(gpus=[{"name": 3}]),
    "an error band beyond all bounds": lambda header, rows: header["facts"].update(band=1e308),
    "an error band below zero": lambda header, rows: header["facts"].update(devices=[{"peak_band": -1.0}]),
    "no tables": lambda header, rows: header.pop("lanes"),
    "fewer rows": lambda header, rows: rows.pop(),
}


def test_a_copy_that_names_no_direction_is_timed(trace: Trace) -> None:
    lane, name = trace.lanes.number(Lane(0, 0)), trace.signatures.number(Signature("copy"))
    trace.rows.append((Kind.COPY, lane, name, 0, 400, 400, 405, 12))
    trace.facts["gpus"] = [gpus.describe(gpus.find("V100"))]
    assert len(retime(trace, gpus.parse("A100"))) == len(trace)


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_trace_is_refused(trace: Trace, tmp_path: Path, name: str) -> None:
    with pytest.raises(FileFormatError, match=r"a\.trace is (damaged|truncated)"):
        Trace.load(saved(trace, tmp_path / "a.trace", DAMAGE[name]))


def test_what_a_terminal_would_obey_is_written_as_it_is_spelled(
    trace: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def inject(header: dict[str, Any], rows: array[int]) -> None:
        header["signatures"] = [
            ["\x1b]0;title\x07<script>alert(1)</script>`|", *fields[1:]] for fields in header["signatures"]
        ]
        header["sites"] = [
            ["\x1b[31mtrain.py\u202e", *fields[1:]] if fields[0] else fields for fields in header["sites"]
        ]

    file = saved(trace, tmp_path / "a.trace", inject)
    assert cli._run(["report", str(file)]) == 0
    assert "\x1b" not in capsys.readouterr().out
    for suffix in ("md", "txt", "html"):
        page = tmp_path / f"a.{suffix}"
        assert cli._run(["report", str(file), "-o", str(page)]) == 0
        text = page.read_text()
        assert not {"\x1b", "\x07", "\u202e"} & set(text)
        assert suffix == "txt" or "<script>alert" not in text


def test_a_name_that_is_no_utf_8_ends_no_report(tmp_path: Path) -> None:
    from windtunnel import reports

    trace = Trace()
    trace.facts |= {"gpus": [{"name": "Tesla T4"}], "devices": [{}], "program": "\udcff.py"}
    site = Site("\udcff.py", 1)
    trace.sites.number(site)
    trace.notes.append(Note("data-parallel", site, (("devices", 2),)))
    trace.hazards.append(Hazard("stale-read", site, site, Lane(0, 0), Lane(0, 1), "read", "write", 4))
    for suffix in ("html", "json", "md", "txt", "sarif", "kineto.json"):
        reports.write(tmp_path / f"a.{suffix}", trace, [])
        (tmp_path / f"a.{suffix}").read_bytes().decode("utf-8")


def test_a_report_through_a_link_to_nothing_yet_keeps_the_link(tmp_path: Path) -> None:
    from windtunnel.cli._paths import require_writable

    link = tmp_path / "link.html"
    link.symlink_to("target.html")
    require_writable(link)
    assert link.is_symlink()
    assert not (tmp_path / "target.html").exists()


def test_curves_that_cannot_be_read_are_one_sentence() -> None:
    import windtunnel
    from windtunnel.errors import UsageError

    with (
        pytest.raises(UsageError, match=r"^the curves /nope cannot be read: No such file"),
        windtunnel.emulate(curves="/nope"),
    ):
        pass


@pytest.mark.weekly
def test_a_short_fuzz_run_gets_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few files of each format by `make fuzz`, in a process of its own."""
    import subprocess
    import sys

    command = [sys.executable, "-m", "tools.fuzz", "--files", "8", "--seed", "11"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{8 * len(FORMATS)} files, 0 without an answer" in done.stdout


def test_no_more_of_a_trace_is_unpacked_than_its_header_announces(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = tmp_path / "good.trace"
    trace.save(good)
    content = gzip.decompress(good.read_bytes())
    assert len(Trace.load(good)) == len(trace)
    longer = tmp_path / "longer.trace"
    longer.write_bytes(gzip.compress(content + bytes(20 << 20)))
    with pytest.raises(FileFormatError, match=f"would unpack to more than {len(content):,} bytes"):
        Trace.load(longer)
    monkeypatch.setattr("windtunnel.trace.trace.MOST_HEADER_BYTES", 40)
    with pytest.raises(FileFormatError, match="its header has no end"):
        Trace.load(good)


def test_a_removed_current_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(SystemExit, match="2"):
        cli.main(["gpus"])
    assert "the current folder was removed" in capsys.readouterr().err
