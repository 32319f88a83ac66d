"""Finished rehearsals in a folder, one file each, found again by everything that determines a rehearsal's result.

That is the program with its options, the environment, the emulation, the facts of the GPUs, and the versions of Python,
of every installed package and of windtunnel itself, down to its source. An entry is valid only while the program's own
files, including those that it imports, are unchanged. Other files that it reads (a data set) are not checked. Several
plans may use one folder at once: an entry is written under a temporary name and then renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

import platformdirs

from windtunnel.errors import FORMER_NAME
from windtunnel.planning.measurement import Measurement
from windtunnel.trace.plain import Json

SCHEMA = 1
MOST_BYTES = 1 << 30
"""Largest size of the folder, bytes; the least recently used entries are removed first."""
PASSING = (
    "_", "COLUMNS", "COLORTERM", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "GPG_TTY", "HISTFILE", "INVOCATION_ID",
    "JOURNAL_STREAM", "LINES", "LS_COLORS", "MAIL", "MOTD_SHOWN", "NO_COLOR", "OLDPWD", "PS1", "PWD", "SHLVL", "STY",
    "TERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "TERM_SESSION_ID", "TMP", "TMPDIR", "TMUX", "TMUX_PANE",
    "WINDOWID", "PYTEST_CURRENT_TEST",
)  # fmt: skip
"""Variables that change from one terminal to the next and decide nothing."""
PASSING_PREFIXES = ("SSH_", "XDG_", "VSCODE_", "KITTY_", "ITERM_", "WEZTERM_", "PYTEST_XDIST_")


def default_folder() -> Path:
    """Where plans keep their rehearsals: in the user's cache folder."""
    return Path(platformdirs.user_cache_dir("windtunnel")) / "plans"


def former_folder() -> Path | None:
    """Where plans kept their rehearsals under the former name, if that is still there; nothing reads it."""
    folder = Path(platformdirs.user_cache_dir(FORMER_NAME)) / "plans"
    return folder if folder.is_dir() else None


def key_of(parts: Json, environment: Mapping[str, str]) -> str:
    """The name of an entry: a hash of what determines it."""
    lasting = {
        name: value
        for name, value in environment.items()
        if name not in PASSING and not name.startswith(PASSING_PREFIXES)
    }
    text = json.dumps([SCHEMA, parts, lasting, _versions()], sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:40]


@cache
def _versions() -> str:
    """A hash of everything installed, and of windtunnel's own source."""
    found = hashlib.sha256(sys.version.encode())
    names = {(one.metadata["Name"] or "", one.version) for one in metadata.distributions()}
    found.update(repr(sorted(names)).encode())
    root = Path(__file__).parent.parent
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".toml") and path.is_file():
            found.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def digest(path: str | Path) -> str:
    """A hash of a file's contents; empty if it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


class Cache:
    """The folder; without one nothing is kept or found. A `fresh` cache finds nothing but keeps new entries."""

    def __init__(self, folder: Path | None, fresh: bool = False) -> None:
        self.folder = folder
        self.fresh = fresh

    def get(self, key: str) -> tuple[Measurement, bytes | None] | None:
        """The rehearsal under a key, with its trace; None if there is none or the program's files have changed."""
        if self.folder is None or self.fresh:
            return None
        path = self.folder / f"{key}.json"
        try:
            entry = json.loads(path.read_bytes())
            files: dict[str, str] = entry["files"]
            found = Measurement.from_json(entry["measurement"])
        except (OSError, ValueError, KeyError, TypeError):  # not there, or of another version of this file's format
            return None
        if any(digest(file) != before for file, before in files.items()):
            return None
        trace = None
        with contextlib.suppress(OSError):
            trace = path.with_suffix(".trace").read_bytes()
        with contextlib.suppress(OSError):
            os.utime(path)
        return found, trace

    def put(self, key: str, measurement: Measurement, trace: bytes | None, files: Mapping[str, str]) -> None:
        """Keep a rehearsal, unless the folder cannot be written to."""
        if self.folder is None:
            return
        entry = {"measurement": measurement.to_json(), "files": dict(files)}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if trace is not None:
                self._write(f"{key}.trace", trace)
            self._write(f"{key}.json", json.dumps(entry, sort_keys=True).encode())
        except OSError:
            return

    def _write(self, name: str, data: bytes) -> None:
        assert self.folder is not None
        handle, path = tempfile.mkstemp(dir=self.folder, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(path, self.folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise

    def trim(self, most_bytes: int = MOST_BYTES) -> None:
        """Remove the least recently used entries until the folder is within its size limit."""
        if self.folder is None:
            return
        entries = []
        for path in self.folder.glob("*.json"):
            with contextlib.suppress(OSError):
                facts, trace = path.stat(), path.with_suffix(".trace")
                size = facts.st_size + (trace.stat().st_size if trace.exists() else 0)
                entries.append((facts.st_mtime, size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= most_bytes:
                return
            for one in (path, path.with_suffix(".trace")):
                with contextlib.suppress(OSError):
                    one.unlink()
            total -= size
