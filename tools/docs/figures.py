"""Figures as data: what a command measured lies in docs/figures/NAME.json, and pages show it between comments.

    python -m tools.docs.figures            # write every figure and table into the pages that name them
    python -m tools.docs.figures --check    # exit 1 when a page is not what it would write

In a page, `<!--f:NAME/ROW/COLUMN-->3.8 %<!--/-->` is one value, and the lines between `<!--table:NAME-->` and
`<!--/-->` are the table of all rows. A file says which command printed its values, when, at which commit (or in which
commit they were written down) and on which machine; a row may have its own of each. A column without a title is for
single values alone. Commands that measure call `record`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from tools import ROOT

FOLDER = ROOT / "docs" / "figures"
ORIGIN = ("command", "machine", "date", "commit")
VALUE = re.compile(r"<!--f:([\w-]+)/([\w-]+)/([\w-]+)-->(.*?)<!--/-->", re.DOTALL)
TABLE = re.compile(r"<!--table:([\w-]+)-->\n(.*?)<!--/-->", re.DOTALL)


def pages() -> list[Path]:
    """The pages that may show figures."""
    return [ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").glob("*.md"))]


def load(name: str) -> dict[str, Any]:
    """One file of figures."""
    figures: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return figures


def shown(value: Any, column: Mapping[str, Any]) -> str:
    """A value as pages show it: a number with its unit, a spread as low–high, a text as it is."""
    if value is None or isinstance(value, str):
        return value or ""
    unit = column.get("unit", "")
    sign = "+" if column.get("signed") and value != 0 else ""
    form = f"{sign},.{column['digits']}f" if "digits" in column else f"{sign},"
    parts = value if isinstance(value, list) else [value]
    return "–".join(format(part, form) for part in parts) + (f" {unit}" if unit else "")


def one(name: str, row: str, column: str) -> str:
    """One figure."""
    figures = load(name)
    return shown(figures["rows"][row][column], figures["columns"][column])


def table(name: str) -> str:
    """All rows of a file as a table in Markdown."""
    figures = load(name)
    columns = {key: column for key, column in figures["columns"].items() if "title" in column}
    lines = [[column["title"] for column in columns.values()]]
    numeric = {key for key in columns if any(not isinstance(row.get(key, ""), str) for row in figures["rows"].values())}
    lines.append(["--:" if key in numeric else "---" for key in columns])
    lines += [[shown(row.get(key), column) for key, column in columns.items()] for row in figures["rows"].values()]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def rendered(text: str) -> str:
    """A page with the figures as the data have them."""
    text = TABLE.sub(lambda found: f"<!--table:{found[1]}-->\n\n{table(found[1])}\n\n<!--/-->", text)
    return VALUE.sub(lambda f: f"<!--f:{f[1]}/{f[2]}/{f[3]}-->{one(f[1], f[2], f[3])}<!--/-->", text)


def record(name: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Write what was just measured over the rows of `docs/figures/NAME.json`, with today, machine and commit."""
    figures = load(name)
    measured = {"machine": machine(), "date": datetime.date.today().isoformat(), "commit": commit()}
    for key, row in rows.items():
        figures["rows"][key] = {**figures["rows"].get(key, {}), **row, **measured}
    (FOLDER / f"{name}.json").write_text(written(figures), encoding="utf-8")


def machine() -> str:
    """This machine in words."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = f"Python {platform.python_version()}, torch {metadata.version('torch')}"
    return f"{os.cpu_count()} {platform.machine()} cores, {memory:.0f} GiB, {versions}"


def commit() -> str:
    """The checkout's commit, with a plus where files have been changed since."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()


def written(figures: Mapping[str, Any]) -> str:
    """The file's text, a column and a row on a line each."""

    def lines(entries: Mapping[str, Any]) -> str:
        return ",\n".join(f"    {json.dumps(key)}: {json.dumps(entries[key], ensure_ascii=False)}" for key in entries)

    head = "".join(f"  {json.dumps(key)}: {json.dumps(figures[key], ensure_ascii=False)},\n" for key in ORIGIN)
    parts = ",\n".join(f'  "{part}": {{\n{lines(figures[part])}\n  }}' for part in ("columns", "rows"))
    return f"{{\n{head}{parts}\n}}\n"


def main() -> int:
    """Write or check the pages; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    stale = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = rendered(text)
        if new != text:
            stale.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(new, encoding="utf-8")
    print("\n".join(stale) or "every page shows the figures as the data have them")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
