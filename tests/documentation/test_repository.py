"""What hosts of repositories read: workflows, templates, the citation. They name what is there."""

import re
import tomllib
from pathlib import Path

from windtunnel.version import __version__

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][a-z -]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
TARGETS = {name for names in TARGETS for name in names.split()}


def suites(text: str) -> set[str]:
    """What the row of a workflow's matrix names: suites with an environment of their own."""
    return {name for row in re.findall(r"suite: \[([a-z, -]+)\]", text) for name in row.split(", ")}


def targets(text: str) -> set[str]:
    """The targets that a workflow makes, by name or in the row of a matrix."""
    return set(re.findall(r"make ([a-z-]+)", text)) | suites(text)


def test_workflows_run_targets_that_exist() -> None:
    for path in WORKFLOWS:
        text = path.read_text(encoding="utf-8")
        assert {name for name in targets(text) - {"test-"} if not {name, f"test-{name}"} & TARGETS} == set(), path
        assert "permissions:" in text


def test_every_suite_that_a_change_must_pass_runs_in_a_workflow() -> None:
    tests, weekly = ((ROOT / ".github" / "workflows" / name).read_text("utf-8") for name in ("tests.yml", "weekly.yml"))
    own = set(re.findall(r"make (test[a-z-]*)", (ROOT / ".ci" / "run").read_text(encoding="utf-8")))
    ran = {name for found in targets(tests) for name in (found, f"test-{found}")}
    assert own | {"test-libraries", "test-plan-backends", "test-together"} <= ran
    assert suites(tests) == suites(weekly)
    assert "NEWEST=1" in weekly


def test_the_oldest_and_the_newest_pytorch_have_rows_in_the_table_of_versions_weekly() -> None:
    (oldest,) = re.findall(r"^OLDEST_TORCH := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    weekly = (ROOT / ".github/workflows/weekly.yml").read_text(encoding="utf-8")
    assert {oldest, "newest"} <= {torch.strip('"') for torch in re.findall(r"torch: ([^,]+),", weekly)}
    assert "make versions TORCH=${{ matrix.torch }}" in weekly


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
