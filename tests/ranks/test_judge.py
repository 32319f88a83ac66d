"""What is wrong between ranks, judged from plain data: no process, no PyTorch."""

from __future__ import annotations

import math

import pytest

from windtunnel.ranks.calls import Call, Channel, Ending, Group, Operation, Rank, State, listed
from windtunnel.ranks.judge import judge
from windtunnel.trace.operation import Site

DEFAULT, OTHER = Channel("0"), Channel("1")
REDUCE = Operation("all_reduce", ((8,),), ("float32",), (8,), "SUM")
GATHER = Operation("all_gather_into_tensor", ((8,),), ("float32",), (8,))


class Told:
    """A rank that says what it calls; the last call is one that it waits in unless it is said to be done."""

    def __init__(self, rank, size=2):
        everybody = Group("default_pg", tuple(range(size)))
        self.groups = {"0": everybody, "1": Group("second", tuple(range(size)))}
        self.rank, self.calls, self.counts, self.ending, self.stuck, self.working = rank, [], {}, None, (), 0

    def call(self, line, operation=REDUCE, channel=DEFAULT, state=State.DONE):
        number = self.counts[channel] = self.counts.get(channel, 0) + 1
        self.calls.append(Call(channel, number, operation, Site("train.py", line), state))
        return self

    def waits(self, line, operation=REDUCE, channel=DEFAULT):
        return self.call(line, operation, channel, State.WAITING)

    def ends(self, how="finished", text="", line=0):
        self.ending = Ending(how, text, Site("train.py", line) if line else Site("", 0))
        return self

    def told(self):
        return Rank(
            self.rank, self.groups, self.calls, self.counts, self.ending, self.stuck, self.working
        )  # fmt: skip


def found(*ranks):
    return [(note.code, note.site.line) for note in judge([rank.told() for rank in ranks])]


def test_ranks_that_wait_in_the_same_call_are_no_finding():
    assert found(Told(0).waits(5), Told(1).waits(5)) == []


def test_a_rank_that_runs_may_still_come():
    assert found(Told(0).waits(5), Told(1)) == []


def test_a_rank_that_waits_for_one_that_runs_may_still_come():
    assert found(Told(0, 3).waits(5), Told(1, 3).waits(5), Told(2, 3)) == []


def test_a_rank_of_which_nothing_is_known_may_still_come():
    assert found(Told(0, 3).waits(5), Told(1, 3).waits(5)) == []


def test_a_rank_with_a_thread_at_work_may_still_come():
    busy = Told(1).waits(6, channel=OTHER)
    busy.working = 1
    assert found(Told(0).waits(5), busy) == []


def test_a_rank_that_ended_in_order_is_missing():
    assert found(Told(0).call(5).waits(5), Told(1).call(5).ends()) == [("collective-missing", 5)]


def test_a_rank_that_raised_is_named_with_its_line():
    raised = Told(1).call(5).ends("exception", "ValueError: no", 9)
    assert found(Told(0).call(5).waits(5), raised) == [("rank-ended", 9)]


def test_a_rank_that_died_in_a_call_that_all_have_made_is_named():
    assert found(Told(0).waits(5), Told(1).waits(6).ends("killed")) == [("rank-ended", 6)]


def test_a_rank_that_ended_with_nobody_waiting_is_no_finding():
    assert found(Told(0).call(5), Told(1).call(5).ends("killed")) == []


def test_two_operations_with_one_number_differ():
    assert found(Told(0).waits(5), Told(1).waits(6, GATHER)) == [("collective-mismatch", 6)]


def test_the_minority_is_the_line_that_a_person_would_change():
    ranks = [Told(0, 3).waits(6, GATHER), Told(1, 3).waits(5), Told(2, 3).waits(5)]
    assert found(*ranks) == [("collective-mismatch", 6)]


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("dtype", {"dtypes": ("float64",)}),
        ("size", {"elements": (9,)}),
        ("size", {"elements": (9,), "reduction": ""}),  # that of a reducer in C++ is not known
        ("root", {"root": 1}),
        ("reduction", {"reduction": "MAX"}),
        ("operation", {"name": "reduce"}),
    ],
)
def test_what_differs_is_said(what, change):
    notes = judge([Told(0).waits(5).told(), Told(1).waits(6, REDUCE._replace(**change)).told()])
    assert dict(notes[0].detail)["what"] == what


def test_sizes_of_pairs_are_compared_pair_by_pair():
    mine = Operation("all_to_all_single", sent=(1, 2), received=(1, 3))
    fits = Operation("all_to_all_single", sent=(3, 4), received=(2, 4))
    wrong = Operation("all_to_all_single", sent=(3, 4), received=(5, 4))
    assert found(Told(0).waits(5, mine), Told(1).waits(5, fits)) == []
    assert found(Told(0).waits(5, mine), Told(1).waits(6, wrong)) == [("collective-mismatch", 6)]


def test_groups_in_different_order_are_a_circle():
    ranks = [Told(0).waits(5, channel=DEFAULT), Told(1).waits(6, channel=OTHER)]
    assert found(*ranks) == [("collective-deadlock", 5)]


def test_two_sends_wait_for_each_other():
    send = Operation("send", ((8,),), ("float32",))
    ranks = [Told(0).waits(5, send, Channel("0", "send", 1)), Told(1).waits(6, send, Channel("0", "send", 0))]
    assert found(*ranks) == [("collective-deadlock", 5)]


