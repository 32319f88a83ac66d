"""The findings of an emulation, by their codes."""

from __future__ import annotations

from windtunnel.session import Session


def codes(session: Session) -> list[str]:
    """The codes of all findings."""
    return [finding.code for finding in session.findings()]


def errors(session: Session) -> list[str]:
    """The codes of the errors among the findings."""
    return [finding.code for finding in session.findings() if finding.severity == "error"]
