"""`python -m windtunnel.examples`: the example programs, written to ./examples.

A wheel carries them as `windtunnel/programs`; in a checkout they are the folder `examples`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

INSTALLED = Path(__file__).with_name("programs")
CHECKOUT = Path(__file__).parents[2] / "examples"


def folder() -> Path:
    """Where the example programs are."""
    return INSTALLED if INSTALLED.is_dir() else CHECKOUT


def main() -> int:
    """Copy the example programs; the exit status. Files that are there already are left as they are."""
    parser = argparse.ArgumentParser(prog="python -m windtunnel.examples", description="Write the example programs.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("examples"), help="where to  [default: examples]")
    target = parser.parse_args().folder
    written = 0
    for source in sorted(folder().rglob("*")):
        copy = target / source.relative_to(folder())
        if source.is_dir() or "__pycache__" in source.parts or copy.exists():
            continue
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
        except OSError as error:
            print(f"windtunnel: {copy} cannot be written: {error.strerror}; name another folder", file=sys.stderr)
            return 2
        written += 1
    print(f"wrote {written} files to {target}" if written else f"{target} has all of them already")
    return 0


if __name__ == "__main__":
    sys.exit(main())
