"""Bad input gets one clear sentence on stderr and exit code 2; nothing is run."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from windtunnel.cli import NAMES, group

WRONG = {
    "an unknown command": (["rnu"], "there is no command 'rnu'; did you mean run?"),
    "a script without run": (["train.py"], "to run that program: windtunnel run train.py"),
    "no program": (["run"], "no program was given"),
    "a missing script": (["run", "nope.py"], "there is no file 'nope.py' to run"),
    "a command as script": (["run", "sh", "-c", "true"], "there is no file 'sh' to run; --no-python runs a command"),
    "a missing command": (["run", "--no-python", "nope"], "there is no command 'nope' to run"),
    "two kinds of program": (["run", "-m", "-c", "x"], "exclude each other"),
    "an unknown option": (["run", "--gps", "2", "-c", "1"], "--gpus"),
    "an unknown GPU": (["run", "--gpus", "2xV1000", "-c", "1"], "no GPU is called 'V1000'"),
    "a value that is no literal": (
        ["run", "--assume", "maybe", "-c", "1"],
        "--assume cannot be maybe: it must be a number",
    ),
    "a bad list of GPUs": (["run", "--gpus", "2x", "-c", "1"], "is not a list of GPUs"),
    "a bad CUDA version": (["run", "--cuda-version", "new", "-c", "1"], "is not a CUDA version"),
    "a bad seed": (["run", "--seed", "x", "-c", "1"], "'x' is not a valid integer"),
    "an unknown finding": (["run", "--fail-on", "hostsync", "-c", "1"], "did you mean host-sync?"),
    "no finding to fail on": (["run", "--fail-on", ",", "-c", "1"], "it names no finding"),
    "a bad number of findings": (["run", "--fail-on", "host-sync=few", "-c", "1"], "number of incidents"),
    "an unknown report format": (["run", "--report", "x.foo", "-c", "1"], "no report format fits 'x.foo'"),
    "a report that is a folder": (["run", "--trace", ".", "-c", "1"], "is a folder"),
    "a cluster without nodes": (
        ["run", "--cluster", "8xH100", "-c", "1"],
        "give nodes, GPUs of a node and their model",
    ),
    "a cluster of an unknown GPU": (["run", "--cluster", "2x8xH1000", "-c", "1"], "no GPU is called 'H1000'"),
    "a cluster and GPUs": (["run", "--cluster", "2x8xH100", "--gpus", "2", "-c", "1"], "leave out --gpus"),
    "a cluster and ranks": (
        ["run", "--cluster", "2x8xH100", "--nproc-per-node", "2", "-c", "1"],
        "leave out --gpus and torchrun's options",
    ),
    "a comparison without a cluster": (["run", "--check-fold", "2", "-c", "1"], "of a --cluster are compared"),
    "a comparison of no number": (["run", "--cluster", "1x8xH100", "--check-fold", "x", "-c", "1"], "or all"),
    "a trace that is none": (["report", "junk"], "junk is not a windtunnel trace"),
    "a missing trace": (["report", "none.trace"], "none.trace: No such file"),
    "an unknown GPU to show": (["gpus", "X100"], "no GPU is called 'X100'"),
}


@pytest.mark.parametrize(("arguments", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_bad_input_is_one_sentence_and_code_2(windtunnel, tmp_path: Path, arguments, sentence) -> None:
    (tmp_path / "junk").write_text("junk")
    done = windtunnel(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("windtunnel: ")
    assert len(done.stderr.splitlines()) == 1
    assert sentence in done.stderr


def test_an_unwritable_report_is_refused_before_the_program_runs(windtunnel) -> None:
    done = windtunnel("run", "--report", "/proc/windtunnel.json", "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be written" in done.stderr


def test_no_folder_for_temporary_files_is_said(windtunnel, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    # The interpreter falls back on the usual folders, so it is given a program that makes them unusable.
    code = (
        "import sys, tempfile, windtunnel.cli; tempfile.tempdir = sys.argv[1];windtunnel.cli.main(['run', '-c', '1'])"
    )
    done = subprocess.run([sys.executable, "-c", code, gone], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "set TMPDIR" in done.stderr


@pytest.mark.parametrize("command", ["run", "report", "gpus", "doctor", "smi"])
def test_every_command_explains_itself(windtunnel, command: str) -> None:
    done = windtunnel(command, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: windtunnel {command} ")


def test_settings_come_from_pyproject_then_environment_then_flags(windtunnel, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.windtunnel]\ngpus = "1xT4"\nseed = 4\nquiet = true\n')
    show = ("-c", "import os; print(os.environ['WINDTUNNEL_RUN'])")
    assert windtunnel("run", *show).stdout == '{"gpus": "1xT4", "seed": 4}\n'
    environment = {"WINDTUNNEL_GPUS": "2xA100"}
    assert windtunnel("run", *show, env=environment).stdout == '{"gpus": "2xA100", "seed": 4}\n'
    assert windtunnel("run", "--gpus", "3", *show, env=environment).stdout == '{"gpus": "3", "seed": 4}\n'


@pytest.mark.long
def test_every_rank_gets_a_gpu_when_nobody_says_how_many(windtunnel) -> None:
    show = ("--no-python", "sh", "-c", "echo $WINDTUNNEL_RUN")
    assert '{"gpus": "3"}' in windtunnel("run", "-q", "--nproc-per-node", "3", *show).stdout
    assert '{"gpus": "1"}' in windtunnel("run", "-q", "--gpus", "1", "--nproc-per-node", "3", *show).stdout


def test_a_setting_that_does_not_exist_is_refused(windtunnel, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.windtunnel]\ngpu = 2\n")
    done = windtunnel("run", "-c", "1")
    assert done.returncode == 2
    assert "no setting 'gpu'; did you mean gpus?" in done.stderr


WRONG_SETTINGS = {
    "fail-on = 3": "fail-on must be a list of strings, not 3",
    'fail-on = ["host-sync", 3]': "fail-on must be a list of strings, not ['host-sync', 3]",
    'fail-on = ["host-sink"]': "there is no finding 'host-sink' to fail on; did you mean host-sync?",
    'fail-on = ["host-sync=few"]': "after = give the number of incidents that are allowed",
    "report = 1": "report must be a list of strings, not 1",
    "seed = 1.5": "seed must be a whole number, not 1.5",
    'quiet = "maybe"': "quiet must be true or false, not 'maybe'",
    "gpus = true": 'gpus must be a string, "2xV100", or a number, not True',
    "assume = {a = 1}": "assume must be a number, or true or false, not {'a': 1}",
    'clock = "fast"': "'fast' is not one of 'virtual', 'real'",
}


@pytest.mark.parametrize(("line", "sentence"), WRONG_SETTINGS.items(), ids=WRONG_SETTINGS.keys())
def test_a_setting_of_another_type_is_one_sentence(windtunnel, tmp_path: Path, line: str, sentence: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.windtunnel]\n{line}\n")
    done = windtunnel("run", "-c", "print('ran')")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert sentence in done.stderr


def test_a_file_keeps_its_name_in_the_sentence(windtunnel, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("junk")
    assert windtunnel("report", "README.md").stderr.startswith("windtunnel: README.md is not a windtunnel trace")


def test_a_full_disk_is_said(windtunnel) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "windtunnel", "gpus"], stdout=full, stderr=-1, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr == "windtunnel: the output cannot be written: No space left on device\n"


def test_a_python_that_is_too_old_is_one_sentence() -> None:
    code = (
        "import runpy, sys; sys.version_info = (3, 10, 13, 'final', 0);"
        "runpy.run_module('windtunnel', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "3.11 or newer is needed" in done.stderr


def test_no_help_names_a_file_that_is_not_installed() -> None:
    for name in NAMES:
        for flag in ("--help", "--help-all"):
            shown = CliRunner().invoke(group, [name, flag]).output
            assert "docs/" not in shown, name


def test_the_help_of_run_says_what_exit_codes_mean() -> None:
    shown = " ".join(CliRunner().invoke(group, ["run", "--help"]).output.split())
    for code in ("64: a finding of --fail-on", "65:", "66:", "67:", "2: wrong usage"):
        assert code in shown
