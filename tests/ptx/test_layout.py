"""What Python and compiled code take a launch's structures to be is what the runtime's C says."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from windtunnel.compiler.clang import required
from windtunnel.ptx import engine, structures

TYPES = {
    "Region": structures.Region,
    "Site": structures.SiteCounts,
    "Fault": structures.Fault,
    "Hot": structures.Hot,
    "Machine": structures.Machine,
    "Context": structures.Context,
    "Residents": structures.Residents,
    "Frame": structures.Frame,
}


@pytest.mark.parametrize("name", TYPES)
def test_a_structure_lies_as_in_c(name: str, tmp_path: Path) -> None:
    type_ = TYPES[name]
    lines = [f'#include "{engine.RUNTIME}/runtime.h"', f"_Static_assert(sizeof({name}) == {ctypes.sizeof(type_)});"]
    for field, *_ in type_._fields_:
        lines.append(f"_Static_assert(offsetof({name}, {field}) == {getattr(type_, field).offset});")
    source, clang = tmp_path / "structures.c", required()
    source.write_text("\n".join(lines))
    options = ["-nostdinc", "-isystem", clang.headers] if clang.headers else []
    target = f"--target={engine.binding().get_default_triple()}"
    clang.run("-x", "c", "-std=c2x", "-fsyntax-only", "-w", target, *options, source)
