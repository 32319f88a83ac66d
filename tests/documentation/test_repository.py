"""What hosts of repositories read: workflows, templates, the citation. They name what is there."""

import re
import tomllib
from pathlib import Path

import pytest

from windtunnel.version import __version__

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][a-z -]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
TARGETS = {name for names in TARGETS for name in names.split()}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_targets_that_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(r"make ([a-z-]+)", text)) | set(re.findall(r"target: ([a-z-]+)", text))
    assert named - {"test-"} <= TARGETS
    assert "permissions:" in text


def test_the_tests_run_on_every_python_that_is_claimed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    (row,) = re.findall(r"python: \[(.*)\]", (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))
    assert re.findall(r'"(3\.\d+)"', row) == claimed == ["3.11", "3.12", "3.13", "3.14"]


def test_the_citation_is_of_this_version() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_no_tabs_in_yaml() -> None:
    for path in [*WORKFLOWS, *(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]:
        assert "\t" not in path.read_text(encoding="utf-8"), path
