"""What the experiments on memory, plans, noise and growth must find, whatever the numbers are exactly."""

from pathlib import Path

import pytest

from windtunnel import experiments, gpus
from windtunnel.experiments import allocator, decade, housing_noise

ROOT = Path(__file__).parents[2]


# mission 80
def test_memory_from_the_cache_is_quicker_than_from_the_driver(small):
    reuses = small("allocator").tables[0]
    ratios = reuses.column("takes longer")
    assert min(ratios) > 1
    assert small("allocator").facts["ratio"].value == max(ratios)


# mission 81, 82, 83, 84
def test_empty_cache_gives_back_what_no_tensor_holds_and_nothing_else(small):
    result = small("allocator")
    before, full, deleted, emptied = result.tables[1].rows
    assert deleted[2] == full[2] == 4 * 64 * allocator.MIB
    assert deleted[3] == full[3]
    assert emptied[1] == emptied[2] == 64 * allocator.MIB
    assert emptied[3] - before[3] == emptied[2]
    assert result.facts["given"].value == 3 * 64 * allocator.MIB


def test_settings_cure_fragmentation(small):
    peaks = small("allocator").tables[2]
    unused = {(row[0], row[1]): row[4] for row in peaks.rows}
    for case in allocator.CASES:
        assert unused[case, "the defaults"] > 0.25
        assert unused[case, "expandable_segments:True"] < 0.1
    assert unused["tensors that stay", "max_split_size_mb:128"] < 0.1
    assert 0.1 < unused["growing batches", "roundup_power2_divisions:4"] < unused["growing batches", "the defaults"]
    assert "expandable_segments:True" in small("allocator").conclusion[1]


# mission 87, 88, 89
def test_a_plan_cache_one_too_small_is_as_good_as_none(small):
    result = small("plan-cache")
    roomy, tight, none, padded = result.tables[0].rows
    rounds = roomy[2] // roomy[7]
    assert roomy[4] == pytest.approx(1 - 1 / rounds)
    assert (tight[3], none[3]) == (0, 0)
    assert (roomy[6], tight[6], none[6]) == (0, tight[5] - tight[7], none[5])
    assert (none[7], none[8]) == (0, 0)
    assert roomy[8] > tight[8] / 2 > 0
    assert padded[7] < roomy[7]
    assert padded[8] < roomy[8]
    assert roomy[1] == 4096


# mission 121
def test_the_last_batch_shakes_the_curve_and_the_labels_spoil_the_training(small):
    result = small("housing-noise")
    rows = {row[0]: row[1:] for row in result.tables[0].rows}
    last, mean, error, share = rows["as in the book"]
    assert mean < last / 2
    assert rows["features standardised"][0] > last / 2
    assert rows["all rows in one batch"][0] < last / 4
    assert share > 0.9
    assert rows["features standardised"][3] > 0.9
    assert rows["labels (rows, 1)"][3] < 0.6
    assert rows["labels and features"][2] < error / 4
    assert "no better than the mean price" in result.conclusion[1]


def test_housing_noise_and_the_example_have_the_same_houses():
    ours = Path(housing_noise.__file__).parent / "data" / "boston.csv"
    assert ours.read_bytes() == (ROOT / "examples" / "data" / "boston.csv").read_bytes()


# mission 8
def test_a_thousandfold_in_a_decade_takes_a_change_of_format():
    result = experiments.find("decade").run(decade.SIZES, None)
    grown = {row[0]: row[5] for row in result.tables[1].rows}
    assert 500 < grown["fastest format"] < 2000
    assert "close to the claim" in result.conclusion[0]
    assert "from 32 bits to 8" in result.conclusion[0]
    assert grown["single precision"] < 100
    assert grown["memory bandwidth"] < 100
    assert len(result.tables[0].rows) == len(gpus.names())


# mission 8
def test_the_growth_follows_from_the_catalogue(small):
    result = small("decade")
    k80, b200 = gpus.find("K80"), gpus.find("B200")
    assert result.facts["fastest_grew"].value == b200.peak_flops["fp8"] / k80.peak_flops["fp32"]
    assert (result.facts["first_year"].value, result.facts["last_year"].value) == ("2014", "2024")
