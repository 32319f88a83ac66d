"""What the verdict names where the host's own work bounds a step and something else is found too."""

import pytest

from windtunnel.reports.parts.host import HostWork
from windtunnel.reports.parts.summary import _comes_first
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import UNKNOWN_SITE

WORK = HostWork(9_000_000, 0, 0, 1_000_000, 0, 10_000_000, "step", "python", False, UNKNOWN_SITE, 0, 20)


def found(severity: str, **saving: object) -> Finding:
    """A finding of that severity."""
    return Finding("a-code", severity, "what happened", "what to do", UNKNOWN_SITE, **saving)


@pytest.mark.parametrize(
    ("findings", "first"),
    [
        ([], True),
        ([found("info")], True),
        ([found("error")], False),
        ([found("warning")], False),  # what is wrong, such as a loss that is broadcast
        ([found("warning", saved_share=0.3, saved_of="step")], True),
        ([found("warning", saved_share=0.3, saved_of="peak", size_bytes=1 << 20)], True),
    ],
)
def test_the_host_s_work_comes_before_what_is_slow_and_after_what_is_wrong(findings, first):
    assert _comes_first({}, WORK, findings) is first
    assert not _comes_first({"exit_code": 1}, WORK, findings)
