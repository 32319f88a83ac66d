"""Lines of host code, by the line table that clang writes."""

from __future__ import annotations

import ctypes
from pathlib import Path

from windtunnel.compiler.clang import required
from windtunnel.seam.cuda_runtime.host_lines import HostLines, loaded_at, rows

SOURCE = """extern "C" int twice(int x);
extern "C" int call(int (*function)(void)) {
  int found = function();
  return found + 1;
}
#line 40 "other.h"
extern "C" int never(int (*function)(void)) {
  return 1 + function();
}
"""
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int)


def test_the_line_of_a_call_is_found_through_the_frames_above_it(tmp_path: Path) -> None:
    source, library = tmp_path / "host.cpp", tmp_path / "host.so"
    source.write_text(SOURCE)
    required().run("-x", "c++", "-gline-tables-only", "-O1", "-fPIC", "-shared", source, "-o", library)
    loaded = ctypes.CDLL(str(library))
    lines = HostLines(library, loaded_at(ctypes.cast(loaded.call, ctypes.c_void_p).value or 0), ("/usr/",))
    seen: list[tuple[str, int] | None] = []
    callback = CALLBACK(lambda: seen.append(lines.running()) or 4)
    assert (loaded.call(callback), loaded.never(callback)) == (5, 5)
    assert [(Path(place[0]).name, place[1]) for place in seen if place] == [("host.cpp", 3), ("other.h", 41)]
    assert lines.of(ctypes.cast(loaded.call, ctypes.c_void_p).value or 0) == (str(source), 2)
    assert lines.running() is None
    assert {row.line for row in rows(library) if row.file == str(source)} >= {2, 3, 4}
