"""`windtunnel experiment`: what a person sees, and what a person can get wrong."""

import html
import json
from pathlib import Path

import pytest

from helpers.schemas import conforms
from windtunnel import experiments
from windtunnel.trace.units import join_units

pytestmark = pytest.mark.long
"""Each starts programs of its own."""

WRONG = {
    "a typo": (["matmull"], "there is no experiment 'matmull'; did you mean matmul?"),
    "a name far off": (["nothing-like-it"], "there are "),
    "sizes that are none": (["matmul", "--sizes", "big"], "is not a list of sizes"),
    "a report of another kind": (["matmul", "--report", "out.json"], "must end in .html"),
    "an unknown GPU": (["matmul", "--gpus", "V1000"], "no GPU is called 'V1000'"),
    "a folder that cannot be written": (["matmul", "--report", "/proc/out.html"], "cannot be written"),
}


@pytest.mark.parametrize(("arguments", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_bad_input_is_one_sentence_and_code_2(windtunnel, arguments, sentence) -> None:
    done = windtunnel("experiment", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("windtunnel: ")
    assert len(done.stderr.splitlines()) == 1
    assert sentence in done.stderr


def test_the_list_names_every_experiment_and_needs_no_framework(windtunnel) -> None:
    lines = windtunnel("experiment", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(experiments.names())
    assert [line.split(maxsplit=1)[1] for line in lines] == [experiments.title(name) for name in experiments.names()]
    assert windtunnel("experiment").stdout.splitlines() == lines


def test_json_is_all_that_is_on_stdout_and_the_page_is_written(windtunnel, tmp_path: Path) -> None:
    arguments = ("--gpus", "V100", "--small", "--sizes", "16,64", "--json", "--report", "pages/out.html")
    done = windtunnel("experiment", "matmul", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert result["emulated"] is True
    assert conforms("experiment", result)
    assert [row[1] for row in result["tables"][0]["rows"] if row[0] == "float32"] == [16, 64]
    page = (tmp_path / "pages" / "out.html").read_text(encoding="utf-8")
    assert "EMULATED" in page
    assert html.escape(join_units(result["conclusion"][1]), quote=False) in page


def test_it_does_not_run_inside_a_run(windtunnel) -> None:
    done = windtunnel("run", "-q", "--gpus", "V100", "-m", "windtunnel", "experiment", "matmul", "--small")
    assert done.returncode == 2
    assert "without `windtunnel run`" in done.stderr
