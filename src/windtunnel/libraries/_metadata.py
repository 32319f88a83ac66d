"""What `importlib.metadata` says of a stand-in; imported when a program asks it."""

from __future__ import annotations

from importlib.metadata import Distribution
from typing import NoReturn


class Standin(Distribution):
    """A distribution that consists of its name, its version and its packages."""

    def __init__(self, name: str, version: str, packages: list[str]) -> None:
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        self._texts = {"METADATA": metadata, "top_level.txt": "\n".join(packages) + "\n"}

    def read_text(self, filename: str) -> str | None:
        """The metadata and the name of its package, and no other file."""
        return self._texts.get(filename)

    def locate_file(self, path: object) -> NoReturn:
        """It has no files."""
        raise FileNotFoundError(path)
