"""Which ranks of a cluster are played, and for whom each of them stands."""

import pytest

from windtunnel.errors import UsageError
from windtunnel.ranks.fold import EVERY, Change, Fold, parse, spans


def test_at_first_the_first_rank_stands_for_all_and_the_last_one_is_compared():
    fold = Fold(512, 8)
    assert fold.played == [0, 511]
    assert fold.words() == "512 ranks by 2 processes: rank 0 stands for 0-511, checked with 511"


@pytest.mark.parametrize(
    ("checked", "played"), [(0, [0]), (1, [0, 7]), (2, [0, 3, 7]), (7, list(range(8))), (EVERY, list(range(8)))]
)
def test_as_many_members_are_compared_as_asked_for(checked, played):
    assert Fold(8, 8, checked).played == played


def test_a_rank_that_is_alone_stands_for_nobody_else():
    fold = Fold(8, 8).with_alone([0])
    assert fold.played == [0, 1, 7]
    assert fold.first_of == [0, 1, 1, 1, 1, 1, 1, 1]


def test_stages_of_a_pipeline_over_far_ranks_are_all_played_twice():
    fold = Fold(512, 8).with_group([0, 128, 256, 384])
    assert fold.played == [0, 127, 128, 255, 256, 383, 384, 511]
    assert fold.first_of[130] == 128


def test_stages_next_to_one_another_stand_for_every_fourth_rank():
    fold = Fold(64, 8).with_group([60, 61, 62, 63])
    assert fold.played == [0, 1, 2, 3, 60, 61, 62, 63]
    assert [fold.first_of[rank] for rank in (4, 5, 62)] == [0, 1, 2]


def test_two_represented_dimensions_multiply():
    fold = Fold(64, 8).with_group([0, 1]).with_group([0, 32])
    assert len(fold.classes) == 4
    assert fold.played == [0, 1, 30, 31, 32, 33, 62, 63]


def test_partners_of_a_rank_that_is_alone_are_played_too():
    fold = Fold(16, 8).with_group([0, 8]).with_alone([0])
    assert {1, 9} <= set(fold.played)


def test_a_group_of_no_regular_shape_is_played_rank_by_rank():
    assert Fold(8, 8).with_group([1, 2, 6]).played == [0, 1, 2, 6, 7]


def test_a_ring_of_all_ranks_is_played_whole():
    assert Fold(8, 8).with_group(range(8)).is_whole


def test_ranks_of_another_kind_have_a_class_of_their_own():
    assert Fold(8, 8).with_kind(1, 2).played == [0, 1, 6, 7]


def test_who_is_there_of_a_group():
    assert Fold(8, 8).present([4, 5, 6, 7]) == [3]


def test_a_fold_and_a_change_survive_their_way_to_another_process():
    fold = Fold(64, 8).with_group([0, 8]).with_alone([3]).with_kind(1, 2).with_beside([9])
    assert Fold.from_json(fold.to_json()) == fold
    change = Change("group", (0, 8), "rank 0 sends to rank 8")
    assert Change.from_json(change.to_json()) == change
    assert change.apply(Fold(64, 8)) == Fold(64, 8).with_group([0, 8])
    assert Change("alone", tuple(range(8)), "they differ").apply(Fold(8, 8)) == Fold(8, 8).whole()


def test_numbers_are_written_as_a_person_writes_them():
    assert spans([0, 1, 2, 5, 8, 16, 24, 30]) == "0-2, 5, 8-24 by 8, 30"
    assert spans([0, 2]) == "0, 2"


def test_a_cluster_is_nodes_gpus_and_a_model():
    assert parse("64x8xH100") == (64, 8, "H100")
    for wrong in ("8xH100", "0x8xH100", "H100", "4x8x", "70000x8xH100"):
        with pytest.raises(UsageError):
            parse(wrong)


def test_a_ranks_gpus_stand_for_those_of_its_class_or_for_themselves():
    fold = Fold(16, 8)
    assert fold.gpus_of(0, 8)[0] == fold.gpus_of(15, 8)[7] == list(range(16))
    assert fold.with_group(range(0, 16, 8)).gpus_of(8, 8)[3] == list(range(8, 16))
    assert fold.with_alone([3]).gpus_of(0, 8)[3] == [3]
    assert fold.whole().gpus_of(9, 8) == [[number] for number in range(8, 16)]
    assert Fold(2, 2).gpus_of(1, 4)[2:] == [[2], [3]]
