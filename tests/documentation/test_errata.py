"""docs/errata.md: the eighteen points, each with what windtunnel does and tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
WRONG = PAGE.split("## What the documents get wrong", 1)[1].split("\nAlso found", 1)[0]
POINTS = re.split(r"^\d+\. ", WRONG, flags=re.MULTILINE)[1:]
NAMED = re.findall(r"`([\w/]*test_\w+\.py)::(test_\w+)`", PAGE)
PROGRAMS = re.findall(r"program[s]? ((?:`s\d_\w+\.py`(?: and |, )?)+)", PAGE)


def test_all_eighteen_points_are_there():
    assert re.findall(r"^(\d+)\. ", WRONG, flags=re.MULTILINE) == [str(number) for number in range(1, 19)]


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.split()[0].strip("`*"))
def test_a_point_names_a_test(point):
    assert re.search(r"`[\w/]*test_\w+\.py::test_\w+`", point)


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED)))
def test_a_named_test_exists(path, name):
    found = [ROOT / path] if "/" in path else list((ROOT / "tests").rglob(path))
    assert len(found) == 1
    assert f"def {name}(" in found[0].read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"s\d_\w+\.py", " ".join(PROGRAMS)))))
def test_a_named_program_exists(name):
    assert (ROOT / "tests" / "programs" / "mission" / "pytorch" / name).is_file()
