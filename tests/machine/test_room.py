"""Kernels of several streams on one device: who comes first, and what collectives leave of its multiprocessors."""

from __future__ import annotations

import pytest

from windtunnel import gpus, networks
from windtunnel.cost.links import Links
from windtunnel.machine.occupancy import FULL, Communication, Occupancy, lost
from windtunnel.networks import Spread


def test_what_is_to_start_later_holds_nothing_up() -> None:
    room = Occupancy()
    assert room.place(0, 1_000, 50, FULL) == 1_000  # it was submitted first, and waits for its stream
    assert room.place(0, 100, 2_000, FULL) == 100
    assert room.displaced_ns == 50


def test_what_runs_already_goes_on() -> None:
    room = Occupancy()
    room.place(0, 0, 1_000, FULL)
    assert room.place(0, 100, 2_000, FULL) == 1_000
    assert room.displaced_ns == 0


def test_only_what_does_not_fit_beside_it_is_displaced() -> None:
    room = Occupancy()
    room.place(0, 1_000, 500, 600)
    assert room.place(0, 0, 2_000, 600) == 0
    assert room.displaced_ns == 500 * 200 // FULL
    room = Occupancy()
    room.place(0, 1_000, 500, 400)
    assert room.place(0, 0, 2_000, 600) == 0
    assert room.displaced_ns == 0


def test_kernels_beside_a_collective_have_the_rest_of_the_multiprocessors() -> None:
    busy = Communication()
    busy.add(1_000, 3_000, 200)
    assert busy.lost_ns(4_000, 5_000) == busy.lost_ns(0, 1_000) == 0
    assert busy.lost_ns(1_000, 2_000) == lost(1_000, 200) == 250
    assert busy.lost_ns(0, 2_000) == lost(2_000, 100)


@pytest.mark.parametrize("length", [1, 37, 900, 5_000])
def test_what_was_lost_is_found_again(length: int) -> None:
    busy = Communication()
    busy.add(1_000, 3_000, 200)
    taken = length + busy.lost_ns(500, 500 + length)
    assert taken - busy.spent_ns(500, 500 + taken) == length


def test_a_collective_takes_two_channels_a_ring() -> None:
    hopper = Links(gpus.find("H100"), networks.find("dgx-h100", ""))
    assert hopper.collective_share("all_reduce", Spread(8, 1)) == 1000 * 24 // 132
    assert hopper.collective_share("reduce_scatter", Spread(16, 2)) == 1000 * 16 // 132
    four_nics = Links(gpus.find("A100-SXM4-40GB"), networks.find("p4d", ""))
    assert four_nics.collective_share("all_gather", Spread(16, 2)) == 1000 * 8 // 108
    assert hopper.collective_share("send", Spread(2, 2)) == hopper.collective_share("all_reduce", Spread(1, 1)) == 0
