"""What CUDA does differently for an operator stands in one file of `kernels/`, which is found by listing the folder."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from source import Source, sources

import windtunnel
from windtunnel.errors import InternalError
from windtunnel.seam.torch import install, kernels, registry

FOLDER = "seam/torch/kernels/"
PACKAGE = "windtunnel.seam.torch.kernels"
NAMES = {"HANDLERS", "COMPOSITES", "GRADIENTS", "RUN", "LAYOUTS", "VALUES", "SCRATCH", "DTYPES", "LIMITS", "patches"}
WITHOUT_ORDER = {"composites", "__init__"}
"""Files that `install` takes by name: what puts the composites in, and the registry itself."""


def files() -> dict[str, Source]:
    """The files of the folder by name."""
    return {source.path.stem: source for source in sources() if str(source).startswith(FOLDER)}


def entries(name: str) -> bool:
    """Whether a file registers something."""
    return bool(NAMES & set(vars(sys.modules[f"{PACKAGE}.{name}"])))


def used_by(name: str) -> Iterator[str]:
    """The files of the folder that import one of them."""
    for other, source in files().items():
        if any(
            found in (f"{PACKAGE}.{name}",) or found.startswith(f"{PACKAGE}.{name}.") for _, found in source.imports()
        ):
            yield other


def test_a_file_registers_something_or_serves_one_that_does() -> None:
    idle = {name for name in set(files()) - WITHOUT_ORDER if not entries(name)}
    assert not {name for name in idle if not any(map(entries, set(used_by(name)) - WITHOUT_ORDER))}


def test_a_file_says_what_differs() -> None:
    assert not [name for name in set(files()) - WITHOUT_ORDER if not sys.modules[f"{PACKAGE}.{name}"].__doc__]


def module(name: str, **entries: Any) -> ModuleType:
    """A file as it would be found in the folder."""
    made = ModuleType(f"{PACKAGE}.{name}", "What CUDA does differently.")
    vars(made).update(entries)
    return made


def test_two_handlers_of_one_operator_name_both_files() -> None:
    tables = [("first", {"aten::histc": 1}), ("second", {"aten::sort": 2}), ("third", {"aten::histc": 3})]
    with pytest.raises(InternalError, match="HANDLERS: both first and third have an entry for aten::histc"):
        registry.merged("HANDLERS", tables)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder whose files are found as those of `kernels/` are."""
    monkeypatch.setattr(kernels, "__path__", [*kernels.__path__, str(tmp_path)])
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(f"{PACKAGE}.{path.stem}", None)
        vars(kernels).pop(path.stem, None)
    registry.modules.cache_clear()
    kernels.deviations.cache_clear()


DEVIATION = '''"""A kernel that takes three buffers, refuses float64, and counts its calls."""
import torch
from windtunnel.seam.torch.scratch.need import Need, Row

CALLS = []

def handle(dispatch, call):
    CALLS.append(call.plan.name)
    return dispatch.general(call)

HANDLERS = {"aten::nextafter": handle}
SCRATCH = (Row(("nextafter",), lambda call: Need((1 << 20,) * 3), "aten/src/ATen/native/cuda/Made.cu"),)
DTYPES = {"aten::nextafter": ("nextafter_cuda", frozenset({torch.float32}))}
'''


def test_a_new_deviation_needs_one_new_file(found: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (found / "made.py").write_text(DEVIATION, encoding="utf-8")
    registry.modules.cache_clear()
    kernels.deviations.cache_clear()
    monkeypatch.setattr(install, "HANDLERS", install.handlers())
    with windtunnel.emulate("V100"):
        one = torch.ones(4, device="cuda")
        torch.nextafter(one, one)
        assert torch.cuda.max_memory_allocated() >= 3 << 20
        with pytest.raises(RuntimeError, match="\"nextafter_cuda\" not implemented for 'Double'"):
            torch.nextafter(one.double(), one.double())
    assert sys.modules[f"{PACKAGE}.made"].CALLS == ["aten::nextafter"] * 2


def test_a_second_file_for_an_operator_is_refused(found: Path) -> None:
    (found / "made.py").write_text('HANDLERS = {"aten::histc": print}', encoding="utf-8")
    registry.modules.cache_clear()
    with pytest.raises(InternalError, match=r"both .*kernels.histc and .*kernels.made have an entry for aten::histc"):
        install.handlers()


def test_no_two_files_replace_one_name() -> None:
    with windtunnel.emulate("2xV100"):
        pairs = Counter(
            (id(patch.owner), patch.name) for file in install.PATCHING for patch in file.patches(install.ACTIVE[-1])
        )
    assert not [name for (_, name), count in pairs.items() if count > 1]
