"""Errors that end programs of several GPUs, by their texts, with the advice that PyTorch's text does not give."""

from __future__ import annotations

import functools
import re
import tomllib
from importlib import resources


def known_advice(text: str) -> str:
    """What mends the error with this text, as `errors.toml` has it; "" where that is not known."""
    return next((advice for pattern, advice in _errors() if pattern.search(text)), "")


@functools.cache
def _errors() -> tuple[tuple[re.Pattern[str], str], ...]:
    table = tomllib.loads(resources.files(__package__).joinpath("errors.toml").read_text("utf-8"))
    return tuple((re.compile(row["text"]), str(row["advice"])) for row in table["error"])
