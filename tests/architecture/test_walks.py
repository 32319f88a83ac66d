"""What an operation walks through becomes shorter, not longer."""

import pytest
from tools import walks

from windtunnel.libraries import require
from windtunnel.trace.units import format_bytes

MOST = {"torch.ones": (24, 18), ".to('cuda:1')": (38, 28), ".item()": (20, 16), "all_reduce": (85, 45)}
"""Calls and changes of file, as `make walks` prints them: write a smaller number down."""


@pytest.mark.long
def test_walks_become_no_longer() -> None:
    found = walks.found()
    longer = {what: tuple(found[what]) for what, most in MOST.items() if any(map(int.__gt__, found[what], most))}
    assert not longer, f"longer than {MOST}"


def test_a_walk_counts_calls_of_the_package_and_changes_of_file() -> None:
    assert walks.walked(lambda: None) == (0, 0)
    assert walks.walked(lambda: (format_bytes(1.0), format_bytes(2.0))).changes == 0
    assert walks.walked(lambda: (format_bytes(1.0), require([]), format_bytes(2.0))).changes == 2
