"""Functions that run right after a module was imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from windtunnel.import_hook import hook


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that nobody has imported."""
    (tmp_path / "never_before.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "never_before", raising=False)
    return "never_before"


def test_two_hooks_may_wait_for_one_module(module: str) -> None:
    heard: list[str] = []
    hook({module: lambda: heard.append("one")})
    hook({module: lambda: heard.append("two")})
    assert __import__(module).value == 1
    assert sorted(heard) == ["one", "two"]


def test_a_hook_that_fails_at_once_is_not_left_behind() -> None:
    before = list(sys.meta_path)
    with pytest.raises(ZeroDivisionError):
        hook({"sys": lambda: 1 // 0})
    assert sys.meta_path == before
