"""The mechanical fix of a finding as an edit of one line: a row for each form of line that a rule is sure of.

An edit keeps what the program computes. Where the form of a line is another one there is none, and the advice remains.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import NamedTuple

from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Site


class Edit(NamedTuple):
    """Replace the characters from (`line`, `column`) to (`end_line`, `end_column`), by 1 and by 0, with `text`."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str


class Rule(NamedTuple):
    """What to replace in the line of a finding of that code; `at` says which of its lines."""

    code: str
    pattern: re.Pattern[str]
    replacement: str
    at: str = "site"


CUDA = r"""(?:"cuda(?::\d+)?"|'cuda(?::\d+)?')"""
DEVICE = rf"(?:{CUDA}|device|self\.device)"
FACTORY = r"torch\.(?:arange|zeros|ones|eye|linspace|full|tensor|randn|rand|empty)"
NUMBER = re.compile(rf"torch\.tensor\(([^\[\],]+), device=({DEVICE})\)")
RULES = (
    Rule("host-sync", re.compile(r"(?<=\+= )([\w.]+)\.item\(\)(?=\s*(?:#|$))"), r"\1.detach()"),
    Rule("host-sync", re.compile(rf"\.to\(({CUDA})\)"), r".to(\1, non_blocking=True)"),
    Rule("host-sync", re.compile(r"\.cuda\(\)"), ".cuda(non_blocking=True)"),
    Rule("pageable-copy", NUMBER, r"torch.full((), \1, device=\2)"),
    Rule("pageable-copy", re.compile(rf"(?<=[\w\])])\.to\(({DEVICE})\)"), r".pin_memory().to(\1, non_blocking=True)"),
    Rule("pageable-copy", re.compile(r"(?<=[\w\])])\.cuda\(\)"), ".pin_memory().cuda(non_blocking=True)"),
    Rule("created-on-cpu", re.compile(rf"({FACTORY}\((?:[^()]|\([^()]*\))*)\)\.to\(([\w.]+)\)"), r"\1, device=\2)"),
    Rule("wait-missing", re.compile(r", async_op=True"), ""),
    Rule("uninitialized-read", re.compile(r"torch\.empty(?=(?:_like)?\()"), "torch.zeros", "allocated"),
)
TO_DEVICE = "from pageable memory"
"""In the message of a finding on copies to a device."""
WAITS = ("wrong-timing", "stale-read", "early-overwrite", "unsynchronized-access")
"""Findings on a line that comes too early: the host waits for all devices before it, which is always enough."""
SHAPES = re.compile(r"output of \(([\d, ]+)\) against a target of \(([\d, ]+)\)")
LOSS = re.compile(r"(loss|Loss|criterion)")


def edit_of(finding: Finding, line: Callable[[Site], str]) -> Edit | None:
    """The edit that mends a finding; None where none is sure. `line` gives the text of a line of the program."""
    text = line(finding.site)
    if finding.code in WAITS:
        return _waiting(finding.site, text)
    if finding.code == "loss-broadcast":
        return _of_one_shape(finding, text)
    for rule in RULES:
        if rule.code != finding.code or (rule.code == "pageable-copy" and TO_DEVICE not in finding.message):
            continue
        site = finding.allocated if rule.at == "allocated" else finding.site
        found = list(rule.pattern.finditer(line(site))) if site.file else []
        if len(found) == 1:
            (match,) = found
            return Edit(site.file, site.line, match.start(), site.line, match.end(), match.expand(rule.replacement))
    return None


def _waiting(site: Site, text: str) -> Edit | None:
    """A line of its own before a statement that the line holds as a whole."""
    if _statement(text) is None:
        return None
    indent = text[: len(text) - len(text.lstrip())]
    return Edit(site.file, site.line, 0, site.line, 0, f"{indent}torch.cuda.synchronize()\n")


def _of_one_shape(finding: Finding, text: str) -> Edit | None:
    """The target with the output's last dimension, where the line calls one loss of two arguments."""
    shapes, tree = SHAPES.search(finding.message), _statement(text)
    if shapes is None or tree is None:
        return None
    output, target = (tuple(part.strip(", ").split(", ")) for part in shapes.groups())
    change = "unsqueeze(-1)" if output == (*target, "1") else "squeeze(-1)" if target == (*output, "1") else ""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and len(node.args) == 2 and LOSS.search(ast.unparse(node.func))
    ]
    if not change or len(calls) != 1 or not isinstance(calls[0].args[1], ast.Name | ast.Attribute | ast.Subscript):
        return None
    indent = len(text) - len(text.lstrip())
    end = len(text.strip().encode()[: calls[0].args[1].end_col_offset or 0].decode()) + indent
    return Edit(finding.site.file, finding.site.line, end, finding.site.line, end, f".{change}")


def _statement(text: str) -> ast.Module | None:
    """What a line holds, if it is a whole statement."""
    try:
        return ast.parse(text.strip())
    except SyntaxError:
        return None
