"""The project's addresses are those of the repository that a build is made of, and none are invented."""

from __future__ import annotations

import runpy
import subprocess
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def urls(monkeypatch: pytest.MonkeyPatch):
    """The function of hatch_build.py, without hatchling."""
    for name, hook in (("builders.hooks", "BuildHookInterface"), ("metadata", "MetadataHookInterface")):
        module = types.ModuleType(name)
        setattr(module, hook, object)
        monkeypatch.setitem(sys.modules, f"hatchling.{name}.plugin.interface", module)
    return runpy.run_path(str(ROOT / "hatch_build.py"))["urls"]


def clone(folder: Path, origin: str) -> Path:
    subprocess.run(["git", "init", "-q", folder], check=True)
    subprocess.run(["git", "-C", folder, "remote", "add", "origin", origin], check=True)
    return folder


@pytest.mark.parametrize(
    "origin", ["git@host.example:a/b.git", "https://host.example/a/b", "https://user:word@host.example/a/b.git"]
)
def test_a_clone_knows_where_it_is_from(urls, tmp_path: Path, origin: str) -> None:
    found = urls(clone(tmp_path, origin), {}, "1.2.3")
    assert found["Repository"] == "https://host.example/a/b"
    assert found["Documentation"] == "https://host.example/a/b/blob/v1.2.3/docs/index.md"


@pytest.mark.parametrize("origin", ["/a/folder", "../other.git", "file:///a/b"])
def test_a_folder_is_no_address(urls, tmp_path: Path, origin: str) -> None:
    assert urls(clone(tmp_path, origin), {}, "1.2.3") == {}


def test_a_workflow_says_where_it_runs(urls, tmp_path: Path) -> None:
    variables = {"GITHUB_SERVER_URL": "https://host.example", "GITHUB_REPOSITORY": "a/b"}
    assert urls(tmp_path, variables, "1")["Issues"] == "https://host.example/a/b/issues"
    assert urls(tmp_path, {}, "1") == {}


def test_an_sdist_keeps_what_it_was_built_with(urls, tmp_path: Path) -> None:
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.4\nProject-URL: Repository, https://host.example/a/b\n\n")
    assert urls(tmp_path, {}, "1") == {"Repository": "https://host.example/a/b"}
