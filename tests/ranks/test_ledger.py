"""The file in which a rank writes what it calls: read while it is written, and when its process is gone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from windtunnel.errors import FileFormatError
from windtunnel.ranks import ledger
from windtunnel.ranks.calls import Channel, Ending, Group, Operation, State
from windtunnel.trace.operation import Note, Site

REDUCE = Operation("all_reduce", ((8, 2),), ("float32",), (16,), "SUM", stream=3)
SITE = Site("train.py", 31, "main")
BEGIN_NS = 7_000_000_000


@pytest.fixture
def made(tmp_path):
    return ledger.Ledger(str(tmp_path / "job-1.calls"), "job", 1, "host", BEGIN_NS)


def test_a_rank_was_seen_when_it_began_though_its_watcher_has_not_looked_yet(made):
    found = ledger.read(made.path)
    assert (found.seen_ns, found.moved_ns) == (BEGIN_NS, BEGIN_NS)


def test_what_is_written_is_read(made):
    made.say("group", ["0", Group("default_pg", (0, 1))])
    entry = made.add(Channel("0"), REDUCE, SITE, State.WAITING, 1000)
    made.mark(entry, State.DONE, 2000)
    made.add(Channel("0", "send", 0, 7), REDUCE, SITE, State.ISSUED, 3000)
    made.ended(Ending("exception", "ValueError: x", SITE))
    made.judged([Note("rank-ended", SITE, (("rank", 1),))])
    found = ledger.read(made.path)
    first, second = found.rank.calls
    assert (first.channel, first.number, first.operation, first.site) == (Channel("0"), 1, REDUCE, SITE)
    assert (first.state, first.issued_ns, first.ended_ns) == (State.DONE, 1000, 2000)
    assert (second.channel, second.state) == (Channel("0", "send", 0, 7), State.ISSUED)
    assert found.rank.groups == {"0": Group("default_pg", (0, 1))}
    assert found.rank.counts == {Channel("0"): 1, Channel("0", "send", 0, 7): 1}
    assert found.rank.ending == Ending("exception", "ValueError: x", SITE)
    assert (found.rank.rank, found.process, found.job, found.host) == (1, os.getpid(), "job", "host")
    assert found.notes == (Note("rank-ended", SITE, (("rank", 1),)),)


def test_the_ring_keeps_the_latest_calls_and_the_counts_all(made):
    for number in range(ledger.RING + 10):
        made.add(Channel("0"), REDUCE, SITE, State.DONE, number)
    found = ledger.read(made.path).rank
    assert len(found.calls) == ledger.RING
    assert (found.calls[0].number, found.calls[-1].number) == (11, ledger.RING + 10)
    assert found.counts == {Channel("0"): ledger.RING + 10}


def test_a_call_that_the_ring_has_lost_is_not_marked(made):
    first = made.add(Channel("0"), REDUCE, SITE, State.ISSUED, 1)
    for number in range(ledger.RING):
        made.add(Channel("0"), REDUCE, SITE, State.WAITING, number)
    made.mark(first, State.DONE)
    assert all(call.state is State.WAITING for call in ledger.read(made.path).rank.calls)


def test_a_line_that_is_being_written_is_left_out(made):
    made.add(Channel("0"), REDUCE, SITE, State.DONE, 1)
    with open(made.path, "ab") as file:
        file.write(b'["ending", ["kil')
    assert ledger.read(made.path).rank.ending is None


def test_the_stamp_changes_with_whatever_a_judgement_depends_on(made):
    stamps = [ledger.read(made.path).stamp]
    entry = made.add(Channel("0"), REDUCE, SITE, State.WAITING, 1)
    stamps.append(ledger.read(made.path).stamp)
    made.mark(entry, State.DONE)
    stamps.append(ledger.read(made.path).stamp)
    made.ended(Ending("finished"))
    stamps.append(ledger.read(made.path).stamp)
    assert len(set(stamps)) == 4


def test_a_rank_that_outlives_the_run_ends_in_silence(made):
    """A test that is stopped leaves the ranks that it started; the run's end takes the folder away."""
    os.unlink(made.path)
    made.ended(Ending("finished"))


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "x.calls"
    path.write_bytes(b"\0" * 10)
    with pytest.raises(FileFormatError, match="is not a record of a rank's calls"):
        ledger.read(path)
    path.write_bytes(b"\0" * (ledger.FIXED + 10))
    with pytest.raises(FileFormatError):
        ledger.read(path)


def test_a_damaged_text_is_refused(made):
    made.say("operation", {"name": 3})
    with pytest.raises(FileFormatError, match="is damaged"):
        ledger.read(made.path)


def test_a_process_that_has_ended_and_was_not_waited_for_does_not_live():
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not ledger.alive(child.pid)
    child.wait()
    assert not ledger.alive(child.pid)
    assert ledger.alive(os.getpid())
