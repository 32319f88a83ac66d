"""Messages and advice in the words of the program's framework: the checks speak PyTorch, a table translates."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources

from windtunnel.trace.finding import Finding
from windtunnel.trace.plain import Json


def framework_of(facts: Json) -> str:
    """The framework whose words a trace's findings should use; PyTorch's where a program has several."""
    known = facts.get("frameworks") or ["torch"]
    return str(known[0]) if len(known) == 1 else "torch"


def in_words_of(framework: str, finding: Finding) -> Finding:
    """The finding with PyTorch's phrases replaced by those of `framework`, as `words.toml` has them."""
    phrases = _phrases(framework)
    if not phrases:
        return finding
    message, advice = finding.message, finding.advice
    for torch, other in phrases:
        message, advice = message.replace(torch, other), advice.replace(torch, other)
    return finding._replace(message=message, advice=advice)


@functools.cache
def _phrases(framework: str) -> tuple[tuple[str, str], ...]:
    """PyTorch's phrases with the framework's, the longest first, so that none spoils a longer one."""
    if framework == "torch":
        return ()
    table = tomllib.loads(resources.files(__package__).joinpath("words.toml").read_text("utf-8"))
    rows = [(str(row["torch"]), str(row[framework])) for row in table["phrase"] if framework in row]
    return tuple(sorted(rows, key=lambda row: -len(row[0])))
