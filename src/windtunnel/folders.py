"""Folders of this user alone, in places that others may write to.

A path that can be guessed may already be there when we come: made by another user, with files of theirs, or as a link
to a place of theirs. Imported at the start of every Python under `windtunnel run`, so this module imports next to
nothing.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress


def private_folder(path: str) -> str:
    """Make a folder (mode 0700) unless it is there, and return its path.

    Raises OSError if it cannot be made, is a link, belongs to another user, or can be written to by others.
    """
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    facts = os.lstat(path)
    if not stat.S_ISDIR(facts.st_mode):
        raise NotADirectoryError(f"{path} is not a folder but a link or a file: remove it")
    if facts.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to another user: remove it")
    if facts.st_mode & 0o022:
        raise PermissionError(f"other users may write to {path}: remove it, since they may have put files there")
    return path


def user_cache(name: str) -> str | None:
    """Where the user's own cache of that name belongs; None for a user without a home folder."""
    import platformdirs  # only where something is cached

    try:
        root = platformdirs.user_cache_dir("windtunnel")
    except RuntimeError:  # since platformdirs 4.4; before, the path begins with "~"
        return None
    return os.path.join(root, name) if os.path.isabs(root) else None
