"""A plan as text, Markdown, JSON and a page; and a small one from beginning to end."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.planning_rows import row
from helpers.schemas import conforms
from windtunnel.errors import UsageError
from windtunnel.planning import formats
from windtunnel.planning.page import chart, frontier
from windtunnel.planning.result import Plan, money
from windtunnel.planning.rows import Work, parse_prices
from windtunnel.planning.table import render_markdown, render_text

WORK = Work(steps=1000, prices=parse_prices(["L4=1", "A100=3"]))
ROWS = [row("L4", 0.5, 1.0), row("A100", 0.1, 10.0), row("T4", 0.9, 2.0), row("V100", None, None, "does not fit")]


def test_the_first_lines_say_what_to_take_why_and_the_command() -> None:
    verdict, why, then, *_ = render_text(Plan(ROWS, WORK, "train.py"), width=160).splitlines()
    assert verdict == "verdict EMULATED: take L4 with --batch=8"
    assert why.startswith("why     the cheapest of 3 candidates that fit, 500 ms a step (450 ms to 550 ms)")
    assert then == "next    python train.py --batch=8"


def test_a_row_says_by_how_much_it_does_not_fit() -> None:
    text = render_text(Plan(ROWS, WORK, "train.py"), width=160)
    assert "no, 2.00 GiB short" in text


def test_long_choices_are_folded_and_numbers_are_not() -> None:
    choices = {"--batch": "8", "--precision": "bf16", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    text = render_text(Plan([replace(one, choices=choices) for one in ROWS], WORK, "train.py"), width=120)
    assert max(map(len, text.split("\n\n")[1].splitlines())) <= 120
    assert sum("500 ms ±10 %" in line and "12.0 GiB" in line for line in text.splitlines()) == 1


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_a_narrow_terminal_goes_without_columns_and_folds_no_cell(width: int) -> None:
    text = render_text(Plan(ROWS, WORK, "train.py"), width=width)
    table = text.split("\n\n")[1].splitlines()
    heads, lines = table[0], [line for line in table[1:] if not line.startswith("a wider terminal")]
    assert len(lines) == len(ROWS)
    assert max(map(len, table[:-1])) <= width
    assert {"GPUs", "with", "fits", "step", "cost"} <= set(heads.split())
    assert ("a wider terminal shows how" in text) == (width < 160)


def test_markdown_has_a_row_a_candidate() -> None:
    lines = render_markdown(Plan(ROWS, WORK, "train.py")).splitlines()
    assert sum(line.startswith("| ") for line in lines) == 2 + len(ROWS)  # titles and rule
    assert any(line.startswith("| A100 | --batch=8 | yes |") for line in lines)


def test_the_frontier_is_of_those_that_no_other_beats() -> None:
    assert [one.gpus for one in frontier(ROWS)] == ["A100", "L4"]
    data = chart(Plan(ROWS, WORK, "train.py"))
    assert data is not None
    assert {point["name"].split()[0]: point["frontier"] for point in data["points"]} == {
        "A100": True, "L4": True, "T4": False,
    }  # fmt: skip


def test_the_chart_is_of_equal_work_where_steps_differ() -> None:
    same = chart(Plan(ROWS, WORK, "train.py"))
    larger = chart(Plan([replace(ROWS[0], units_per_step=999.0), *ROWS[1:]], WORK, "train.py"))
    assert same is not None
    assert larger is not None
    assert (same["x"], same["y"]) == ("hours of the whole run", "cost of the whole run")
    assert larger["x"].startswith("seconds of a million ")
    assert larger["y"].startswith("cost of a million ")


def test_names_of_the_program_are_escaped_on_the_page(tmp_path: Path) -> None:
    formats.write(tmp_path / "plan.html", Plan(ROWS, WORK, "<script>alert(1)</script>.py"))
    text = (tmp_path / "plan.html").read_text()
    assert "<script>alert(1)" not in text
    assert "frontier-chart" in text


def test_an_unknown_suffix_is_refused() -> None:
    with pytest.raises(UsageError, match=r"\.html, \.json, \.md"):
        formats.find("plan.pdf")


PROGRAM = """
import sys, torch
width = int(sys.argv[sys.argv.index("--width") + 1]) if "--width" in sys.argv else int(sys.argv[1].partition("=")[2])
model = torch.nn.Linear(1024, width, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for step in range(100000):
    model(torch.zeros(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.long
def test_a_plan_from_the_command_line_and_again_from_its_cache(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    line = [sys.executable, "-m", "windtunnel", "plan", "train.py", "--gpus", "A10,RTX3090",
            "--vary=--width=64,16000000", "--json", "--jobs", "1"]  # fmt: skip
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert conforms("plan", made)
    found = {(one["gpus"], one["choices"]["--width"]): one for one in made["rows"]}
    assert found["A10", "64"]["status"] == found["RTX3090", "64"]["status"] == "fits"
    assert found["RTX3090", "64"]["how"] == "retimed from A10"
    assert found["A10", "16000000"]["headroom_bytes"] < -30 << 30
    assert made["rows"][made["best"]]["command"] == "python train.py --width=64"
    again = json.loads(
        subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True, env=env).stdout
    )  # fmt: skip
    assert again["rehearsals"] == 0
    assert [one["step_ns"] for one in again["rows"]] == [one["step_ns"] for one in made["rows"]]
    (tmp_path / "train.py").write_text(PROGRAM + "\n# changed\n")
    none = [*line[:-3], "--vary=--width=16000000", *line[-3:]]
    none.remove("--vary=--width=64,16000000")
    done = subprocess.run(none, cwd=tmp_path, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1
    assert json.loads(done.stdout)["verdict"] == "EMULATED: nothing fits"
    assert json.loads(done.stdout)["rehearsals"] > 0


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.0, "0.00"), (12.4, "12.40"), (1234.5, "1,234.50"), (0.1, "0.10"), (0.0074, "0.0074"), (3e-5, "0.000030")],
)
def test_a_small_cost_keeps_two_significant_digits(value: float, words: str) -> None:
    assert money(value) == words
