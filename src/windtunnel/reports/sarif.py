"""The findings as SARIF 2.1.0, for GitHub code scanning and editors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePath
from urllib.parse import quote

from windtunnel.checks import all_checks
from windtunnel.checks._edits import edit_of
from windtunnel.checks._program import Edit
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Site
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Trace
from windtunnel.version import addresses, page_address

SUFFIX = ".sarif"
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def render(trace: Trace, findings: Sequence[Finding]) -> str:
    """The findings as one SARIF run; paths are relative to the working directory where they lie below it.

    GitHub takes no result without a place: a finding that belongs to no line is put on the first of the program, or
    stands among the tool's notifications where the program is no file.
    """
    script = _script(trace)
    placed = [finding for finding in findings if _is_file(finding.site) or script]
    codes = sorted({finding.code for finding in findings})
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "windtunnel",
                        "semanticVersion": trace.facts.get("versions", {}).get("windtunnel", "0.0.0"),
                        **({"informationUri": addresses()["Repository"]} if "Repository" in addresses() else {}),
                        "rules": [_rule(code) for code in codes],
                    }
                },
                "originalUriBaseIds": {"SRCROOT": {"description": {"text": "where the program was run"}}},
                "results": [
                    _result(finding, codes, script) | _fixes(edit_of(finding, trace.line, trace.text))
                    for finding in placed
                ],
                "invocations": [
                    {
                        "executionSuccessful": not trace.facts.get("exit_code", 0),
                        "toolExecutionNotifications": [
                            _notice(finding) for finding in findings if finding not in placed
                        ],
                    }
                ],
            }
        ],
    }
    return json.dumps(log, indent=1, ensure_ascii=False) + "\n"


def _rule(code: str) -> Json:
    """A check as GitHub's code scanning wants it: it requires both descriptions and a help text, and shows Markdown."""
    words = code.replace("-", " ")
    check = next((one for one in all_checks() if one.code == code), None)
    known = f"{words}, found by windtunnel in what the program did on GPUs" if check is None else check.title()
    page = known if check is None else check.page()
    address = page_address(f"checks/{code}.md") if check is not None else ""
    return {
        "id": code,
        "name": code.title().replace("-", ""),
        "shortDescription": {"text": words},
        "fullDescription": {"text": known},
        "help": {"text": page, "markdown": page},
        **({"helpUri": address} if address else {}),
    }


def _script(trace: Trace) -> Site | None:
    """The first line of the program, if it is a file."""
    program = trace.facts.get("program", "")
    name = str(program[0] if isinstance(program, list | tuple) and program else program)
    return Site(name, 1) if name.endswith(".py") else None


def _is_file(site: Site) -> bool:
    """Whether a line is of a file that can be opened: not of `python -c`, stdin or a notebook's cell."""
    return bool(site.file) and not site.file.startswith(("<", "Cell In["))


def _notice(finding: Finding) -> dict[str, object]:
    place = f"{finding.site}: " if finding.site.file else ""
    return {
        "descriptor": {"id": finding.code},
        "level": LEVELS[finding.severity],
        "message": {"text": f"{place}{finding.message}. {finding.advice}"},
    }


def _result(finding: Finding, codes: Sequence[str], script: Site | None) -> dict[str, object]:
    result: Json = {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": LEVELS[finding.severity],
        "message": {"text": f"{finding.message}. {finding.advice}"},
        "occurrenceCount": max(1, finding.times),
    }
    site = finding.site if _is_file(finding.site) else script
    if site is not None:
        result["locations"] = [{"physicalLocation": _place(site)}]
    related = [
        {"id": number, "physicalLocation": _place(site), "message": {"text": words}}
        for number, (site, words) in enumerate(
            ((finding.other, "the other line"), (finding.allocated, "where the memory was allocated")), 1
        )
        if _is_file(site)
    ]
    if related:
        result["relatedLocations"] = related
    stacks = [
        _stack(site, words)
        for site, words in ((finding.site, "the line"), (finding.other, "the other line"))
        if _is_file(site) and site.stack
    ]
    if stacks:
        result["stacks"] = stacks
    return result


def _fixes(edit: Edit | None) -> Json:
    """An edit as a fix; SARIF counts columns from 1."""
    if edit is None or not _is_file(Site(edit.file, edit.line)):
        return {}
    place = _place(Site(edit.file, edit.line))
    region = {
        "startLine": edit.line,
        "startColumn": edit.column + 1,
        "endLine": edit.end_line,
        "endColumn": edit.end_column + 1,
    }
    replacement = {"deletedRegion": region, "insertedContent": {"text": edit.text}}
    change = {"artifactLocation": place["artifactLocation"], "replacements": [replacement]}
    return {"fixes": [{"description": {"text": "what the finding advises"}, "artifactChanges": [change]}]}


def _stack(site: Site, words: str) -> Json:
    """A line and its callers, the innermost first, as SARIF wants them."""
    lines = [site, *(Site(file, line, name) for file, line, name in site.stack)]
    frames = [
        {"location": {"physicalLocation": _place(one), "logicalLocations": [{"name": one.function or "<module>"}]}}
        for one in lines
        if _is_file(one)
    ]
    return {"message": {"text": f"{words} was called from"}, "frames": frames}


def _place(site: Site) -> Json:
    path = PurePath(site.file)
    base = {}
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path, base = path.relative_to(Path.cwd()), {"uriBaseId": "SRCROOT"}
    uri = quote(path.as_posix(), safe="/") if not path.is_absolute() else path.as_uri()
    return {"artifactLocation": {"uri": uri, **base}, "region": {"startLine": max(1, site.line)}}
