"""A finding: what is wrong, where, what it costs and what to change. Plain data, the same for every report."""

from __future__ import annotations

from typing import Literal, NamedTuple

from understudy.trace.operation import UNKNOWN_SITE, Site

Severity = Literal["info", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


class Finding(NamedTuple):
    """One incident, or one group of incidents of one source line.

    `site` is the line that a person would change, `other` the second line where two meet, `allocated` where the
    memory came from. `lost_ns` and `size_bytes` are what is at stake over all `times` incidents.
    """

    code: str
    severity: Severity
    message: str
    advice: str
    site: Site = UNKNOWN_SITE
    other: Site = UNKNOWN_SITE
    allocated: Site = UNKNOWN_SITE
    times: int = 1
    lost_ns: int = 0
    size_bytes: int = 0
    device: int = -1
