"""A GPU that a user describes in a file: `--gpus path/to/my.toml`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from windtunnel import gpus
from windtunnel.cli.gpus import command
from windtunnel.errors import FileFormatError, UsageError
from windtunnel.gpus.gpu import FOLDER


@pytest.fixture
def write(tmp_path):
    """Write `my.toml`: the T4's file with some text replaced; returns its path."""

    def written(replace="", by=""):
        text = (FOLDER / "T4.toml").read_text()
        assert replace in text
        path = tmp_path / "my.toml"
        path.write_text(text.replace('key = "T4"', 'key = "mine"').replace(replace, by, 1) if replace else text)
        return path

    return written


def test_a_spec_may_name_a_file(write, monkeypatch):
    path = write("sm_count = 40", "sm_count = 44")
    assert [gpu.key for gpu in gpus.parse(f"2x{path},V100")] == ["mine", "mine", "V100-SXM2-16GB"]
    monkeypatch.chdir(path.parent)
    assert gpus.parse("my.toml:2") == gpus.parse(f"2x{path}")
    assert gpus.find("./my.toml").sm_count == 44


def test_relative_paths_become_absolute_for_other_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert gpus.absolute("2x my.toml,V100:2, a/b.toml:3") == f"2x {tmp_path}/my.toml,V100:2,{tmp_path}/a/b.toml:3"
    assert gpus.absolute("2xV100, A100") == "2xV100, A100"


def test_sources_may_be_left_out(write):
    path = write("smi_memory_mib = 15360", "smi_memory_mib = 15361")
    path.write_text(path.read_text().split("[sources]")[0])
    assert gpus.find(str(path)).sources == {}


def test_a_user_s_gpu_survives_in_a_trace(write):
    gpu = gpus.find(str(write("sm_count = 40", "sm_count = 44")))
    assert gpus.from_description(gpus.describe(gpu)) == gpu
    assert gpus.from_description(gpus.describe(gpus.find("H100"))) is gpus.find("H100")


@pytest.mark.parametrize(
    ("replace", "by", "sentence"),
    [
        ("sm_count = 40\n", "smcount = 40\n", "sm_count is missing, smcount is unknown; compare it with V100"),
        ("sm_count = 40", 'sm_count = "40"', "sm_count must be a whole number"),
        ("sm_count = 40", "sm_count = 0", "sm_count must be more than 0"),
        ("sm_count = 40", "sm_count = 4611686018427387904", "sm_count is not a number that a GPU has"),
        ("clock_mhz = 1590", "clock_mhz = inf", "clock_mhz must be a whole number"),
        ("sm_count = 40", "sm_count = true", "sm_count must be a whole number"),
        ("[7, 5]", "7.5", "compute_capability must be two whole numbers, such as"),
        ('"turing"', '"touring"', "generation must be one of ada, ampere, "),
        ("pcie_generation = 3", "pcie_generation = 7", "pcie_generation must be one of 3, 4, 5"),
        ('name = "Tesla T4"', "name = 4", "name must be a text"),
        ('aliases = ["Tesla-T4"]', 'aliases = "T4"', "aliases must be a list of names"),
        ("fp32 = 8.1e12\n", "", "peak_flops must be a table with fp32 at least"),
        ("fp32 = 8.1e12", "fp32 = 8.1e12\nfp33 = 1.0", "peak_flops has fp33, which is none of fp64"),
        ("fp32 = 8.1e12", "fp32 = -1", "peak_flops must hold operations a second, more than 0"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(write, replace, by, sentence):
    with pytest.raises(FileFormatError, match=rf"^my\.toml does not describe a GPU: {sentence}") as caught:
        gpus.parse(str(write(replace, by)))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_toml_or_not_there_is_refused(tmp_path):
    (tmp_path / "my.toml").write_text("sm_count = ")
    with pytest.raises(FileFormatError, match=r"^my\.toml is not TOML: "):
        gpus.find(str(tmp_path / "my.toml"))
    with pytest.raises(UsageError, match=r"other\.toml cannot be read: No such file"):
        gpus.parse(f"2x{tmp_path}/other.toml")


def test_the_file_on_the_documentation_s_page_can_be_read(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "gpus.md").read_text(encoding="utf-8")
    (tmp_path / "my.toml").write_text(page.split("```toml\n")[1].split("```")[0])
    assert gpus.find(str(tmp_path / "my.toml")).key == "my-gpu"


def test_the_command_lists_every_model_and_reads_a_file(write):
    listed = CliRunner().invoke(command, []).output
    assert {line.split()[0] for line in listed.splitlines()[1:]} == set(gpus.names())
    facts = CliRunner().invoke(command, [str(write("sm_count = 40", "sm_count = 44"))]).output
    assert facts.startswith("mine\n")
    assert "\n  sm_count = 44 " in facts
