"""The pytest plugin as a user of it sees it: pytest in another process, over small test files."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.long
"""Each starts programs of its own."""

pytest_plugins = ["pytester"]

SUITE = """
import pytest

def test_without_gpus():
    import sys
    assert "torch" not in sys.modules

@pytest.mark.gpus(2, model="A100")
def test_two(gpus):
    import torch
    assert [str(gpu) for gpu in gpus] == ["cuda:0", "cuda:1"]
    assert torch.cuda.get_device_name(1).startswith("NVIDIA A100")
    torch.ones(1024, 1024, device=gpus[0])
    assert torch.cuda.max_memory_allocated(0) == 4194304

@pytest.mark.parametrize("again", range(2))
def test_devices_are_fresh(cuda_device, again):
    import torch
    assert torch.cuda.device_count() == 1
    assert torch.cuda.max_memory_allocated(cuda_device) == 0
    torch.ones(7, device=cuda_device)

def test_nothing_is_left():
    import torch
    assert not torch.cuda.is_available()

def test_trace(cuda_device, gpu_trace):
    import torch
    before = len(gpu_trace)
    torch.ones(3, device=cuda_device) + 1
    assert len(gpu_trace) > before
"""


def run(pytester: pytest.Pytester, text: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(text)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)


def test_tests_that_ask_get_fresh_gpus(pytester: pytest.Pytester) -> None:
    result = run(pytester, SUITE, "--gpu-backend=emulated")
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["windtunnel: emulated GPUs for the tests that ask for them"])
    result.stdout.fnmatch_lines(["windtunnel: 4 tests on emulated GPUs, 0 skipped (no real GPU)"])


def test_it_works_with_xdist(pytester: pytest.Pytester) -> None:
    result = run(pytester, SUITE.replace("def test_without_gpus", "def _test_without_gpus"), "-n2")
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["windtunnel: 4 tests on emulated GPUs*"])


PROBES = """
import subprocess, sys
import pytest
import torch

TEST_CUDA = torch.cuda.is_available()
TEST_MULTIGPU = torch.cuda.device_count() >= 2

@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda():
    assert TEST_CUDA and TEST_MULTIGPU
    assert torch.ones(2, device="cuda").device.index == 0

def test_children():
    code = "import torch; print(torch.cuda.device_count(), torch.cuda.get_device_name())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "2 Tesla V100-SXM2-16GB\\n"
"""


@pytest.mark.parametrize("more", [[], ["-n2"]], ids=["alone", "xdist"])
def test_a_cuda_suite_runs_unchanged(pytester: pytest.Pytester, more: list[str]) -> None:
    result = run(pytester, PROBES, "--gpus", "2xV100", "--gpu-backend", "emulated", *more)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*EMULATED GPUs for all tests (--gpus 2xV100)"] if not more else ["*2 passed*"])


def test_fresh_gpus_under_a_run_that_has_gpus(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import subprocess, sys
        import pytest, torch

        def test_before():
            assert torch.cuda.device_count() == 2

        MODULE_LEVEL = torch.ones(3, device="cuda:1")

        @pytest.mark.gpus(3)
        def test_three(gpus):
            assert torch.cuda.device_count() == 3
            code = "import torch; print(torch.cuda.device_count())"
            assert subprocess.check_output([sys.executable, "-c", code], text=True) == "3\\n"

        def test_after():
            assert torch.cuda.device_count() == 2
            assert (MODULE_LEVEL + torch.ones(3, device="cuda:1")).tolist() == [2, 2, 2]
        """,
        "--gpus=2",
        "--gpu-backend=emulated",
    )
    result.assert_outcomes(passed=3)


SYNCS = """
import pytest

@pytest.mark.max_syncs(1)
@pytest.mark.parametrize("times", [1, 2])
def test_syncs(cuda_device, times):
    import torch
    x = torch.ones(2, device=cuda_device)
    for _ in range(times):
        x.sum().item()
"""


