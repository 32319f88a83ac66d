"""Files that the person names, looked at before the work begins."""

from __future__ import annotations

from pathlib import Path

from windtunnel.errors import UsageError


def require_writable(path: Path) -> None:
    """Make sure that a file can be written, leaving none behind; its folder is made as it will be needed.

    Raises:
        UsageError: it is a folder, or cannot be written.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a file")
    new = not path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
        if new:
            path.resolve().unlink()  # a link to where nothing is yet stays
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
