"""Write docs/libraries.md from the folder of stand-ins: each library, its version, what is answered and what is not.

python -m tools.docs.library_pages          # write the page
python -m tools.docs.library_pages --check  # exit 1 when it is not what it would write
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tools import ROOT
from windtunnel import libraries

PAGE = ROOT / "docs" / "libraries.md"
HEAD = """# Libraries that come with CUDA

Programs import libraries that are installed on their GPU machine and that no machine without nvcc, a driver or a
CUDA build can install. A stand-in answers for such a library under `windtunnel run`, in pytest with `--gpus` and in
notebooks, where the library itself is not installed, or is with its kernels in a binary for GPUs; else a real one
wins. The report says so once, `--without NAME` switches one off, `windtunnel doctor` lists them, and
`importlib.metadata.version` gives the version whose interface is answered. Values are those of PyTorch's operators,
forward and backward; a kernel of the library's counts as one kernel. A function or an argument that is not answered is
refused in one sentence.

Libraries that install on any machine need no stand-in: **bitsandbytes** runs with its own kernels for the CPU as values
(4-bit and 8-bit layers, 8-bit and paged optimizers), **torchao** on the [products](coverage.md) in 8 and 4 bits,
**liger_kernel** and other libraries in Triton on its [interpreter](compilers.md). A company's own kernels are
[described in a few lines](library.md#operators-of-your-own), and so are, without your doing anything, those that an
installed library has in a binary which this machine cannot load: {binaries}. What is a binary as a whole ends in one
sentence that says what to do instead: kernels of the Hugging Face Hub (those in Triton or Python run), and the decoders
for GPUs of torchvision and torchcodec.
[Forty scripts](tables.md#published-scripts) of others use these libraries.

This page is written by `python -m tools.docs.library_pages` from `src/windtunnel/libraries/`.

| library | the version whose interface is answered |
| --- | --- |
"""


def files(library: libraries.Library) -> Iterator[tuple[str, ast.Module]]:
    """The modules of a stand-in that a program imports, by name."""
    folder = library.file.parent if library.file.name == "__init__.py" else None
    if folder is None:
        yield library.name, ast.parse(library.file.read_text("utf-8"))
        return
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        if any(part.startswith("_") and part != "__init__" for part in parts):
            continue
        name = ".".join(part for part in parts if part != "__init__")
        yield name, ast.parse(path.read_text("utf-8"))


def answered(tree: ast.Module) -> list[str]:
    """What a module has: its `__all__`, else its public functions and classes, and public names for them."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    found = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.value).endswith((*found, ".apply")) and found:
            found.append(ast.unparse(node.targets[0]))
    return [name for name in dict.fromkeys(found) if not name.startswith("_")]


def operators() -> str:
    """What is described of installed libraries' binaries."""
    found: list[str] = []
    for path in sorted((libraries.FOLDER / "_kernels").glob("[!_]*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "kernel":
                found.append(f"`{ast.literal_eval(node.args[0])}`")
    return ", ".join(found)


def text() -> str:
    """The page."""
    rows, sections = [], []
    for name in libraries.names():
        library = libraries.find(name)
        assert library is not None
        rows.append(f"| [{name}](#{name.replace('.', '').lower()}) | {library.version} |")
        told = ast.get_docstring(ast.parse(library.file.read_text("utf-8"))) or ""
        lines = [f"## {name}", "", told, "", "| module | what it has |", "| --- | --- |"]
        for module, tree in files(library):
            names = ", ".join(f"`{one}`" for one in answered(tree))
            if names:
                lines.append(f"| `{module}` | {names} |")
        sections.append("\n".join(lines))
    return HEAD.replace("{binaries}", operators()) + "\n".join(rows) + "\n\n" + "\n\n".join(sections) + "\n"


def main(page: Path = PAGE) -> int:
    """Write the page, or compare; the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/libraries.md from the folder of stand-ins.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is out of date")
    wanted = text()
    if parser.parse_args().check:
        stale = not page.is_file() or page.read_text("utf-8") != wanted
        if stale:
            print("docs/libraries.md is out of date: run python -m tools.docs.library_pages", file=sys.stderr)
        return int(stale)
    page.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
