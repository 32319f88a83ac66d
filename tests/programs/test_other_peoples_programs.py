"""`make programs`: its table is sound, its data are what programs read, and outcomes are judged by the output."""

from __future__ import annotations

import gzip
import pickle
import subprocess
import sys
from contextlib import suppress

import numpy as np
import psutil
import pytest
from tools import ROOT
from tools.programs import program_packages, programs
from tools.programs.program_data import MAKERS

TOOLS = ROOT / "tools" / "programs"
ROWS, VERSIONS = programs.rows()


def test_a_row_names_what_exists():
    assert not [row.name for row in ROWS if not set(row.packages) <= set(VERSIONS)]
    assert not [row.name for row in ROWS if row.prepare and row.prepare not in MAKERS]
    assert not [row.name for row in ROWS if row.script and not (TOOLS / "scripts" / row.script).is_file()]
    assert not [row.name for row in ROWS if not row.script and not row.command]
    assert not [row.name for row in ROWS if bool(row.checkout) != bool(row.folder)]


def test_each_package_has_a_module_that_can_be_imported():
    apart = set(program_packages.APART)
    assert all(program_packages.MODULES.get(name, name).isidentifier() for name in set(VERSIONS) - apart)


def test_a_package_that_breaks_others_is_seen_by_the_rows_that_name_it(tmp_path, monkeypatch):
    monkeypatch.setattr(program_packages, "PARTS", tmp_path)
    (tmp_path / "timm" / "timm-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "timm" / "timm-1.0.dist-info" / "METADATA").write_text("Name: timm\nVersion: 1.0\n", encoding="utf-8")
    (tmp_path / "timm" / "timm.py").write_text("", encoding="utf-8")
    code = "import importlib.util; print(importlib.util.find_spec('timm') is not None)"
    seen = {}
    for packages in (("timm",), ("accelerate",)):
        row = programs.Row("some", "looks", "V100", ("-c", code), packages=packages)
        seen[packages] = subprocess.run(
            [sys.executable, "-c", code], env=programs._variables(row, tmp_path), capture_output=True, text=True
        ).stdout.strip()
    assert seen == {("timm",): "True", ("accelerate",): "False"}
    assert program_packages.version_of("timm") == "1.0"
    assert program_packages.version_of("vit-pytorch") is None


@pytest.mark.parametrize(
    ("on_gpu", "on_cpu", "told"),
    [
        ("loss 1.5000\nloss 0.7500\n", "loss 1.5001\nloss 0.7500\n", "runs: 2 losses equal to the CPU's"),
        ("loss 1.5\n", "loss 1.6\n", "fails: its losses [1.5] are not the CPU's [1.6]"),
        ("loss 1.5\n", "loss 1.5\nloss 0.7\n", "fails: its losses [1.5] are not the CPU's [1.5, 0.7]"),
        (
            "loss 1.5\nseconds a step: processor 0.110, real 0.220\nseconds a step: processor 0.090, real 0.250\n",
            "loss 1.5\nseconds a step: processor 0.100, real 0.100\n",
            "runs: 1 loss equal to the CPU's; a step takes 220 ms where the CPU's takes 100 ms: 2.2 times the real "
            "and 1.1 times the processor time",
        ),
        (
            "loss 1.5\nseconds a step: processor 0.410, real 0.500\n",
            "loss 1.5\nseconds a step: processor 0.100, real 0.100\n",
            "fails: 1 loss equal to the CPU's; a step takes 500 ms where the CPU's takes 100 ms: 5.0 times the real "
            "and 4.1 times the processor time",
        ),
        (
            "loss 1.5\nseconds a step: processor 0.009, real 0.009\n",
            "loss 1.5\nseconds a step: processor 0.001, real 0.001\n",
            "fails: 1 loss equal to the CPU's; a step takes 9 ms where the CPU's takes 1 ms: 9.0 times the real "
            "and 9.0 times the processor time",
        ),
        ("loss 1.5\n", "none\n", "fails: on the CPU it ended with exit code 0 and 0 losses"),
    ],
)
def test_losses_are_held_to_those_of_the_program_on_the_cpu(tmp_path, on_gpu, on_cpu, told):
    row = programs.Row("some", "trains", "V100", cpu=("-c", f"print({on_cpu!r})"), losses="loss ([0-9.]+)")
    assert str(programs._beside_cpu(row, on_gpu, tmp_path, tmp_path / "some.log", 1)) == told


@pytest.mark.parametrize(
    ("compiled", "told"),
    [
        ("loss 1.5001\n", "runs: 1 loss equal to the uncompiled program's"),
        ("loss 1.6\n", "fails: its losses [1.6] are not those of the uncompiled program, [1.5]"),
    ],
)
def test_losses_are_held_to_those_of_the_uncompiled_program(tmp_path, monkeypatch, compiled, told):
    monkeypatch.setattr(programs, "_command", lambda row, folder, report: [sys.executable, *row.command])
    row = programs.Row("some", "trains", "V100", uncompiled=("-c", "print('loss 1.5')"), losses="loss ([0-9.]+)")
    assert str(programs._beside_uncompiled(row, compiled, tmp_path, tmp_path / "some.log", 1)) == told


def test_names_are_unique():
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)


