"""Functions that run right after a module was imported."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from windtunnel.import_hook import hook, without_collections


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


def test_nothing_looks_for_garbage_while_a_module_is_imported(module: str) -> None:
    looks: list[bool] = []
    hook({module: lambda: looks.append(gc.isenabled())})
    assert __import__(module).value == 1
    assert looks == [False]
    assert gc.isenabled()


@pytest.fixture
def thawed() -> Iterator[None]:
    """As in a program: what the tests have set apart (`conftest`) is among all other objects."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("thawed")
def test_what_was_imported_is_old_and_not_looked_at_for_being_new() -> None:
    with without_collections():
        made: list[list[int]] = [[] for _ in range(10_000)]
    young = {id(one) for one in gc.get_objects(generation=0)}
    assert young.isdisjoint(map(id, made))
    assert any(one is made for one in gc.get_objects(generation=2))


def test_a_failed_import_leaves_collections_on_and_one_without_them_off() -> None:
    with pytest.raises(ZeroDivisionError), without_collections():
        raise ZeroDivisionError
    assert gc.isenabled()
    gc.disable()
    try:
        with without_collections():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_a_program_has_frozen_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with without_collections():
        made: list[list[int]] = [[]]
    assert gc.get_freeze_count() >= frozen - 100 > 0
    assert any(one is made for one in gc.get_objects())
