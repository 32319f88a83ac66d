"""Device code alone: a source of kernels to PTX, kept in a cache by its text, the GPU and the compiler."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from windtunnel.compiler.clang import INCLUDE, required
from windtunnel.compiler.extensions import Work, cache_folder, digest, own_texts, texts
from windtunnel.compiler.nvcc import Nvcc
from windtunnel.compiler.passes import Settings, fast_math_in, translated
from windtunnel.version import __version__

USE = "\nstatic __attribute__((used)) void *windtunnel_use_{}() {{ return (void *)&{}; }}\n"
"""Makes the compiler instantiate a template: it is seen by the pass and not emitted."""


def compile_text(
    text: str, capability: tuple[int, int], options: Sequence[str] = (), expressions: Sequence[str] = (),
    whole: bool = False, nvcc: Nvcc | None = None,
) -> str:  # fmt: skip
    """PTX of a source; `expressions` name kernels that are instances of templates, `whole` that there is host code,
    `nvcc` what compiles in clang's place.

    Raises:
        CompileError: the compiler does not take it.
    """
    for at, expression in enumerate(expressions):
        if "<" in expression:
            text += USE.format(at, expression)
    clang = required()
    key = digest(
        text,
        str(capability),
        str(whole),
        str(nvcc or ""),
        *options,
        clang.version,
        __version__,
        *texts(INCLUDE),
        *own_texts(),
    )
    kept = cache_folder("device") / f"{key[:24]}.ptx"
    if not kept.exists():
        include = tuple(f"-I{folder}" for folder in (os.getcwd(),))
        given = (*include, *translated(options))
        settings = Settings(
            clang,
            capability,
            (),
            given,
            fast_math_in(options),
            whole=whole,
            nvcc=nvcc,
            nvcc_options=(*include, *options),
        )
        with Work(kept.parent) as work:
            source, made = work.path / "kernel.cu", work.path / "kernel.ptx"
            source.write_text(text, encoding="utf-8")
            settings.device(source, made)
            os.replace(made, kept)
    return kept.read_text(encoding="utf-8")


def compile_file(path: Path, capability: tuple[int, int], nvcc: Nvcc | None = None) -> str:
    """PTX of a file."""
    text = path.read_text(encoding="utf-8", errors="replace")
    lined, beside = f'#line 1 "{path.absolute()}"\n{text}', (f"-I{path.parent.absolute()}",)
    return compile_text(lined, capability, beside, whole=True, nvcc=nvcc)


def in_program(source: str, file: str, program: str) -> str:
    """A source that stands in a program's file as it is, with a line that says where."""
    body = source.strip("\n")
    at = program.find(body) if body.strip() else -1
    if at < 0 or not re.search(r"\S", file):
        return source
    skipped = len(source) - len(source.lstrip("\n"))
    return f'#line {program.count(chr(10), 0, at) + 1} "{file}"\n{source[skipped:]}'