@pytest.mark.long
def test_a_program_is_run_in_a_folder_of_its_own_and_judged(tmp_path):
    checkout = tmp_path / "sources" / "some"
    checkout.mkdir(parents=True)
    checkout.joinpath("train.py").write_text(
        "import torch\n"
        "weight = torch.ones(4, device='cuda', requires_grad=True)\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for _ in range(3):\n"
        "    weight.sum().backward()\n"
        "    optimizer.step()\n"
        "open('left', 'w').close()\n"
        "print('trained on', weight.device)\n",
        encoding="utf-8",
    )
    row = programs.Row("some", "trains", "V100", ("train.py",), checkout="who/some", folder=".", prints="on cuda:0")
    outcome = programs.run(row, tmp_path / "sources", tmp_path / "log", 1)
    assert str(outcome) == "runs"
    assert outcome.step.endswith("µs")
    assert outcome.peak == "0.0 MiB"
    assert not checkout.joinpath("left").exists()
    assert "trained on cuda:0" in (tmp_path / "log").read_text(encoding="utf-8")


def test_a_program_that_never_ends_is_stopped_when_it_has_shown_enough(tmp_path):
    code = "import time\nwhile True:\n    print('step 4', flush=True)\n    time.sleep(0.01)"
    row = programs.Row("endless", "loops", "V100", ("-c", code), until="step 4")
    assert str(programs.run(row, None, tmp_path / "log", 1)) == "runs: stopped after a few steps"


@pytest.mark.long
def test_a_failure_says_why(tmp_path):
    row = programs.Row("wrong", "fails", "V100", ("-c", "import torch; torch.ones(1, device='cuda:1')"), prints="done")
    outcome = programs.run(row, None, tmp_path / "log", 1)
    assert not outcome.good
    assert "CUDA error: invalid device ordinal" in str(outcome)


def test_what_needs_a_checkout_says_so(tmp_path):
    row = programs.Row("some", "trains", "V100", ("train.py",), checkout="who/some", folder=".")
    assert str(programs.run(row, None, tmp_path, 1)) == "not run: needs a checkout of who/some: --sources DIR"


