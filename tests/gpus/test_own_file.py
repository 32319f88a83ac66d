"""A file that describes a GPU of one's own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from windtunnel import gpus
from windtunnel.gpus.gpu import FOLDER


def test_its_texts_hold_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    text = (FOLDER / "A10.toml").read_text()
    file = tmp_path / "own.toml"
    file.write_text(text.replace("aliases = [", r'aliases = ["\u001b[31mred", "\u009b2J", '))
    found = asdict(gpus.find(str(file)))
    assert found["aliases"][:2] == ("\\x1b[31mred", "\\x9b2J")
