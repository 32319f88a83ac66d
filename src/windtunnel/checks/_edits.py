"""The mechanical fix of a finding as an edit: a row for each form of line that a rule is sure of.

An edit keeps what the program computes, but for what the finding says is wrong. Where the form is another one there is
none, and the advice remains. What needs more than the line is in `_program_edits`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import NamedTuple

from windtunnel.checks._program import Edit, Program
from windtunnel.checks._program_edits import EDITS
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Site


class Rule(NamedTuple):
    """What to replace in the line of a finding of that code."""

    code: str
    pattern: re.Pattern[str]
    replacement: str


CUDA = r"""(?:"cuda(?::\d+)?"|'cuda(?::\d+)?')"""
DEVICE = rf"(?:{CUDA}|device|self\.device)"
OWN_DEVICE = rf"(?:{CUDA}|(?:\w+\.)*device)"
FACTORY = r"torch\.(?:arange|zeros|ones|eye|linspace|full|tensor|empty)"  # not what draws: CUDA draws other numbers
NESTED = r"(?:[^()]|\([^()]*\))*"
AUTOCAST = r"(?<![\w.])(?:torch\.)?(?:cuda\.)?(?:amp\.)?autocast"
PLAIN_LOAD = r"(\.load_state_dict\(torch\.load\((?:(?!map_location)[^()])+)\)"
RULES = (
    Rule("created-on-cpu", re.compile(rf"({FACTORY}\({NESTED})\)\.to\(({OWN_DEVICE})\)"), r"\1, device=\2)"),
    Rule("wait-missing", re.compile(rf"^(\s*(?:\w+ = )?[\w.]+\({NESTED}), async_op=True"), r"\1"),
    Rule("copy-back-and-forth", re.compile(r"\.cpu\(\)(?=\.(?:to|cuda)\()"), ""),
    Rule(
        "many-small-copies",
        re.compile(rf"torch\.stack\(\[(\w+)\.to\(({DEVICE})\) for \1 in ([\w.]+)\]\)"),
        r"torch.stack(list(\3)).to(\2)",
    ),
    Rule("context-on-other-gpu", re.compile(PLAIN_LOAD), r'\1, map_location="cpu")'),
    Rule(
        "stale-autocast",
        re.compile(rf"({AUTOCAST}\((?!{NESTED}cache_enabled){NESTED}[^(),\s])\)"),
        r"\1, cache_enabled=False)",
    ),
    Rule("stale-autocast", re.compile(rf"({AUTOCAST})\(\)"), r"\1(cache_enabled=False)"),
    Rule(
        "availability-without-count",
        re.compile(r"(cuda:)([1-9]\d*)(.*?)torch\.cuda\.is_available\(\)"),
        r"\1\2\3torch.cuda.device_count() > \2",
    ),
)
EDITED = tuple(sorted({"loss-broadcast", *(rule.code for rule in RULES), *EDITS}))
"""Codes of findings that may have an edit."""
SHAPES = re.compile(r"output of \(([\d, ]+)\) against a target of \(([\d, ]+)\)")
LOSS = re.compile(r"(loss|Loss|criterion)")


def edit_of(finding: Finding, line: Callable[[Site], str], text: Callable[[str], str] = lambda _: "") -> Edit | None:
    """The edit that mends a finding; None where none is sure.

    `line` gives the text of a line of the program, `text` that of a whole file, empty where it is not known.
    """
    if not finding.site.file:
        return None
    if finding.code == "loss-broadcast":
        return _of_one_shape(finding, line(finding.site))
    return _of_program(finding, text(finding.site.file)) or _of_line(finding, line(finding.site))


def _of_program(finding: Finding, text: str) -> Edit | None:
    make = EDITS.get(finding.code)
    if make is None or not text:
        return None
    try:
        program = Program(finding.site.file, text)
    except (SyntaxError, ValueError):  # a magic of a notebook's cell; a null byte
        return None
    edit = make(program, finding)
    return edit if edit is None or "torch." not in edit.text or program.imports("torch") else None


def _of_line(finding: Finding, line: str) -> Edit | None:
    for rule in RULES:
        found = list(rule.pattern.finditer(line)) if rule.code == finding.code else []
        if len(found) == 1:
            site, (match,) = finding.site, found
            return Edit(site.file, site.line, match.start(), site.line, match.end(), match.expand(rule.replacement))
    return None


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
