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

from windtunnel import foreign
from windtunnel.errors import FORMER_NAME, FileFormatError
from windtunnel.folders import private_folder, user_cache
from windtunnel.planning.measurement import Measurement
from windtunnel.trace.plain import Json

SCHEMA = 2
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


def default_folder() -> Path | None:
    """Where plans keep their rehearsals: in the user's cache folder, if there is one."""
    folder = user_cache("plans")
    return Path(folder) if folder is not None else None


def former_folder() -> Path | None:
    """Where plans kept their rehearsals under the former name, if that is still there; nothing reads it."""
    if (own := default_folder()) is None:
        return None
    folder = own.parent.with_name(FORMER_NAME) / "plans"
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
        return hashlib.sha256(foreign.read_bytes(path)).hexdigest()
    except (OSError, FileFormatError):
        return ""


def checksum(key: str, content: Json) -> str:
    """What an entry must carry to be believed: under another name, or changed by a single bit, it is none."""
    return hashlib.sha256(json.dumps([key, content], sort_keys=True).encode(errors="surrogateescape")).hexdigest()


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
            private_folder(str(self.folder))
            entry = foreign.from_json(foreign.read_bytes(path), path)
            content = entry["content"]
            if entry["checksum"] != checksum(key, content):
                return None
            files = foreign.typed(content["files"], dict[str, str], path, "is damaged")
            found = foreign.typed(content["measurement"], Measurement, path, "is damaged")
            trace = foreign.read_bytes(path.with_suffix(".trace")) if content["trace"] else None
        except (OSError, FileFormatError, *foreign.UNFIT):  # not there, damaged, or of another version's format
            return None
        if any(digest(file) != before for file, before in files.items()):
            return None
        if trace is not None and hashlib.sha256(trace).hexdigest() != content["trace"]:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return found, trace

    def put(self, key: str, measurement: Measurement, trace: bytes | None, files: Mapping[str, str]) -> None:
        """Keep a rehearsal, unless the folder cannot be written to."""
        if self.folder is None:
            return
        content: Json = {
            "measurement": measurement.to_json(),
            "files": dict(files),
            "trace": hashlib.sha256(trace).hexdigest() if trace is not None else "",
        }
        entry = {"checksum": checksum(key, content), "content": content}
        try:
            private_folder(str(self.folder))
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
