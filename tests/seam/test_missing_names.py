"""A PyTorch without a private name that the seam needs: one sentence, whatever the name is."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator

import pytest
import torch

import windtunnel
from windtunnel import doctor
from windtunnel.errors import InstallError
from windtunnel.seam.torch import requirements

NAMES = [name for names in (requirements.NEEDED | requirements.NEEDED_BY_RANKS).values() for name in names.split()]


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """Nothing was found good before."""
    requirements.require.cache_clear()
    yield
    requirements.require.cache_clear()


def remove(monkeypatch: pytest.MonkeyPatch, path: str) -> bool:
    """Take a name away; False for one of a type or a package of C++, which keeps its names."""
    owner, _, name = path.rpartition(".")
    try:
        monkeypatch.delattr(pkgutil.resolve_name(owner), name)
    except (TypeError, AttributeError):
        return False
    return not requirements._exists(path)


@pytest.mark.parametrize("path", NAMES)
def test_a_missing_name_is_one_sentence_of_the_emulation_and_of_doctor(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    if not remove(monkeypatch, path):
        stock = requirements._exists
        monkeypatch.setattr(requirements, "_exists", lambda name: name != path and stock(name))
    with pytest.raises(InstallError) as error, windtunnel.emulate("V100"):
        pass
    said = str(error.value)
    assert said.startswith(f"PyTorch {torch.__version__} lacks {path} (")
    assert "tested are 2.6.0" in said
    assert "\n" not in said
    lines = [line for line in doctor._torch() if line.state == "problem"]
    assert lines[0].text.partition(" lacks ")[2] in said
    assert any(line.text.startswith(f"{path}: ") for line in lines[1:])


def test_an_older_pytorch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(InstallError, match=r"^PyTorch 2\.5\.1\+cpu is older than 2\.6 \(tested are 2\.6\.0"):
        windtunnel.emulate("V100").__enter__()
