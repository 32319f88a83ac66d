"""`make conformance`: sources by the machine's own apt entries, runs that survive a crash and go on, honest counts."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from tools.conformance.upstream import page
from tools.conformance.upstream.runs import EMULATED, FileJournal, Result, Runner
from tools.conformance.upstream.sources import SourcesError, find, source_lines, unpack

DEB822 = """Types: deb
URIs: http://mirror.example/debian
Suites: bookworm
Components: main
Signed-By: /keys/debian.gpg
"""

TESTS = """
import os, time, unittest

class TestCuda(unittest.TestCase):
    def test_a(self): pass
    def test_b(self): os.kill(os.getpid(), 9)
    def test_c(self): self.fail("wrong")
    def test_d(self): time.sleep(600)
    def test_e(self): raise unittest.SkipTest("no card")
    def test_f(self): pass

class TestOther(unittest.TestCase):
    def test_cuda_name(self): pass
    def test_nothing_of_it(self): pass

class TestThingCPU(unittest.TestCase):
    def test_on_the_host(self): "cuda"
"""

UNPLUGGED = ("-p", "no:windtunnel", "-p", "no:windtunnel.pytest_plugin")


def apt(folder: Path, name: str, text: str) -> Path:
    (folder / "sources.list.d").mkdir()
    (folder / "sources.list.d" / name).write_text(text)
    return folder


def test_the_machines_mirror_and_key_are_used(tmp_path: Path) -> None:
    lines = source_lines(apt(tmp_path, "debian.sources", DEB822)).splitlines()
    assert lines[1] == "deb-src [signed-by=/keys/debian.gpg] http://mirror.example/debian trixie main"


def test_one_line_entries_count_too(tmp_path: Path) -> None:
    system = apt(tmp_path, "d.list", "# deb x y\ndeb [arch=amd64] http://mirror.example/debian/ bookworm main\n")
    assert source_lines(system).startswith("deb [arch=amd64] http://mirror.example/debian/ trixie main\n")


def test_without_a_debian_mirror_one_sentence_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SourcesError, match="name a source folder with --sources DIR"):
        source_lines(apt(tmp_path, "d.list", "deb http://mirror.example/ubuntu noble main\n"))


def test_a_folder_at_hand_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_cuda.py").touch()
    assert find(tmp_path / "cache", tmp_path) == tmp_path / "test"
    with pytest.raises(SourcesError, match="holds no test_cuda"):
        find(tmp_path / "cache", tmp_path / "cache")


def test_only_the_test_folder_is_unpacked(tmp_path: Path) -> None:
    source = tmp_path / "pytorch-v2"
    for name in ("test/sub/test_x.py", "torch/test/y.py"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("x")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(source, "pytorch-v2")
    unpack(tmp_path / "a.tar.gz", tmp_path / "out" / "test")
    assert [path.name for path in (tmp_path / "out").rglob("*.py")] == ["test_x.py"]


def run(folder: Path, only: frozenset[str] | None = None) -> FileJournal:
    (folder / "test_cuda.py").write_text(TESTS)
    journal = FileJournal.read(folder / "journal.jsonl")
    Runner(folder, UNPLUGGED, 60, 1 << 30, idle_seconds=4).run("test_cuda.py", journal, only)
    return FileJournal.read(folder / "journal.jsonl")


@pytest.mark.long
def test_a_crash_and_a_hang_cost_one_test_each(tmp_path: Path) -> None:
    journal = run(tmp_path)
    found = {name.removeprefix("TestCuda::test_"): result.outcome for name, result in journal.results.items()}
    expected = {"a": "passed", "b": "crashed", "c": "failed", "d": "stopped", "e": "skipped", "f": "passed"}
    assert {name: found[name] for name in expected} == expected
    assert "TestThingCPU::test_on_the_host" not in journal.collected
    assert journal.results["TestCuda::test_b"].message == "the process ended on SIGKILL"
    assert journal.results["TestCuda::test_c"].message == "AssertionError: wrong"
    assert journal.finished


ORDERED = """
import unittest

class TestCuda(unittest.TestCase):
    left = []
    def test_a(self): self.left.append(1)
    def test_b(self): self.assertEqual(self.left, [])
    def test_c(self): self.fail("wrong")
"""


@pytest.mark.long
def test_what_failed_runs_once_more_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_cuda.py").write_text(ORDERED)
    runner = Runner(tmp_path, UNPLUGGED, 60, 1 << 30)
    runner.run("test_cuda.py", FileJournal.read(tmp_path / "journal.jsonl"))
    runner.again("test_cuda.py", FileJournal.read(tmp_path / "journal.jsonl"))
    results = FileJournal.read(tmp_path / "journal.jsonl").results
    found = [(result.outcome, result.alone) for result in results.values()]
    assert found == [("passed", False), ("passed", True), ("failed", True)]
    text = page.document(page.Runs("2.6.0", {"test_cuda.py": results}, None))
    assert "1 passed there, because they had failed only after earlier tests of their file: `TestCuda::test_b`." in text


COUNTED = """
import unittest
import torch

