"""Settings of a project: the table `[tool.windtunnel]` of the nearest pyproject.toml."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from windtunnel import faults, foreign
from windtunnel.errors import FORMER_NAME, FileFormatError, UsageError, renamed

TEXT = (str,), "a string"
SWITCH = (bool,), "true or false"
LIST = (str, list), "a list of strings"
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "assume": ((bool, int, float), "a number, or true or false"),
    "async": TEXT,
    "check-kernels": TEXT,
    "clock": TEXT,
    "compat": TEXT,
    "cuda-compiler": TEXT,
    "cuda-version": ((str, int, float), 'a version, "11.2"'),
    "curves": TEXT,
    "fail-on": LIST,
    "fault": LIST,
    "gpu-backend": TEXT,
    "gpus": ((str, int), 'a string, "2xV100", or a number'),
    "host": TEXT,
    "host-factor": ((int, float), "a number"),
    "host-from": TEXT,
    "host-memory-limit": ((str, int), 'bytes, or a size, "8GiB"'),
    "host-time": TEXT,
    "jitter": ((int,), "a whole number"),
    "kernels": LIST,
    "memory-history": SWITCH,
    "network": TEXT,
    "no-data": SWITCH,
    "overcommit": SWITCH,
    "quiet": SWITCH,
    "report": LIST,
    "share-gpus": SWITCH,
    "seed": ((int,), "a whole number"),
    "stacks": SWITCH,
    "stop-after": ((int,), "a whole number"),
    "stuck-after": ((int, float), "a number of seconds"),
    "trace": TEXT,
    "without": LIST,
}
"""Every setting, the types that TOML may give it, and these in words."""
NAMES = tuple(KINDS)
LISTS = tuple(name for name, kind in KINDS.items() if kind is LIST)


def variable(name: str, prefix: str = "windtunnel") -> str:
    """The environment variable that sets what is called `name` in the table and, behind two hyphens, in a command."""
    return f"{prefix}_{name.replace('-', '_')}".upper()


def read(start: Path | None = None) -> dict[str, object]:
    """The settings that hold in `start` (the current folder when None), by name with hyphens; empty when none are set.

    Raises:
        UsageError: the current folder was removed, or a variable of the former name is set.
        FileFormatError: the file is not TOML, or sets something that does not exist, or to a value of another type.
    """
    for name in NAMES:
        former = variable(name, FORMER_NAME)
        if former in os.environ:
            raise UsageError(renamed(f"the variable {former}", f"set {variable(name)}"))
    try:
        folder = (start or Path.cwd()).resolve()
    except FileNotFoundError:
        raise UsageError("the current folder was removed: change to one that exists") from None
    for path in (parent / "pyproject.toml" for parent in (folder, *folder.parents)):
        if path.is_file():
            return _table(path)
    return {}


def _hyphens(name: object) -> str:
    return str(name).replace("_", "-")


def _table(path: Path) -> dict[str, object]:
    try:
        data = foreign.from_toml(path)
    except PermissionError:
        return {}
    tool = data.get("tool", {})
    former = tool.get(FORMER_NAME) if isinstance(tool, dict) else None
    if isinstance(former, dict) and any(_hyphens(name) in NAMES for name in former):  # another package has that name
        raise FileFormatError(renamed(f"{path}: the table [tool.{FORMER_NAME}]", "rename it to [tool.windtunnel]"))
    table = tool.get("windtunnel", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise FileFormatError(f"{path}: tool.windtunnel must be a table, [tool.windtunnel]")
    settings = {_hyphens(name): value for name, value in table.items()}
    if isinstance(settings.get("fault"), list):  # an array of tables, [[tool.windtunnel.fault]], says the same
        settings["fault"] = [faults.described(one) if isinstance(one, dict) else one for one in settings["fault"]]
    for name in settings.keys() - set(NAMES):
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(NAMES)}"
        raise FileFormatError(f"{path}: [tool.windtunnel] has no setting {name!r}; {hint}")
    for name, value in settings.items():
        if not _fits(name, value):
            raise FileFormatError(f"{path}: [tool.windtunnel] {name} must be {KINDS[name][1]}, not {value!r}")
    return settings


def _fits(name: str, value: object) -> bool:
    """Whether a value of TOML has the type of a setting: true and false are no numbers, and lists hold strings."""
    types = KINDS[name][0]
    if isinstance(value, list):
        return list in types and all(isinstance(item, str) for item in value)
    return isinstance(value, types) and (not isinstance(value, bool) or bool in types)
