"""What the checks find in tests, as a person who runs pytest sees it: gates, reports, failure output."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
"""Each starts programs of its own."""

pytest_plugins = ["pytester"]

RACE = """
import torch

def race():
    stream = torch.cuda.Stream()
    x = torch.empty(100, device="cuda").normal_()
    with torch.cuda.stream(stream):
        return x.sum()
"""
ALONE = "--gpus=2", "--gpu-backend=emulated", "-p", "no:cacheprovider"


def run(pytester: pytest.Pytester, text: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(test_it=RACE + text)
    return pytester.runpytest_subprocess(*ALONE, *arguments)


def test_findings_stand_at_the_end_and_fail_nothing_by_default(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_race():\n    race()\n")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["windtunnel: 1 test on emulated GPUs*", "windtunnel found 1 error:"])
    result.stdout.fnmatch_lines(["error unsynchronized-access test_it.py:7 (and test_it.py:5)"])


@pytest.mark.parametrize(("gate", "failed"), [("unsynchronized-access=0", 1), ("error=1", 0)])
def test_a_gate_fails_the_test_with_the_finding(pytester: pytest.Pytester, gate: str, failed: int) -> None:
    result = run(pytester, "def test_race():\n    race()\n", "--gpu-fail-on", gate)
    result.assert_outcomes(failed=failed, passed=1 - failed)
    if failed:
        result.stdout.fnmatch_lines(["this test has findings not allowed by --gpu-fail-on", "error unsync*_it.py:7*"])


def test_a_gate_of_the_project_holds_too(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml('[tool.windtunnel]\nfail-on = ["unsynchronized-access"]\n')
    run(pytester, "def test_race():\n    race()\n").assert_outcomes(failed=1)


def test_a_test_that_fails_of_itself_shows_its_findings(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_race():\n    assert race() is None\n")
    result.stdout.fnmatch_lines(["*Captured GPU findings call*", "error unsynchronized-access test_it.py:7*"])


def test_each_test_has_its_own_findings(pytester: pytest.Pytester) -> None:
    text = "def test_race():\n    race()\n\ndef test_fine():\n    torch.ones(3, device='cuda').sum()\n"
    run(pytester, text, "--gpu-fail-on=error").assert_outcomes(failed=1, passed=1)


ASSERTING = """
def test_race(assert_no_findings):
    assert_no_findings()
    race()
    assert_no_findings()

def test_sync(assert_no_findings):
    torch.ones(3, device="cuda").sum().item()
    assert_no_findings()
    assert_no_findings("host-sync=1", "unsynchronized-access")
    assert_no_findings("host-sync")
"""


def test_assert_no_findings_fails_at_its_line(pytester: pytest.Pytester) -> None:
    result = run(pytester, ASSERTING)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["E *error unsynchronized-access test_it.py:7*"])
    result.stdout.fnmatch_lines(['>*assert_no_findings("host-sync")', "E *info host-sync test_it.py:15*"])


SLOW = """
def test_slow():
    mask, x = torch.ones(256, 256), torch.ones(256, 256, device="cuda")
    for _ in range(200):
        x = torch.tanh(x) * mask.to("cuda")
"""


@pytest.mark.parametrize("option", ["correctness", "speed"])
def test_what_only_costs_time_is_shown_by_request(pytester: pytest.Pytester, option: str) -> None:
    arguments = [] if option == "correctness" else [f"--gpu-findings={option}"]
    text = run(pytester, SLOW + "def test_race():\n    race()\n", *arguments, "--gpu-report=found.json").stdout.str()
    assert "error unsynchronized-access" in text
    assert ("warning repeated-copy" in text) == (option == "speed")
    assert ("1 finding of speed, shown by --gpu-findings=speed" in text) == (option == "correctness")
    codes = {finding["code"] for finding in json.loads(Path("found.json").read_text())["findings"]}
    assert ("repeated-copy" in codes) == (option == "speed")


def test_a_gate_holds_for_what_is_not_shown(pytester: pytest.Pytester) -> None:
    run(pytester, SLOW, "--gpu-fail-on=repeated-copy").assert_outcomes(failed=1)


def test_the_summary_takes_fifteen_lines(pytester: pytest.Pytester) -> None:
    text = "".join(
        f"""
def test_{number}():
    stream = torch.cuda.Stream()
    x = torch.empty(100, device="cuda").normal_()
    with torch.cuda.stream(stream):
        x.sum()
"""
        for number in range(20)
    )
    lines = run(pytester, text, "-q").stdout.lines
    begin = next(number for number, line in enumerate(lines) if line.startswith("windtunnel: 20 tests"))
    end = next(number for number, line in enumerate(lines) if line.startswith("20 passed"))
    assert end - begin == 15
    assert lines[begin + 1] == "windtunnel found 20 errors:"
    assert lines[end - 1] == "and 8 more; --gpu-report findings.md writes all of them"


FAILING = """
import pytest
net = torch.nn.Linear(8, 8)

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        raise ValueError("of the program")

