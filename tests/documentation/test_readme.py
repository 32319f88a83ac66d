"""README.md and README.zh-CN.md: the same commands and programs, and all of them work from a clone."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGLISH, CHINESE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md"))
LINKS = sorted(set(re.findall(r"\]\(((?!http)[^)#]+)", ENGLISH + CHINESE)))


def blocks(text):
    """The code blocks as (language, lines), without the comments, which are in the reader's language."""
    found = re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)
    return [(language, [line.partition(" #")[0].rstrip() for line in code.splitlines()]) for language, code in found]


PROGRAMS = {
    lines[0].removeprefix("# "): "\n".join(lines) for language, lines in blocks(ENGLISH) if language == "python"
}
COMMANDS = [shlex.split(line) for language, lines in blocks(ENGLISH) if language == "console" for line in lines]
OURS = [command[1:] for command in COMMANDS if command[0] == "windtunnel"]


def run(folder, *command):
    """The finished command, which must end well, in a folder that has the page's programs."""
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_languages_carry_the_same_commands_and_programs():
    assert blocks(ENGLISH) == blocks(CHINESE)
    assert [command for command in COMMANDS if command[0] == "make"]


def test_both_languages_link_to_each_other():
    assert "(README.zh-CN.md)" in ENGLISH
    assert "(README.md)" in CHINESE


def test_links_lead_somewhere():
    assert not [link for link in LINKS if not (ROOT / link).exists()]


def is_program(name):
    return name in PROGRAMS or (ROOT / name).is_file()


def test_commands_take_their_options_and_name_programs_that_exist():
    for words in OURS:
        command = importlib.import_module(f"windtunnel.cli.{words[0]}").command
        program = command.make_context(words[0], words[1:]).params.get("program")
        assert program is None or is_program(program), words
    for words in (words for words in COMMANDS if words[0] == "python"):
        assert importlib.util.find_spec(words[2]) if words[1] == "-m" else is_program(words[1]), words


def test_both_languages_show_the_accuracy_of_make_accuracy():
    for text in (ENGLISH, CHINESE):
        paragraph = next(part for part in text.split("\n- ") if "`make accuracy`" in part)
        assert all(
            f"<!--f:accuracy/unseen/{column}-->" in paragraph for column in ("number", "median", "p90", "inside")
        )


@pytest.mark.long
def test_the_first_program_trains_with_a_gpu_and_without(tmp_path):
    losses = []
    for gpus, device in (("V100", "cuda:0"), ("0", "cpu")):
        printed = run(tmp_path, "-m", "windtunnel", "run", "--gpus", gpus, "first.py")
        found = re.fullmatch(r"training on (\S+)\nloss ([\d.]+), then ([\d.]+)\n", printed)
        assert found[1] == device
        assert float(found[3]) < float(found[2]) / 20
        losses.append(float(found[2]))
    assert losses[0] == pytest.approx(losses[1], rel=0.01)  # it is seeded


@pytest.mark.long
def test_the_gate_s_example_ends_with_64(tmp_path):
    (line,) = (command for command in OURS if "--fail-on" in command)
    command = [ROOT / word if word.startswith("examples/") else word for word in line]
    done = subprocess.run(
        [sys.executable, "-m", "windtunnel", *command], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 64


def test_the_test_passes(tmp_path):
    assert "1 passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_copy.py")


def test_the_picture_is_small_enough_for_a_page():
    (image,) = re.findall(r"\]\((docs/images/\S+\.png)\)", ENGLISH)
    assert 20_000 < (ROOT / image).stat().st_size < 300_000