def test_a_checkout_that_is_missing_is_cloned_and_named(tmp_path, monkeypatch):
    origin = tmp_path / "who" / "some"
    origin.mkdir(parents=True)
    author = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    origin.joinpath("train.py").write_text("", encoding="utf-8")
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(origin), *words], check=True)
    for key, value in {"COUNT": "1", "KEY_0": f"url.{tmp_path}/.insteadOf", "VALUE_0": "https://github.com/"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{key}", value)
    sources = tmp_path / "sources"
    refused = program_packages.clone(["who/some", "who/none"], sources)
    assert list(refused) == ["who/none"]
    commit = program_packages.commit_of(sources / "some")
    assert len(commit) == 7
    row = programs.Row("some", "trains", "V100", ("train.py",), checkout="who/some", folder=".")
    assert programs.entry(row, programs.Outcome("runs"), sources)["packages"] == f"who/some@{commit}"


def test_without_a_network_one_package_is_tried(monkeypatch, capfd):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    refused = program_packages.install([["no-such-a"], ["no-such-b"]], {"no-such-a": "1", "no-such-b": "1"})
    assert refused == dict.fromkeys(("no-such-a", "no-such-b"), "pip reaches no package index (NewConnectionError)")
    assert "installing no-such-b" not in capfd.readouterr().err


def test_nothing_is_installed_beside_a_package_that_cannot_be_had(monkeypatch):
    asked = []
    reasons = {"torchvision": "no CPU build"}
    monkeypatch.setattr(program_packages, "_provide", lambda name, version: asked.append(name) or reasons.get(name, ""))
    versions = dict.fromkeys(("timm", "torchvision", "pandas", "trl"), "")
    refused = program_packages.install([["timm", "torchvision"], ["pandas", "torchvision"], ["trl"]], versions)
    assert refused == reasons
    assert asked == ["torchvision", "trl"]


def test_ctrl_c_ends_the_program_and_its_ranks(tmp_path):
    code = (
        "import subprocess, sys; c = subprocess.Popen(['sleep', '100'], start_new_session=True); print(c.pid); c.wait()"
    )
    child = subprocess.Popen([sys.executable, "-uc", code], stdout=subprocess.PIPE, text=True)
    with child.stdout as lines:
        rank = psutil.Process(int(lines.readline()))
    programs._end(child)
    with suppress(psutil.NoSuchProcess):
        rank.wait(10)


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("== 5 passed, 2 skipped, 9 deselected in 4.2s ==\n", "fails: 5 passed, 2 skipped; t.py::known should fail"),
        ("FAILED t.py::known - E\n1 failed, 5 passed in 63.10s (0:01:03)\n", "runs: 5 passed, 1 failed as on a GPU"),
        ("FAILED t.py::new - E\nFAILED t.py::known\n2 failed, 5 passed in 4s\n", "fails: 5 passed, 2 failed"),
        (
            "ERROR t.py - E\nFAILED t.py::known\n1 failed, 5 passed, 1 error in 4s\n",
            "fails: 5 passed, 1 failed, 1 error",
        ),
        ("E   ImportError: no such module\n1 error in 4s\n", "fails: ImportError: no such module"),
    ],
)
def test_the_tests_that_fail_are_the_known_ones(output, told):
    row = programs.Row("some", "tests", "V100", tests=True, bugs={"t.py::known": "the library's, link"})
    assert str(programs._judge_tests(row, output)) == told


@pytest.mark.long
def test_tests_are_counted_with_gpus_and_without(tmp_path):
    checkout = tmp_path / "sources" / "some"
    checkout.mkdir(parents=True)
    checkout.joinpath("test_it.py").write_text(
        "import pytest, torch\n"
        "@pytest.mark.skipif(not torch.cuda.is_available(), reason='GPU')\n"
        "def test_there():\n    assert torch.ones(1, device='cuda').item() == 1\n"
        "def test_here():\n    assert torch.ones(1).item() == 1\n",
        encoding="utf-8",
    )
    row = programs.Row("some", "tests", "V100", ("test_it.py",), checkout="who/some", folder=".", tests=True)
    outcome = programs.run(row, tmp_path / "sources", tmp_path / "some.log", 1)
    assert str(outcome) == "runs: 2 passed; without GPUs 1 passed, 1 skipped"


def test_data_have_the_formats_that_programs_read(tmp_path):
    folder = tmp_path / "program"
    folder.mkdir()
    for maker in MAKERS.values():
        maker(folder)
    train = np.fromfile(folder / "data" / "local" / "train.bin", dtype=np.uint16)
    assert len(train) > 10_000
    assert train.max() < 40
    images = (tmp_path / "data" / "FashionMNIST" / "raw" / "train-images-idx3-ubyte").read_bytes()
    assert len(images) == 16 + 512 * 784
    assert len((folder / "text" / "valid.txt").read_text(encoding="utf-8").splitlines()) == 30
    assert len((folder / "data" / "eng-fra.txt").read_text(encoding="utf-8").splitlines()) == 32
    assert sorted(path.stem for path in (folder / "data" / "names").iterdir()) == ["German", "Italian", "Polish"]
    (train, labels), *_ = pickle.loads(gzip.decompress((folder / "data" / "mnist" / "mnist.pkl.gz").read_bytes()))
    assert train.shape == (512, 784)
    assert labels.max() == 9
