"""Settings of a project: the table `[tool.understudy]` of the nearest pyproject.toml."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path

from understudy.errors import FileFormatError

NAMES = (
    "assume",
    "async",
    "clock",
    "compat",
    "cuda-version",
    "curves",
    "fail-on",
    "gpu-backend",
    "gpus",
    "host-factor",
    "host-time",
    "memory-history",
    "no-data",
    "quiet",
    "report",
    "seed",
    "stacks",
    "trace",
)
LISTS = ("fail-on", "report")


def read(start: Path | None = None) -> dict[str, object]:
    """The settings that hold in `start` (the current folder when None), by name with hyphens; empty when none are set.

    Raises:
        FileFormatError: the file is not TOML, or sets something that does not exist.
    """
    folder = (start or Path.cwd()).resolve()
    for path in (parent / "pyproject.toml" for parent in (folder, *folder.parents)):
        if path.is_file():
            return _table(path)
    return {}


def _table(path: Path) -> dict[str, object]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path} cannot be read as TOML: {error}") from error
    except PermissionError:
        return {}
    tool = data.get("tool", {})
    table = tool.get("understudy", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise FileFormatError(f"{path}: tool.understudy must be a table, [tool.understudy]")
    settings = {str(name).replace("_", "-"): value for name, value in table.items()}
    for name in settings.keys() - set(NAMES):
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(NAMES)}"
        raise FileFormatError(f"{path}: [tool.understudy] has no setting {name!r}; {hint}")
    return settings
