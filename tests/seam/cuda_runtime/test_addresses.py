"""Allocations are found by any address in them."""

from __future__ import annotations

from windtunnel.seam.cuda_runtime.addresses import AddressMap, Allocation


def test_an_address_belongs_to_the_range_that_it_is_in() -> None:
    known = AddressMap()
    known.add(Allocation(1000, 24, "first"))
    known.add(Allocation(2000, 16, "second"))
    assert [getattr(known.allocation(at), "name", None) for at in (999, 1000, 1023, 1024, 2015, 2016)] == [
        None, "first", "first", None, "second", None,
    ]  # fmt: skip
    assert [one.start for one in known] == [1000, 2000]


def test_a_range_that_is_removed_is_found_no_more() -> None:
    known = AddressMap()
    known.add(Allocation(1000, 24, "first"))
    known.add(Allocation(1000, 8, "in its place"))
    assert [one.name for one in known] == ["in its place"]
    assert known.remove(1000) is not None
    assert known.remove(1000) is None
    assert known.allocation(1000) is None
