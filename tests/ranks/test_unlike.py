"""What ranks told of their samplers and first weights, compared: plain data, no process."""

from __future__ import annotations

import pytest

from windtunnel.ranks.replicas import Weights, unequal
from windtunnel.ranks.samplers import Epoch, disagreeing
from windtunnel.trace.operation import Site

LINE = Site("train.py", 9)


def epoch(number=1, size=64, replicas=2, rank=0, seed=0, epoch=0, shuffle=True, site=LINE):
    return Epoch(site, number, size, replicas, rank, seed, epoch, shuffle)


def what(ranks):
    return [dict(note.detail)["what"] for note in disagreeing(ranks)]


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({}, []),
        ({"seed": 1}, ["seed"]),
        ({"epoch": 3}, ["epoch"]),
        ({"replicas": 4}, ["replicas"]),
        ({"shuffle": False}, ["shuffle"]),
        ({"rank": 0}, ["rank"]),
    ],
)
def test_the_second_rank_differs(other, found):
    assert what({0: [epoch()], 1: [epoch(**{"rank": 1, **other})]}) == found


def test_seed_and_epoch_mean_nothing_without_shuffling():
    assert what({0: [epoch(shuffle=False)], 1: [epoch(rank=1, shuffle=False, seed=5, epoch=2)]}) == []


@pytest.mark.parametrize(("parts", "found"), [((0, 0, 1, 1), []), ((0, 1, 0, 1), []), ((0, 0, 0, 1), ["rank"])])
def test_ranks_that_share_a_model_read_the_same_part(parts, found):
    assert what({rank: [epoch(rank=part)] for rank, part in enumerate(parts)}) == found


def test_a_part_that_nobody_reads():
    assert what({rank: [epoch(rank=rank, replicas=3)] for rank in range(2)}) == ["rank"]


def test_a_pass_that_a_rank_did_not_come_to_is_not_judged():
    assert what({0: [epoch(), epoch(2)], 1: [epoch(rank=1)]}) == []


def test_a_line_of_one_rank_is_not_judged():
    assert what({0: [epoch(replicas=1)]}) == []


def test_each_line_is_one_incident():
    ranks = {rank: [epoch(number, rank=rank, seed=rank) for number in (1, 2, 3)] for rank in (0, 1)}
    assert what(ranks) == ["seed"]


def weights(checksums, ranks=(0, 1), number=1):
    return Weights(LINE, ranks, number, tuple("[8, 8]" for _ in checksums), tuple(checksums))


def test_replicas_that_begin_alike():
    assert unequal({0: [weights((1, 2))], 1: [weights((1, 2))]}) == []


def test_replicas_that_do_not():
    (note,) = unequal({0: [weights((1, 2))], 1: [weights((1, 3))]})
    detail = dict(note.detail)
    assert (note.code, note.site) == ("unequal-replicas", LINE)
    assert (detail["differing"], detail["parameters"]) == (1, 2)


def test_the_ranks_that_differ_from_most_are_named():
    ranks = {rank: [weights((5 if rank == 2 else 4,), ranks=(0, 1, 2))] for rank in range(3)}
    (note,) = unequal(ranks)
    assert dict(note.detail)["others"] == "rank 2"


def test_shards_of_different_ranks_are_not_compared():
    assert unequal({0: [weights((1,), ranks=(0, 2))], 1: [weights((2,), ranks=(1, 3))]}) == []