@pytest.fixture
def broken():
    return torch.ones(3, device="cuda").numpy()

def test_devices():
    net(torch.ones(4, 8, device="cuda"))

def test_memory():
    torch.empty(1 << 40, device="cuda")

def test_fixture(broken):
    pass

def test_function():
    Twice.apply(torch.ones(3, device="cuda", requires_grad=True)).sum().backward()

def test_chain():
    try:
        torch.ones(3, device="cuda").numpy()
    except TypeError as error:
        raise KeyError("no") from error
"""


def test_tracebacks_hold_none_of_our_frames(pytester: pytest.Pytester) -> None:
    result = run(pytester, FAILING, "-p", "no:xdist")
    text = result.stdout.str()
    result.assert_outcomes(failed=4, errors=1)
    assert "windtunnel/seam" not in text
    assert "dispatch" not in text
    result.stdout.fnmatch_lines([">*return F.linear(input, self.weight, self.bias)", "E *Expected all tensors*"])
    result.stdout.fnmatch_lines(["*torch/nn/modules/linear.py:*: RuntimeError"])
    result.stdout.fnmatch_lines(['>*torch.empty(1 << 40, device="cuda")', "E *CUDA out of memory*"])
    result.stdout.fnmatch_lines(['>*raise ValueError("of the program")'])
    result.stdout.fnmatch_lines(["*The above exception was the direct cause of the following exception:*"])
    result.stdout.fnmatch_lines(["windtunnel: 4 tests on emulated GPUs*"])  # those that fail count too
    assert "windtunnel/seam" in run(pytester, FAILING, "--full-trace", "-p", "no:xdist").stdout.str()


def test_reports_hold_the_findings_of_all_workers(pytester: pytest.Pytester) -> None:
    text = "def test_one():\n    race()\n\ndef test_other():\n    race()\n"
    result = run(pytester, text, "-n2", "--gpu-report=found.sarif", "--gpu-report=found.md", "--gpu-report=found.json")
    result.assert_outcomes(passed=2)
    (race,) = json.loads(Path("found.json").read_text())["findings"]
    assert (race["code"], race["count"], race["line"]) == ("unsynchronized-access", 2, 7)
    (sarif,) = json.loads(Path("found.sarif").read_text())["runs"][0]["results"]
    assert sarif["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "test_it.py"
    assert Path("found.md").read_text().startswith("**EMULATED, 2 tests on GPUs: 1 error**")
    assert "PytestAssertRewriteWarning" not in result.stdout.str()


@pytest.mark.parametrize("option", ["--gpu-report=run.html", "--gpu-report=run.xyz", "--gpu-fail-on=host-sink"])
def test_what_cannot_be_is_refused_before_anything_runs(pytester: pytest.Pytester, option: str) -> None:
    result = run(pytester, "def test_race():\n    race()\n", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert len(result.stderr.lines) <= 2


NAMES = """
import pytest

@pytest.mark.parametrize("gpus", [1, 2])
def test_parameter(gpus):
    assert gpus in (1, 2)
    assert torch.cuda.device_count() == 2

@pytest.fixture
def cuda_device():
    return "of this suite"

def test_fixture(cuda_device):
    assert cuda_device == "of this suite"
    assert torch.cuda.device_count() == 2
"""


def test_a_suite_s_own_parameters_and_fixtures_keep_their_names(pytester: pytest.Pytester) -> None:
    run(pytester, NAMES).assert_outcomes(passed=3)


EXAMPLE = Path(__file__).parents[2] / "examples" / "ci"


@pytest.fixture
def example(pytester: pytest.Pytester) -> pytest.Pytester:
    shutil.copytree(EXAMPLE, pytester.path, dirs_exist_ok=True)
    return pytester


def test_the_example_s_gpu_tests_run_without_a_gpu(example: pytest.Pytester) -> None:
    assert "pytest --gpus 2 --gpu-backend emulated" in (example.path / ".github/workflows/gpu-tests.yml").read_text()
    example.runpytest_subprocess(*ALONE, "--gpu-fail-on=error").assert_outcomes(passed=11)
    without = example.runpytest_subprocess("--gpu-backend=emulated", "-p", "no:cacheprovider")
    without.assert_outcomes(passed=1, skipped=10)


def test_the_example_s_gate_finds_a_wait_that_was_forgotten(example: pytest.Pytester) -> None:
    module = example.path / "src" / "carousel" / "prefetch.py"
    text = module.read_text("utf-8")
    module.write_text(text.replace("        current.wait_event(arrived)\n", ""), "utf-8")
    selected = "tests/test_prefetch.py"
    example.runpytest_subprocess(*ALONE, selected).assert_outcomes(passed=6)
    result = example.runpytest_subprocess(*ALONE, "--gpu-fail-on=error", selected)
    result.assert_outcomes(passed=2, failed=4)
    result.stdout.fnmatch_lines(
        ["error unsynchronized-access tests/test_prefetch.py:15 (and src/carousel/prefetch.py:*"]
    )
