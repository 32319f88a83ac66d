"""Every PyTorch listing of the mission's documents runs unchanged on emulated GPUs and prints what the document prints.

`mission/pytorch/NAME.py` is a listing, `NAME.expected` the output. Indentation and runs of spaces are not compared:
the copies of the documents lost them. `{number}` in an expected line is a random number. docs/errata.md says what the
preludes supply and where an expected text is not the document's.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
"""Each starts programs of its own."""

HERE = Path(__file__).parent
NOTEBOOK = HERE / "notebook.py"
MISSION = HERE / "mission" / "pytorch"
GPUS = {"s3_devices": "3xV100", "s2_device_ids": "4xV100", "s2_visible_devices": "5xV100"}
OWN_TEST = {"s0_trainer", "s2_housing", "s2_ddp"}
LISTINGS = sorted(path.stem for path in MISSION.glob("*.py") if "." not in path.stem)
NUMBER = r"-?[0-9]+\.[0-9]*(?:e[-+][0-9]+)?"


def program(name):
    """The path of a listing."""
    return str(MISSION / f"{name}.py")


def expected_lines(name):
    """The lines that a listing should print."""
    return normalised((MISSION / f"{name}.expected").read_text(encoding="utf-8"))


def normalised(text):
    """The lines of a text without indentation, with single spaces."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def matches(expected, line):
    """Whether a printed line is the expected one."""
    return re.fullmatch(re.escape(expected).replace(r"\{number\}", NUMBER), line) is not None


def windtunnel_run(folder, *arguments, gpus="2xV100", **environment):
    """What `windtunnel run` printed on stdout; the program must end well."""
    done = subprocess.run(
        [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", gpus, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_prints(stdout, expected):
    """Compare line by line."""
    lines = normalised(stdout)
    wrong = [(want, got) for want, got in zip(expected, lines, strict=False) if want != got and not matches(want, got)]
    assert (wrong, len(lines)) == ([], len(expected)), stdout


# mission 6, 9, 13, 14, 24
@pytest.mark.parametrize("name", [name for name in LISTINGS if name not in OWN_TEST])
def test_listing_prints_what_the_document_prints(name, tmp_path):
    stdout = windtunnel_run(tmp_path, str(NOTEBOOK), program(name), gpus=GPUS.get(name, "2xV100"))
    assert_prints(stdout, expected_lines(name))


def test_every_listing_has_its_expected_output():
    assert {path.stem for path in MISSION.glob("*.expected")} == set(LISTINGS)
    assert len(LISTINGS) >= 16


# mission 91
def test_disable_cuda_listing_uses_the_cpu(tmp_path):
    stdout = windtunnel_run(tmp_path, str(NOTEBOOK), program("s3_disable_cuda"), "--disable-cuda")
    assert_prints(stdout, ["cpu cpu cpu 2 cuda:0"])


# mission 56, 57, 58, 59, 60, 62, 63
def test_trainer_listing_trains_on_the_first_gpu(tmp_path):
    stdout = windtunnel_run(tmp_path, str(NOTEBOOK), program("s0_trainer"))
    assert_prints(stdout, expected_lines("s0_trainer"))


def pieces(text):
    """Every printed piece and how often: two threads that print at the same time may mix their lines."""
    return Counter(re.findall(r"torch\.Size\(\[[\d, ]+\]\)|In Model: input size|Outside: input size|output.size", text))


# mission 114, 115, 116, 117, 118
def test_housing_listing_splits_every_batch_over_both_gpus(tmp_path):
    stdout = windtunnel_run(tmp_path, str(NOTEBOOK), program("s2_housing"))
    *shown, model_1, model_2, outside = expected_lines("s2_housing")[:17]
    assert normalised(stdout)[: len(shown)] == shown
    full = f"{model_1}\n{model_2}\n{outside}\n"
    last = full.replace("64", "10").replace("128", "20")
    assert pieces(stdout) == pieces((full * 3 + last) * 100)
    assert len(list((tmp_path / "logs").iterdir())) == 1


# mission 123, 124
@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(
            ["-m", "torch.distributed.launch", "--standalone", "--nproc-per-node", "1"],
            id="launch",
        ),
        pytest.param(["--no-python", "torchrun", "--standalone", "--nproc-per-node", "1"], id="torchrun"),
        pytest.param(["--nproc-per-node", "1"], id="windtunnel"),
    ],
)
def test_ddp_listing_runs_under_every_launcher(launcher, tmp_path):
    script = tmp_path / "main.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(HERE)!r})\nimport notebook\nnotebook.main({program('s2_ddp')!r})\n",
        encoding="utf-8",
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    stdout = windtunnel_run(tmp_path, *launcher, str(script), PATH=path)
    assert_prints(stdout, expected_lines("s2_ddp"))