def test_too_many_synchronizations_fail_with_their_lines(pytester: pytest.Pytester) -> None:
    result = run(pytester, SYNCS, "--gpu-backend=emulated")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*the host waited 2 times for a GPU, 1 allowed:", "*.py:9: * (2×)"])


WRONG_MARKERS = {
    'gpus(2, model="V1000")': "this test's GPUs cannot be emulated: no GPU is called 'V1000'*",
    'gpus("two")': """@pytest.mark.gpus('two') is not of the form gpus(2, model="V100")""",
    'gpus(2, modle="V100")': "@pytest.mark.gpus(2, modle='V100') takes n and model",
    "max_syncs()": "@pytest.mark.max_syncs() is not of the form max_syncs(1)",
}


def test_a_marker_that_does_not_fit_is_one_sentence(pytester: pytest.Pytester) -> None:
    tests = [f"@pytest.mark.{marker}\ndef test_{n}(gpus): pass" for n, marker in enumerate(WRONG_MARKERS)]
    result = run(pytester, "import pytest\n" + "\n".join(tests), "--gpu-backend=emulated")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(list(WRONG_MARKERS.values()))
    result.stdout.no_fnmatch_line("*site-packages*")


def test_a_bad_spec_is_one_sentence(pytester: pytest.Pytester) -> None:
    result = run(pytester, SUITE, "--gpus", "2xV1000")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: no GPU is called 'V1000'*"])


def test_tests_that_need_real_gpus_are_skipped_and_counted(pytester: pytest.Pytester) -> None:
    result = run(pytester, SUITE, "--gpu-backend=real")
    result.assert_outcomes(passed=2, skipped=4)
    result.stdout.fnmatch_lines(["windtunnel: 0 tests on emulated GPUs, 4 skipped (no real GPU)"])


def test_a_test_that_needs_more_of_the_machine_than_it_may_fails_at_its_line(pytester: pytest.Pytester) -> None:
    text = """
    def test_it(cuda_device):
        import torch
        torch.ones(1 << 26, device=cuda_device)
    """
    result = run(pytester, text, "--gpu-backend=emulated", "--host-memory-limit=64MiB")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*HostMemoryError: *.py:3 makes 256 MiB of values for emulated GPU 0*"])


SPAWNS = """
import torch
import torch.multiprocessing as mp

def work(rank):
    torch.ones(3, device=f"cuda:{rank}").sum().item()

def test_spawn():
    mp.spawn(work, nprocs=2)

def test_nothing():
    pass
"""


def test_a_test_whose_processes_use_gpus_is_counted(pytester: pytest.Pytester) -> None:
    result = run(pytester, SPAWNS, "--gpus", "2", "--gpu-backend", "emulated")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["windtunnel: 1 test on emulated GPUs, *"])


INTERRUPTED = """
import pytest, torch
from windtunnel import checks

@pytest.fixture(autouse=True)
def nobody_looks_for_findings(monkeypatch):
    monkeypatch.setattr(checks, "run", lambda trace: print("looked for findings") or [])

def test_interrupted(cuda_device):
    torch.ones(3, device=cuda_device).sum().item()
    raise {error}
"""


@pytest.mark.parametrize("error", ["KeyboardInterrupt", 'pytest.exit.Exception("enough")'])
def test_a_run_that_is_ended_waits_for_no_findings(pytester: pytest.Pytester, error: str) -> None:
    result = run(pytester, INTERRUPTED.replace("{error}", error), "-s")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "looked for findings" not in result.stdout.str()
    result.stdout.fnmatch_lines(["!!!* *"])


def test_a_test_that_leaves_keeps_its_findings(pytester: pytest.Pytester) -> None:
    result = run(pytester, INTERRUPTED.replace("{error}", "SystemExit(3)"), "-s")
    assert "looked for findings" in result.stdout.str()
