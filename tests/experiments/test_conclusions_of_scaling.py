"""What the experiment on several GPUs must find, whatever the numbers are exactly."""

import pytest

from windtunnel.experiments import scaling

pytestmark = pytest.mark.long
"""Each starts programs of its own."""


@pytest.fixture
def steps(small):
    """The rows of a network by number of GPUs: time with threads, with processes, and both speed-ups."""
    table = small("scaling", "8xV100").tables[0]

    def steps(network):
        return {row[2]: row[3:7] for row in table.rows if row[0] == network}

    return steps


# mission 122, 126
def test_a_small_step_is_slower_on_each_further_gpu(steps):
    times = [steps(scaling.BOOK)[gpus][0] for gpus in range(1, 9)]
    assert times == sorted(times)
    assert times[7] > 3 * times[0]


# mission 102, 123
def test_processes_beat_threads_and_one_gpu_where_there_is_enough_to_do(steps):
    for network in (scaling.BOOK, scaling.WIDE):
        threads_s, processes_s, *_ = steps(network)[2]
        assert processes_s < threads_s
    assert steps(scaling.WIDE)[2][3] > 1.2


# mission 103
def test_eight_gpus_are_not_fully_used(steps):
    speedups = [steps(scaling.WIDE)[gpus][2] for gpus in range(1, 9)]
    shares = [speedup / gpus for gpus, speedup in enumerate(speedups, start=1)]
    assert speedups[1] > 1
    assert shares == sorted(shares, reverse=True)
    assert shares[7] < 0.5


# mission 125
def test_odd_numbers_of_gpus_work_as_even_ones_do(steps):
    speedups = {gpus: row[2] for gpus, row in steps(scaling.WIDE).items()}
    assert scaling.Curve(scaling.Case(scaling.WIDE, 2048), speedups).odd_fit_in


def test_the_text_says_what_the_table_says(small):
    result = small("scaling", "8xV100")
    first, *_, last = result.tables[0].rows
    assert result.facts["one"].value == first[3]
    assert result.facts["large_threads"].value == last[5]
    assert result.facts["cpu"].value == result.tables[1].rows[0][2]


@pytest.mark.parametrize(("third", "fits"), [(2.5, True), (3.2, True), (1.2, False), (3.9, False)])
def test_an_odd_number_fits_in_between_its_neighbours(third, fits):
    curve = scaling.Curve(scaling.Case(scaling.WIDE, 1), {1: 1.0, 2: 2.0, 3: third, 4: 3.0})
    assert curve.odd_fit_in is fits
