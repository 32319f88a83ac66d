"""Where a rank waits for another one, and why."""

from __future__ import annotations

import pytest

from windtunnel import checks
from windtunnel.seam.torch.distributed.skew import Skew
from windtunnel.trace.operation import Note, Site
from windtunnel.trace.trace import Trace

LINE = Site("train.py", 12)


def told(*calls):
    """The notes of rank 0 after all-reduces of two ranks: (its time, the other's, the other's host's), in ms."""
    skew, notes = Skew(), []
    for mine, other, host in calls:
        ready_ns = [round(mine * 1e6), round(other * 1e6)]
        skew.met(7, "all_reduce", ready_ns[0], ready_ns, [0, round(host * 1e6)], (0, 1))
    skew.tell(0, lambda code, site, **detail: notes.append(Note(code, LINE, tuple(detail.items()))))
    return notes


def found(notes):
    trace = Trace()
    for note in notes:
        trace.remark(note)
    return [(one.message, one.lost_ns, one.times) for one in checks.run(trace, ["imbalance"])]


@pytest.mark.parametrize(
    ("host", "why"), [(3.0, "whose host came late"), (0.1, "whose GPU was still at work")], ids=["host", "device"]
)
def test_it_says_for_whom_and_why(host, why):
    text, lost_ns, times = found(told((1.0, 3.0, host), (5.0, 5.0, 0.0)))[0]
    assert text.replace("\N{NO-BREAK SPACE}", " ") == (
        f"rank 0 waited 2.00 ms here for others in all_reduce, 2.00 ms of it for rank 1, {why}"
    )
    assert (lost_ns, times) == (2_000_000, 2)


def test_who_is_last_waits_for_nobody():
    assert told((3.0, 1.0, 0.5)) == []


def test_little_is_not_told():
    assert found(told((1.0, 1.5, 1.5))) == []
