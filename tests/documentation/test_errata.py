"""docs/errata.md: the eighteen points, each with what windtunnel does and tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
WRONG = PAGE.split("## What the documents get wrong", 1)[1].split("\nAlso found", 1)[0]
POINTS = re.split(r"^\d+\. ", WRONG, flags=re.MULTILINE)[1:]
NAMED = re.findall(r"`([\w/]*test_\w+\.py)::(test_\w+)`", PAGE)
PROGRAMS = re.findall(r"program[s]? ((?:`s\d_\w+\.py`(?: and |, )?)+)", PAGE)


def test_all_eighteen_points_are_there():
    assert re.findall(r"^(\d+)\. ", WRONG, flags=re.MULTILINE) == [str(number) for number in range(1, 19)]


def test_every_point_names_a_test():
    assert not [point for point in POINTS if not re.search(r"`[\w/]*test_\w+\.py::test_\w+`", point)]


def test_named_tests_exist():
    for path, name in set(NAMED):
        (found,) = [ROOT / path] if "/" in path else (ROOT / "tests").rglob(path)
        assert f"def {name}(" in found.read_text(encoding="utf-8"), (path, name)


def test_named_programs_exist():
    folder = ROOT / "tests" / "programs" / "mission" / "pytorch"
    assert not [name for name in re.findall(r"s\d_\w+\.py", " ".join(PROGRAMS)) if not (folder / name).is_file()]