def test_a_send_and_its_receive_are_no_finding():
    ranks = [Told(0).waits(5, channel=Channel("0", "send", 1)), Told(1).waits(6, channel=Channel("0", "recv", 0))]
    assert found(*ranks) == []


def moved(name, *shape, dtype="float32"):
    return Operation(name, (shape,), (dtype,), (math.prod(shape),))


@pytest.mark.parametrize(
    ("sent", "received", "what"),
    [
        (moved("send", 3), moved("recv", 5), "size"),
        (moved("send", 5), moved("recv", 3), "size"),
        (moved("send", 2, 3), moved("recv", 6), ""),
        (moved("send", 4), moved("recv", 8, dtype="bfloat16"), "dtype"),
        (moved("send", 4, dtype="float64"), moved("recv", 4), "size"),
        (moved("send", 16, dtype="uint8"), moved("recv", 4), ""),
        (moved("send", 4), moved("recv", 4, dtype="bool"), "size"),
    ],
)
def test_a_message_is_received_as_it_is_sent(sent, received, what):
    ranks = [
        Told(0).call(5, sent, Channel("0", "send", 1), State.ISSUED),
        Told(1).waits(6, received, Channel("0", "recv", 0)),
    ]
    notes = judge([rank.told() for rank in ranks])
    assert [(note.code, note.site.line) for note in notes] == ([("collective-mismatch", 6)] if what else [])
    assert [dict(note.detail)["what"] for note in notes] == ([what] if what else [])


def test_messages_are_compared_in_the_order_of_the_calls():
    there, back = Channel("0", "send", 1), Channel("0", "recv", 0)
    small, large = moved("send", 3), moved("send", 5)
    sender = Told(0).call(5, small, there, State.ISSUED).waits(6, large, there)
    receiver = Told(1).call(7, moved("recv", 5), back, State.ISSUED).waits(8, moved("recv", 3), back)
    assert found(sender, receiver) == [("collective-mismatch", 7)]


def test_a_message_has_its_counterpart_on_its_own_communicator():
    batched, plain = Channel("0", "send", 1), Channel("0", "recv", 0, pair=True)
    ranks = [Told(0).waits(5, moved("send", 4), batched), Told(1).waits(6, moved("recv", 4), plain)]
    notes = judge([rank.told() for rank in ranks])
    assert [(note.code, note.site.line) for note in notes] == [("collective-deadlock", 5)]
    assert dict(notes[0].detail)["communicators"] == 1
    assert dict(notes[0].detail)["rank 0"].endswith("for rank 1, on another communicator than that one uses")


def test_a_communicator_waits_for_its_ranks():
    making = Operation("communicator")
    pair = [Told(0).waits(5, making, Channel("0", "join", 1)), Told(1).waits(6)]
    assert found(*pair) == [("collective-deadlock", 5)]
    both = [Told(0).waits(5, making, Channel("0", "join", 1)), Told(1).call(6, making, Channel("0", "join", 0))]
    assert found(*both) == []
    everybody = Channel("0", "join")
    ranks = [Told(0, 3).waits(5, making, everybody), Told(1, 3).waits(5, making, everybody), Told(2, 3).ends()]
    assert found(*ranks) == [("collective-missing", 5)]
    ranks[2] = Told(2, 3).call(6, making, everybody).waits(6)
    assert found(*ranks) == []


def test_a_receive_from_anyone_waits_for_one_only():
    anyone = Channel("0", "recv", -1)
    assert found(Told(0, 3).waits(5, channel=anyone), Told(1, 3).ends(), Told(2, 3)) == []
    sent = Told(1, 3).call(7, channel=Channel("0", "send", 0)).ends()
    assert found(Told(0, 3).waits(5, channel=anyone), sent, Told(2, 3).ends()) == []


def test_what_follows_from_a_cause_is_not_said_again():
    ranks = [
        Told(0, 3).call(5).waits(5),
        Told(1, 3).call(5).ends("exception", "ValueError", 9),
        Told(2, 3).call(5).waits(7, channel=Channel("0", "recv", 0)),
    ]
    assert found(*ranks) == [("rank-ended", 9)]


def test_ranks_of_which_none_makes_progress_are_told_where_a_thread_waits():
    ranks = Told(0).waits(5), Told(1)
    for rank in ranks:
        rank.stuck, rank.working = ("train.py:12 load", "threading.py:3 wait", "train.py:12 load"), 1
    assert found(*ranks) == [("rank-stuck", 12)]
    assert found(ranks[0], Told(1)) == []


def test_a_rank_that_is_stuck_is_named_with_its_stack():
    stuck = Told(1)
    stuck.stuck = ("train.py:12 load", "threading.py:3 wait", "train.py:12 load")
    assert found(Told(0).waits(5), stuck) == [("rank-stuck", 12)]


def test_a_group_that_not_all_its_ranks_make():
    make = Operation("new_group", elements=(0, 1))
    ranks = [Told(0).waits(5, make, Channel("1", "create")), Told(1).waits(6)]
    assert found(*ranks) == [("collective-deadlock", 5)]


def test_ranks_in_words():
    assert [listed(ranks) for ranks in ([3], [0, 1, 2], [0, 2, 3])] == ["rank 3", "ranks 0-2", "ranks 0, 2-3"]
