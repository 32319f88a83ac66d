"""What `importlib.metadata` says of a stand-in; imported when a program asks it."""

from __future__ import annotations

from importlib.metadata import Distribution
from typing import NoReturn


class Standin(Distribution):
    """A distribution that consists of its name and its version."""

    def __init__(self, name: str, version: str) -> None:
        self._text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        """The metadata, and no other file."""
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: object) -> NoReturn:
        """It has no files."""
        raise FileNotFoundError(path)