class TestCuda(unittest.TestCase):
    @unittest.skipIf(torch.cuda.device_count() > 1, "Testing on one GPU is sufficient")
    def test_a(self): self.assertEqual(torch.cuda.device_count(), 1)
    def test_b(self): self.assertEqual(torch.cuda.device_count(), 2)
"""


SLOW = """
import time, unittest

class TestCuda(unittest.TestCase):
    def test_a_slow_one(self): self.spin()
    def test_b(self): self.spin()
    def spin(self):
        end = time.process_time() + 3
        while time.process_time() < end: pass
"""


@pytest.mark.long
def test_a_test_of_the_table_may_take_longer(tmp_path: Path) -> None:
    (tmp_path / "test_cuda.py").write_text(SLOW)

    def limit(file: str, name: str, usual: float) -> float:
        return 60 if (file, name) == ("test_cuda.py", "TestCuda::test_a_slow_one") else usual

    Runner(tmp_path, UNPLUGGED, 1, 1 << 30, limit=limit).run(
        "test_cuda.py", FileJournal.read(tmp_path / "journal.jsonl")
    )
    results = FileJournal.read(tmp_path / "journal.jsonl").results
    assert [result.outcome for result in results.values()] == ["passed", "stopped"]
    assert results["TestCuda::test_b"].message == "no end after 1 s of processor time"


def test_the_table_gives_more_time_and_never_less() -> None:
    file = "distributed/fsdp/test_fsdp_clip_grad_norm.py"
    assert page.seconds(file, "TestClipGradNormCUDA::test_ddp_parity_cuda", 120) == 1500
    assert page.seconds(file, "TestClipGradNormCUDA::test_ddp_parity_cuda", 3000) == 3000
    assert page.seconds(file, "TestClipGradNormCUDA::test_no_gradients_cuda", 120) == 120


@pytest.mark.weekly
def test_what_skips_itself_on_two_gpus_runs_on_one(tmp_path: Path) -> None:
    (tmp_path / "test_cuda.py").write_text(COUNTED)
    runner = Runner(tmp_path, EMULATED, 60, 2 << 30)
    runner.run("test_cuda.py", FileJournal.read(tmp_path / "journal.jsonl"))
    assert FileJournal.read(tmp_path / "journal.jsonl").results["TestCuda::test_a"].outcome == "skipped"
    runner.with_other_gpus("test_cuda.py", FileJournal.read(tmp_path / "journal.jsonl"))
    results = FileJournal.read(tmp_path / "journal.jsonl").results
    assert {name: result.outcome for name, result in results.items()} == {
        "TestCuda::test_a": "passed",
        "TestCuda::test_b": "passed",
    }


@pytest.mark.long
def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    run(tmp_path, frozenset({"TestCuda::test_a"}))
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"torn')
    journal = run(tmp_path, frozenset({"TestCuda::test_a", "TestCuda::test_f"}))
    assert sorted(journal.results) == ["TestCuda::test_a", "TestCuda::test_f"]
    journal.forget(("failed",))
    assert sorted(FileJournal.read(journal.path).results) == ["TestCuda::test_a", "TestCuda::test_f"]


def test_counts_leave_out_what_is_out_of_scope() -> None:
    outcomes = {"test_streams": "passed", "test_events": "failed", "test_power_draw": "skipped", "test_a": "skipped"}
    results = {f"TestCuda::{name}": Result(f"TestCuda::{name}", outcome) for name, outcome in outcomes.items()}
    runs = page.Runs("2.6.0", {"test_cuda.py": results}, None)
    last = page.cells(runs)[-1]
    assert last == ["all", "1", "1", "1", "1", "0", "50.0%", "-"]


def test_the_same_sample_is_drawn_of_what_is_in_scope() -> None:
    names = [f"TestLinalgCUDA::test_{number}" for number in range(400)] + ["TestLinalgCUDA::test_compile"]
    drawn = page.drawn("test_linalg.py", names)
    assert drawn == page.drawn("test_linalg.py", reversed(names))
    assert len(drawn) == 250
    assert "TestLinalgCUDA::test_compile" not in drawn
    assert page.drawn("test_nn.py", names) == set(names)  # files of no suite are run whole


def test_the_listed_tests_are_in_files_that_are_run() -> None:
    assert len(page.listed()) == 68
    assert {file for file, _ in page.listed()} <= set(page.files())


def test_the_page_names_each_failing_test_with_its_reason() -> None:
    result = Result("TestCuda::test_x", "failed", "ValueError: in /home/me/torch/x.py at 0x7f00")
    text = page.document(page.Runs("2.6.0", {"test_cuda.py": {result.name: result}}, None))
    assert "- ValueError: in x.py at 0x...: `TestCuda::test_x`" in text


def test_what_a_stub_passes_is_counted_by_subject() -> None:
    name = "TestCuda::test_streams"
    emulated = {"test_cuda.py": {name: Result(name, "passed")}}
    for stub, count in (
        ({name: Result(name, "passed")}, "1"),
        ({"import": Result("import", "failed")}, "0"),
        ({}, "-"),
    ):
        assert page.cells(page.Runs("2.6.0", emulated, {"test_cuda.py": stub}))[-1][-1] == count


def test_the_page_says_what_was_put_out_of_scope_after_a_first_run() -> None:
    names = ("TestAutograd::test_thread_shutdown", "TestNestedTensorCUDA::test_compile_cuda")
    results = {"test_autograd.py": names[0], "test_nestedtensor.py": names[1]}
    runs = page.Runs("2.6.0", {file: {name: Result(name, "failed")} for file, name in results.items()}, None)
    text = page.suites_document(runs)
    assert "where CUDA's driver finds one (1, added later)" in text
    assert "(TorchScript, Inductor) (1)" in text


def test_suites_that_were_not_run_again_stay_on_the_page() -> None:
    def runs(file: str, *outcomes: str) -> page.Runs:
        results = {f"TestA::test_{i}": Result(f"TestA::test_{i}", outcome, "bad") for i, outcome in enumerate(outcomes)}
        return page.Runs("2.6.0", {file: results}, None)

    first = page.suites_document(runs("test_sparse.py", "passed", "failed"))
    both = page.suites_document(runs("test_foreach.py", "passed", "passed", "failed"), first)
    assert "| Sparse tensors † | 1 | 1 | 0 | 0 | 0 | 50.0% | - |\n" in both
    assert "| all | 3 | 2 | 0 | 0 | 0 | 60.0% | - |\n" in both
    assert both.index("### test_foreach.py") < both.index("### test_sparse.py")
    assert "`test_sparse_csr.py`" in both
    again = page.suites_document(runs("test_sparse.py", "passed"), both)
    assert "| Sparse tensors | 1 | 0 | 0 | 0 | 0 | 100.0% | - |\n" in again
    assert "| Foreach † | 2 | 1 |" in again
    assert "### test_sparse.py" not in again


def test_files_that_an_earlier_run_did_not_reach_are_added_to_their_suite() -> None:
    def runs(file: str, *outcomes: str) -> page.Runs:
        results = {f"TestA::test_{i}": Result(f"TestA::test_{i}", outcome, "bad") for i, outcome in enumerate(outcomes)}
        return page.Runs("2.6.0", {file: results}, None)

    first = page.suites_document(runs("test_sparse.py", "passed", "failed"))
    second = page.suites_document(runs("test_sparse_csr.py", "passed", "passed"), first)
    assert "| Sparse tensors † | 3 | 1 | 0 | 0 | 0 | 75.0% | - |\n" in second
    assert "`test_sparse_csr.py`" not in second
    assert "### test_sparse.py" in second


def test_only_what_had_failed_was_run_again() -> None:
    def runs(file: str, **outcomes: str) -> page.Runs:
        results = {f"TestA::test_{name}": Result(f"TestA::test_{name}", end, "bad") for name, end in outcomes.items()}
        return page.Runs("2.6.0", {file: results}, None)

    first = page.suites_document(runs("test_sparse.py", a="passed", b="failed", c="failed", d="failed", e="skipped"))
    again = runs("test_sparse.py", a="earlier", b="passed", c="failed", d="skipped", e="earlier")
    second = page.suites_document(again, first)
    assert "| Sparse tensors † | 2 | 1 | 2 | 0 | 0 | 66.7% | - |\n" in second
    assert "`TestA::test_c`" in second
    assert "`TestA::test_b`" not in second
    assert page.suites_document(again, second) == second
    unfinished = runs("test_sparse.py", a="earlier", b="passed", e="earlier", c="not run", d="not run")
    assert page.suites_document(unfinished, first).count("TestA::test_") == 3
    assert "| Sparse tensors † | 1 | 3 | 1 |" in page.suites_document(unfinished, first)


def test_a_file_without_tests_was_reached() -> None:
    file = "distributed/_composable/fsdp/test_fully_shard_logging.py"
    first = page.suites_document(page.Runs("2.6.0", {file: {}}, None))
    assert page.files_after(page.NOT_REACHED, first) >= {file}
    second = page.suites_document(page.Runs("2.6.0", {}, None, frozenset({file})), first)
    assert file not in page.files_after(page.NOT_REACHED, second)
    third = page.suites_document(page.Runs("2.6.0", {}, None), second)
    assert page.files_after(page.NO_TESTS, third) == {file}
