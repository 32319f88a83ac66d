"""Shared libraries under a name of NVIDIA's whose functions jump to where they are told: C libraries find them so."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from windtunnel.compiler.clang import required
from windtunnel.compiler.extensions import Work, cache_folder, digest
from windtunnel.compiler.passes import run_link
from windtunnel.version import __version__

MOST_ARGUMENTS = 14
LETTERS = "abcdefghijklmnop"[:MOST_ARGUMENTS]
GIVEN = ", ".join(f"long {letter}" for letter in LETTERS)
ENDED = 0
"""What functions give once Python has ended, where nothing is left but to give back what the end takes anyway."""
HEAD = """typedef long (*function)({given});
static function functions[{count}];
static int ended;
void windtunnel_end(void) {{ ended = 1; }}
void windtunnel_functions(const function *given) {{
  for (int at = 0; at < {count}; ++at) functions[at] = given[at];
}}
"""


def library(name: str, functions: Sequence[str]) -> Path:
    """A library with that name for the loader, which exports `functions` and takes their addresses by
    `windtunnel_functions`, in this order. Every function hands on as many words as any has.

    Raises:
        UnsupportedError: there is no clang.
        CompileError: the library cannot be built.
    """
    clang = required()
    text = HEAD.format(given=GIVEN, count=len(functions)) + "".join(
        f"long {function}({GIVEN}) {{ return ended ? {ENDED} : functions[{at}]({', '.join(LETTERS)}); }}\n"
        for at, function in enumerate(functions)
    )
    kept = cache_folder("stubs") / digest(text, clang.version, __version__)[:16] / name
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        with Work(kept.parent) as work:
            source, made, built = work.path / "stub.c", work.path / "stub.o", work.path / name
            source.write_text(text, encoding="utf-8")
            clang.run("-x", "c", "-fPIC", "-O1", "-c", source, "-o", made)
            run_link(clang, [made], built, (f"-Wl,-soname,{name}",))
            os.replace(built, kept)
    return kept
