"""A finding: what is wrong, where, what it costs and what to change. Plain data, the same for every report."""

from __future__ import annotations

from typing import Literal, NamedTuple

from windtunnel.trace.operation import UNKNOWN_SITE, Site

WORTH = 0.03
"""Of the step: a fix that saves less makes its finding a note."""

Fix = Literal[
    "", "no wait", "pin", "copy once", "no copy", "made there", "one copy", "half precision", "aligned",
    "fused optimizer", "graphs", "workers", "one GPU",
]  # fmt: skip
"""What the advice of a finding comes to in the trace, so that `analysis/savings` can try it; empty where it cannot."""
Severity = Literal["info", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


class Finding(NamedTuple):
    """One incident, or one group of incidents of one source line.

    `site` is the line that a person would change, `other` the second line where two meet, `allocated` where the
    memory came from. `lost_ns` and `size_bytes` are what is at stake over all `times` incidents. `saved_share` is the
    share of `saved_of` that following the advice would save, None where nothing computed it: of the "step", of the
    "run", of the "peak" of the memory in use, or of the "reserved memory" at its peak.
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
    fix: Fix = ""
    saved_share: float | None = None
    saved_of: str = ""
