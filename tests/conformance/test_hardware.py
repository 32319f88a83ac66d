"""`make hardware`: its stages with the emulation standing in for the GPU, and what keeps one stage from another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from tools import ROOT
from tools.hardware import __main__ as command
from tools.hardware import context, sides, stages, worker
from tools.hardware.context import Context
from tools.hardware.stages import corpus, documents, facts, families, networks, profiles, times

import windtunnel

CONTEXT = Context("native", False, "V100", 1, "unused", short=True)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, str]:
    """A run of two facts on a V100 that is emulated on both sides: its folder, its result, and what it printed."""
    folder = tmp_path_factory.mktemp("hardware")
    line = [sys.executable, "-m", "tools.hardware", "--stand-in", "V100", "--short", "--stages", "facts"]
    line += ["--folder", str(folder), "--output", str(folder / "result.json")]
    line += ["--items", "allocated by size", "range of priorities", "milliseconds of torch.cuda._sleep(10^8)"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("WINDTUNNEL_")}
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(line, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder, json.loads((folder / "result.json").read_text()), done.stdout


@pytest.mark.long  # a dozen processes, each with PyTorch
def test_a_run_writes_what_both_sides_said(ran: tuple[Path, dict, str]) -> None:
    _, result, printed = ran
    assert (result["stand_in"], result["gpu"]) == ("V100", "Tesla V100-SXM2-16GB")
    native, emulated = (result["stages"]["facts"][side] for side in ("native", "emulated"))
    assert native["range of priorities"] == emulated["range of priorities"]
    assert native["range of priorities"][-1] == 32
    assert native["allocated by size"]["513"] == 1024
    assert "Allocators, events, streams: 3 items natively, 3 emulated, 0 differ" in printed
    assert "EMULATED V100 in its stead" in printed


@pytest.mark.long
def test_a_run_that_is_started_again_does_nothing_twice(ran: tuple[Path, dict, str]) -> None:
    folder, _, _ = ran
    run = sides.Run(folder, time.monotonic() + 60, "V100", True, ("range of priorities",), "V100")
    before = (folder / "facts.native.jsonl").read_text()
    assert run._share("facts", 1e9) == facts.LIMIT_S
    assert dict(sides._values(folder / "facts.native.jsonl", 0)).keys() >= {"range of priorities", "allocated by size"}
    worker.main("machine", str(folder / "facts.native.jsonl"), CONTEXT.text(), "no such item")
    assert (folder / "facts.native.jsonl").read_text() == before


# ---------------------------------------------------------------------- items apart from one another


def refuse() -> None:
    raise ValueError("no such thing\nsecond line")


def test_each_item_is_a_process_of_its_own() -> None:
    assert worker.in_a_process(lambda: {"a": [1, 2]}, 10) == {"a": [1, 2]}
    assert worker.in_a_process(refuse, 10) == {"error": "ValueError: no such thing"}
    assert worker.in_a_process(lambda: os.kill(os.getpid(), 9), 10) == {"error": "ended by SIGKILL"}
    assert worker.in_a_process(lambda: time.sleep(30), 1) == {"error": "took more than 1 s"}


def test_what_had_begun_when_a_stage_was_stopped_is_said(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    worker.write(path, {"item": "one", "begun": True})
    worker.write(path, {"item": "one", "value": 1})
    worker.write(path, {"item": "two", "begun": True})
    with path.open("a") as file:
        file.write('{"item": "thr')
    assert dict(sides._values(path, None)) == {"one": 1, "two": {"error": "the stage's time was over"}}
    assert context.both({"one": 1, "two": 2}, dict(sides._values(path, None))) == [("one", 1, 1)]
    sides._forget_unfinished(path)
    assert dict(sides._values(path, None)) == {"one": 1}


def test_time_is_shared_among_what_is_still_to_come(tmp_path: Path) -> None:
    run = sides.Run(tmp_path, 0.0)
    run.waiting = ["documents", "documents", "curves", "curves"]
    share = run._share("documents", 1020.0)
    assert share == pytest.approx(1020.0 * documents.LIMIT_S / (2 * documents.LIMIT_S + 2 * 420))
    assert run.waiting == ["documents", "curves", "curves"]


def test_nothing_of_the_emulation_reaches_the_native_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDTUNNEL_RUN", "{}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4,5")
    run = sides.Run(tmp_path, 0.0, model="A100")
    assert run.environment(sides.NATIVE)["CUDA_VISIBLE_DEVICES"] == "3,4"
    assert "CUDA_VISIBLE_DEVICES" not in run.environment(sides.EMULATED)
    assert not any(name.startswith("WINDTUNNEL_") for name in run.environment(sides.NATIVE))
    line = run._command("facts", sides.NATIVE, tmp_path / "lines")
    assert "windtunnel" not in line
    assert "windtunnel" in run._command("facts", sides.EMULATED, tmp_path / "lines")


# ---------------------------------------------------------------------- the stages


def test_a_stage_has_what_a_stage_has() -> None:
    for name in stages.names():
        stage: ModuleType = stages.load(name)
        assert stage.__doc__, name
        assert stage.TITLE, name
        assert 0 < stage.ITEM_S <= stage.LIMIT_S, name
        assert stage.items(CONTEXT), name
        assert stage.rows({}, {}) == [], name
        assert stage.rows({"x": {"error": "lost"}}, {"x": {"error": "lost"}}) is not None, name


def test_a_fact_is_a_program_that_leaves_a_value() -> None:
    for fact in facts.table():
        compile(fact["program"], fact["name"], "exec")
        assert "value" in {line.split()[0] for line in fact["program"].splitlines() if line.strip()}, fact["name"]
        assert fact.get("compare", "ratio") == "ratio", fact["name"]


def test_facts_that_differ_are_shown_and_times_are_ratios() -> None:
    both = {"ids of streams": [1]}, {"ids of streams": [2]}
    assert [row.differs for row in facts.rows(*both)] == [True]
    name = "microseconds of an item()"
    assert facts.rows({name: 20.0}, {name: 10.0})[0][2:] == ("10.0 (0.50x)", False)


def test_races_are_counted_and_a_program_without_one_must_not_be_wrong() -> None:
    page = {"codes": [], "raised": "", "runs": 3, "wrong_runs": 0}
    race = {**page, "codes": ["unsynchronized-access"], "wrong_runs": 2}
    assert corpus.rows({"a": page}, {"a": page}) == []
    assert corpus.rows({"a": race}, {"a": race})[0].native == "2 of 3 runs wrong"
    assert corpus.rows({"a": {**page, "wrong_runs": 1}}, {"a": page})[0].differs
    assert corpus.rows({"a": {**page, "raised": "X: y"}}, {"a": page})[0].differs


def test_tensors_that_fill_a_card_are_not_summed_on_the_host() -> None:
    program = "import torch\nx = torch.empty(12 << 30, dtype=torch.uint8, device='cuda')"
    with windtunnel.emulate("1xV100"):
        found = corpus._values(SimpleNamespace(path=Path("page.py"), program=program), False)
    assert found == {"values": {"x": [12 << 30]}}


def test_a_file_of_tests_that_ends_alike_on_both_sides_does_not_differ() -> None:
    late, passed = {"error": "took more than 300 s"}, {"test_a": ["passed", ""]}
    assert [row.differs for row in documents.rows({"f": late}, {"f": late})] == [False]
    assert [row.differs for row in documents.rows({"f": late}, {"f": passed})] == [True]


def test_kernels_belong_to_the_innermost_operator_around_their_launch() -> None:
    events = [
        {"cat": "cpu_op", "name": "aten::conv2d", "ts": 0, "dur": 50, "tid": 1},
        {"cat": "cpu_op", "name": "aten::cudnn_convolution", "ts": 5, "dur": 40, "tid": 1},
        {"cat": "cpu_op", "name": "aten::add", "ts": 5, "dur": 40, "tid": 2},
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 10, "dur": 5, "tid": 1, "args": {"correlation": 7}},
        {"cat": "kernel", "name": "sm80_xmma", "ts": 20, "dur": 9, "tid": 7, "args": {"correlation": 7}},
        {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "ts": 40, "dur": 3, "args": {}},
    ]
    found = profiles.summary(events)
    assert found["by operator"] == {"convolution": 1, "Memcpy HtoD": 1}
    assert found["order"] == ["convolution", "Memcpy HtoD"]


def test_times_are_compared_as_ratios() -> None:
    rows = times.rows({"m": {"device_ms": 4.0, "host_ms": 2.0}}, {"m": {"device_ms": 5.0, "host_ms": 1.0}})
    assert [row.emulated for row in rows] == ["5.0 (1.25x)", "1.0 (0.50x)"]


def test_speed_ups_of_compiling_are_compared_and_ranked() -> None:
    def side(*steps_ms: float) -> dict:
        items = [f"{name}, {how} inference" for name in ("vgg16", "bert", "opt") for how in ("eager", "compiled")]
        same = dict.fromkeys(("host_ms", "kernel_us", "kernels", "peak allocated", "peak reserved"), 1)
        return {item: {**same, "device_ms": ms} for item, ms in zip(items, steps_ms, strict=True)}

    real, ours = side(4.0, 2.0, 6.0, 2.0, 5.0, 5.0), side(4.0, 2.5, 6.0, 4.0, 5.0, 5.0)
    told = {row.item: row.emulated for row in networks.rows(real, ours)}
    assert told["inference, speed-up of compiling: median error of 3"] == "20.0%, worst 50.0%, Kendall's tau 0.33"
    assert told["compiled inference, peak allocated: median error of 3"] == "0.0%, bias +0.0%, worst 0.0%"


def test_a_test_of_the_documents_runs_without_windtunnel_on_a_real_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"GPUS": "2", "MODEL": "", "RESULTS": "unused"}.items():
        monkeypatch.setenv(f"HARDWARE_{name}", value)
    from tools.hardware import documents_plugin as plugin

    head = [sys.executable, "-m", "windtunnel", "run"]
    assert plugin.rewritten([*head, "-q", "--gpus", "2xV100", "x.py", "-q"]) == [sys.executable, "x.py", "-q"]
    assert plugin.rewritten([*head, "-c", "1"]) == [sys.executable, "-c", "1"]
    assert plugin.rewritten([*head, "--no-python", "torchrun", "x.py"]) == ["torchrun", "x.py"]
    assert plugin.rewritten(["ls", "-l"]) == ["ls", "-l"]
    with pytest.raises(pytest.skip.Exception, match="--fail-on"):
        plugin.rewritten([*head, "--fail-on", "error", "x.py"])
    with pytest.raises(pytest.skip.Exception, match="needs 4 GPUs"):
        plugin.rewritten([*head, "--gpus", "4xV100", "x.py"])


def test_the_gpu_that_is_emulated_is_the_one_of_that_name_or_the_most_alike() -> None:
    device = {"name": "NVIDIA A100-SXM4-80GB", "compute_capability": [8, 0], "total_memory": 85_000_000_000}
    assert command._nearest(device) == "A100-SXM4-80GB"
    assert command._nearest({**device, "name": "NVIDIA H100 of somebody's", "compute_capability": [9, 0]}).startswith(
        "H100"
    )


@pytest.mark.long
def test_each_family_is_timed_by_shape_on_both_sides(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "A100", "--no-data", "--assume", "1", "-m"]
    line += ["tools.hardware.worker", "families", str(tmp_path / "out"), CONTEXT.text(), "products", "attention"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("WINDTUNNEL_")}
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(line, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = {line["item"]: line["value"] for line in worker.read(tmp_path / "out") if "value" in line}
    assert found["products"].keys() == {"512 x 512 x 512", "512 x 512 x 512 fp32"}
    assert all(us > 1.0 for family in found.values() for us in family.values())
    slower = {family: {shape: 2.0 * us for shape, us in times.items()} for family, times in found.items()}
    told = [row for row in families.rows(slower, found) if "median error" in row.item]
    assert [row.emulated for row in told] == ["50.0%", "50.0%"]
