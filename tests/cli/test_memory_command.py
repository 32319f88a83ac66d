"""`windtunnel run --report x.snapshot.pickle`, and `windtunnel memory` on such a file."""

import json
import pickle
import re
from pathlib import Path

import pytest

from helpers.schemas import conforms

pytestmark = pytest.mark.long
"""Each starts programs of its own."""

PROGRAM = """
import torch
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(64, 512).cuda()).square().mean().backward()
    optimizer.step()
print(torch.cuda.max_memory_allocated())
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes | int]:
    """What one run of the program left: its snapshot, its JSON report, and the peak that it printed."""
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("recorded")
    (folder / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "V100"]
    reports = ["--report", "out.snapshot.pickle", "--report", "out.json", "train.py"]
    done = subprocess.run([*command, *reports], cwd=folder, capture_output=True, text=True, check=True, timeout=120)
    return {
        "snapshot": (folder / "out.snapshot.pickle").read_bytes(),
        "report": (folder / "out.json").read_bytes(),
        "peak": int(done.stdout),
    }


@pytest.fixture
def snapshot(recorded, tmp_path: Path) -> Path:
    """The snapshot of the run, in the folder that commands run in."""
    path = tmp_path / "out.snapshot.pickle"
    path.write_bytes(recorded["snapshot"])
    return path


def test_a_snapshot_holds_the_programs_lines(recorded) -> None:
    data = pickle.loads(recorded["snapshot"])
    first = next(event for event in data["device_traces"][0] if event["action"] == "alloc")
    assert (Path(first["frames"][0]["filename"]).name, first["frames"][0]["line"]) == ("train.py", 3)
    assert first["size"] == 512 * 512 * 4
    assert data["segments"][0]["blocks"][0]["frames"] == first["frames"]


def test_the_report_says_what_held_the_peak(recorded) -> None:
    peak = json.loads(recorded["report"])["devices"][0]["peak"]
    weights = 512 * 512 * 4 + 512 * 4
    assert peak["allocated_bytes"] == sum(peak["categories"].values()) == recorded["peak"]
    for category in ("parameter", "gradient", "optimizer"):
        assert peak["categories"][category] == weights
    assert peak["categories"]["workspace"] == 2 * 8519680  # one a handle: forward and backward
    lines = {(line["category"], line["line"]): line["size_bytes"] for line in peak["lines"]}
    assert lines["parameter", 3] == weights
    assert lines["optimizer", 8] == weights


def test_our_own_snapshot_agrees(windtunnel, snapshot: Path) -> None:
    done = windtunnel("memory", snapshot.name, "--json")
    result = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert conforms("memory", result)
    assert result["agrees"]
    device = result["devices"][0]
    assert device["placements_agree"] == device["allocations"] > 10
    assert device["final_blocks_agree"] == device["final_blocks"] > 0
    assert result["what_if"] is None
    shown = windtunnel("memory", snapshot.name)
    assert shown.stdout.startswith("cuda:0: ")
    assert "train.py:7 held " in shown.stdout
    assert "our replay agrees with every placement" in shown.stdout.splitlines()[-1]


def test_what_died_after_the_last_operation_is_in_the_history(windtunnel, tmp_path: Path) -> None:
    source = "import torch\ndef main():\n    x = torch.ones(4).cuda() + 1\n    print(x.sum().item())\nmain()\n"
    (tmp_path / "train.py").write_text(source)
    assert windtunnel("run", "-q", "--report", "own.snapshot.pickle", "train.py").returncode == 0
    assert windtunnel("memory", "own.snapshot.pickle").returncode == 0


def test_what_if_is_a_table_and_a_plot(windtunnel, snapshot: Path) -> None:
    pytest.importorskip("jinja2")
    arguments = ["--alloc-conf", "expandable_segments:True", "--alloc-conf", "roundup_power2_divisions:1"]
    done = windtunnel("memory", snapshot.name, *arguments, "--plot", "what-if.html")
    assert done.returncode == 0
    assert "defaults (recorded)" in done.stdout
    assert "expandable_segments:True" in done.stdout
    assert "replayed on a GPU of unlimited memory" in done.stdout
    limited = windtunnel("memory", snapshot.name, *arguments, "--memory-mib", "16384")
    assert "unlimited" not in limited.stdout
    page = (snapshot.parent / "what-if.html").read_text()
    assert '"name":"expandable_segments:True"' in page.replace('": "', '":"')
    assert len(page) < 1_500_000
    rows = json.loads(windtunnel("memory", snapshot.name, "--json", *arguments).stdout)["what_if"]["rows"]
    assert [row["alloc_conf"] for row in rows] == ["", "expandable_segments:True", "roundup_power2_divisions:1"]
    assert all(row["peak_reserved_bytes"] >= row["peak_allocated_bytes"] > 0 for row in rows)


def test_a_limit_makes_requests_fail(windtunnel, snapshot: Path) -> None:
    done = windtunnel("memory", snapshot.name, "--json", "--alloc-conf", "", "--memory-mib", "22")
    assert conforms("memory", json.loads(done.stdout))
    rows = json.loads(done.stdout)["what_if"]["rows"]
    assert all(row["out_of_memory"] > 0 for row in rows)


def test_what_does_not_fit_is_an_error_that_says_by_how_much(windtunnel, snapshot: Path) -> None:
    done = windtunnel("memory", snapshot.name, "--memory-mib", "22")
    assert done.returncode == 65
    assert re.search(r"does not fit: \d+.* over on cuda:0, which has 22.0 MiB, nor under any setting", done.stdout)
    done = windtunnel("memory", snapshot.name, "--memory-mib", "4000")
    assert done.returncode == 0
    assert "fits into 3.91 GiB (replayed)" in done.stdout


def test_a_snapshot_that_differs_is_code_1(windtunnel, snapshot: Path) -> None:
    data = pickle.loads(snapshot.read_bytes())
    for event in data["device_traces"][0]:
        if event["action"] == "alloc" and event["size"] == 64 * 512 * 4:
            event["addr"] += 512
            break
    snapshot.write_bytes(pickle.dumps(data))
    done = windtunnel("memory", snapshot.name)
    assert done.returncode == 1
    assert "first difference: event" in done.stdout
    result = json.loads(windtunnel("memory", snapshot.name, "--json").stdout)
    assert conforms("memory", result)
    assert not result["agrees"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["junk"], "junk is not a pickle of plain data"),
        (["none.pickle"], "none.pickle cannot be read: No such file"),
        (["out.snaphot.pickle"], "Did you mean out.snapshot.pickle?"),
        (["."], "cannot be read: Is a directory"),
        (["out.snapshot.pickle", "--alloc-conf", "max_split_size_mb:many"], "a number was expected"),
        (["out.snapshot.pickle", "--alloc-conf", "backend:cudaMallocAsync"], "driver and not emulated"),
        (["out.snapshot.pickle", "--alloc-conf", "nonsense:1"], "Unrecognized key 'nonsense'"),
        (["out.snapshot.pickle", "--plot", "x.png"], "should end in .html"),
    ],
)
def test_what_cannot_be_is_code_2(windtunnel, snapshot: Path, arguments: list[str], sentence: str) -> None:
    (snapshot.parent / "junk").write_text("junk")
    done = windtunnel("memory", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert sentence in done.stderr


def test_a_pickle_with_code_in_it_is_refused(windtunnel, snapshot: Path) -> None:
    snapshot.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    done = windtunnel("memory", snapshot.name)
    assert done.returncode == 2
    assert "plain data only" in done.stderr


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "not a pickle of plain data"),
        (b'{"segments": ' + b"[" * 100_000, "is not JSON"),
        (b"\x1f\x8bjunk", "not a complete gzip file"),
        (b'{"segments": [], "device_traces": [[["alloc", 0, -1, 0]]]}', "-1 bytes at 0x0"),
        (b'{"segments": [], "device_traces": [[["segment_map", 0, 4611686018427387904, 0]]]}', "bytes at 0x0"),
        (
            b'{"segments": [{"device": 0, "address": 0, "total_size": 512, "segment_type": "small", "blocks": []}]}',
            "do not fill it",
        ),
    ],
)
def test_damaged_files_are_told_by_what_is_wrong(windtunnel, tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "damaged").write_bytes(content)
    done = windtunnel("memory", "damaged")
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr


RANKS = """
import os
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
dist.init_process_group("nccl")
torch.cuda.set_device(rank)
kept = torch.empty((rank + 1) << 20, device="cuda")
dist.all_reduce(kept[:8])
dist.destroy_process_group()
"""


def test_each_rank_has_a_snapshot(windtunnel, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    done = windtunnel("run", "-q", "--nproc-per-node", "2", "--report", "out.snapshot.pickle", "ranks.py")
    assert done.returncode == 0, done.stderr
    for rank, name in enumerate(("out.snapshot.pickle", "out.rank1.snapshot.pickle")):
        data = pickle.loads((tmp_path / name).read_bytes())
        sizes = [event["size"] for event in data["device_traces"][rank] if event["action"] == "alloc"]
        assert sizes == [(rank + 1) << 22]
        assert not data["device_traces"][1 - rank]
        assert windtunnel("memory", name).returncode == 0
