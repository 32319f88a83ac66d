"""Write docs/checks/ from the checks' docstrings: one page a check, and a table of all.

python -m tools.docs.check_pages          # write the pages
python -m tools.docs.check_pages --check  # exit 1 when a page is not what it would write
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools import ROOT
from windtunnel import checks

FOLDER = ROOT / "docs" / "checks"
INDEX = """# Checks

A check turns what happened into findings. Its severity is the worst that it reports: what costs nothing is reported as
`info`. `windtunnel run --fail-on CODE` fails on a finding.

| code | severity | what it finds |
| --- | --- | --- |
"""


def pages() -> dict[str, str]:
    """Every page by its file name."""
    rows = [
        f"| [{check.code}]({check.code}.md) | {check.severity} | {check.title()} |" for check in checks.all_checks()
    ]
    written = {f"{check.code}.md": check.page() for check in checks.all_checks()}
    return {"index.md": INDEX + "\n".join(rows) + "\n", **written}


def main(folder: Path = FOLDER) -> int:
    """Write the pages, or compare; the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/checks/ from the checks' docstrings.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page is out of date")
    compare = parser.parse_args().check
    wanted = pages()
    present = {path.name: path.read_text("utf-8") for path in folder.glob("*.md")} if folder.is_dir() else {}
    if compare:
        stale = sorted(name for name in {*wanted, *present} if wanted.get(name) != present.get(name))
        for name in stale:
            print(f"docs/checks/{name} is out of date: run python -m tools.docs.check_pages", file=sys.stderr)
        return 1 if stale else 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in present.keys() - wanted.keys():
        (folder / name).unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
