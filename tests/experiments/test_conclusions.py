"""What each experiment must find, whatever the numbers are exactly: its facts again, from its tables."""

import pytest
import torch

from windtunnel.experiments import logging


def rows(result, table=0):
    """The rows of a table as dicts by heading."""
    names = [column.name for column in result.tables[table].columns]
    return [dict(zip(names, row, strict=True)) for row in result.tables[table].rows]


def value(result, fact):
    """The number of a fact."""
    return result.facts[fact].value


# mission 105, 129
def test_small_products_are_faster_on_the_cpu_and_large_ones_on_the_gpu(small):
    result = small("matmul")
    singles = [row for row in rows(result) if row["type"] == "float32"]
    speedups = [row["CPU"] / row["GPU"] for row in singles]
    assert speedups[0] < 10 < speedups[-1]
    assert value(result, "speedup_largest") == speedups[-1]
    assert value(result, "crossover") == next(row["n"] for row in singles if row["GPU"] < row["CPU"])
    assert all(row["GPU with copies"] > row["GPU"] for row in rows(result))
    shares = [row["of its peak"] for row in singles]
    assert shares == sorted(shares)
    assert value(result, "peak_last") == shares[-1] < 1


# mission 129
def test_without_a_gpu_the_cpu_is_measured_alone(small):
    result = small("matmul", None)
    assert set(result.devices) == {"cpu"}
    assert [column.name for column in result.tables[0].told().columns] == ["type", "n", "CPU"]
    assert "--gpus" in result.conclusion[1]


# mission 130
def test_parameters_come_back_right_and_pinned_memory_is_faster(small):
    result = small("parameters")
    assert {row["right values"] for row in rows(result, 1)} == {"yes"}
    assert [row["lands on"] for row in rows(result, 1)] == ["cuda:1", "cpu", "cuda:0", "cuda:0"]
    assert value(result, "values_ratio") > 10
    assert value(result, "read_pinned") > 1
    assert value(result, "write_pinned") > 1


# mission 130
def test_loading_straight_to_the_gpu_holds_every_parameter_twice(small):
    result = small("parameters")
    memory = {row["lands on"]: row["memory of cuda:0 beside the model"] for row in rows(result, 1)}
    assert memory["cpu"] == value(result, "extra_cpu") == 0
    assert memory["cuda:0"] == value(result, "extra_gpu")
    assert 0.9 * memory["cuda:0"] < value(result, "size") < 1.1 * memory["cuda:0"]


# mission 47, 48, 131
def test_a_log_kept_on_the_gpu_waits_once(small):
    result = small("logging")
    products = value(result, "products")
    gpu = rows(result)
    assert [row["synchronizations"] for row in gpu] == [products, 1, products, 1]
    assert value(result, "ratio") == gpu[0]["time"] / gpu[1]["time"] > 1.2
    assert gpu[2]["time"] > 1.2 * gpu[3]["time"]


# mission 131
def test_both_logs_hold_the_same():
    matrix = torch.rand(100, 100)
    for quantity in logging.QUANTITIES.values():
        assert logging.one_at_a_time(matrix, quantity, 5) == logging.kept(matrix, quantity, 5)
    assert logging.frobenius(matrix).item() == pytest.approx((matrix @ matrix).square().sum().sqrt().item())
    assert logging.trace(matrix).item() == pytest.approx(matrix.square().sum().item(), rel=1e-5)


# mission 47, 49
def test_reading_each_loss_stalls_both_gpus_and_a_thread_for_each_does_not(small):
    result = small("logging")
    read, kept, threads = (row["time"] for row in rows(result, 2))
    assert value(result, "loss_ratio") == read / kept > 1.1
    assert value(result, "threads_ratio") == threads / kept < read / kept
    assert "interpreter lock" in result.notes[0]


# mission 132
def test_two_gpus_are_almost_twice_as_fast_for_large_products_only(small):
    result = small("two-gpus")
    speedups = [row["in sequence on one GPU"] / row["on two GPUs"] for row in rows(result)]
    assert speedups == sorted(speedups)
    assert value(result, "speedup_smallest") == speedups[0] < 1.5
    assert value(result, "speedup_largest") == speedups[-1] > 1.9


# mission 132
def test_two_streams_on_one_gpu_gain_only_while_it_is_not_full(small):
    result = small("two-gpus")
    gains = {row["n"]: row["in sequence on one GPU"] / row["in two streams of it"] for row in rows(result)}
    assert max(gains, key=gains.get) == value(result, "streams_best_n") == 512
    assert gains[512] > 1.2
    assert 0.95 < gains[2048] < 1.05


# mission 40, 99
def test_transfers_are_slower_than_products_and_pinned_memory_is_faster(small):
    result = small("transfer")
    large = rows(result)[-1]
    assert large["to the GPU, pageable"] > large["a product of that size"]
    assert value(result, "pinned") > 1.5 * value(result, "pageable")
    assert all(row["to the GPU, pinned"] < row["to the GPU, pageable"] for row in rows(result))
    bandwidths = [row["pinned bandwidth"] for row in rows(result)]
    assert bandwidths == sorted(bandwidths)


# mission 42, 45
def test_blocking_copies_queue_for_coffee_and_asynchronous_ones_telephone(small):
    result = small("transfer")
    queue, phone, _ = rows(result, 1)
    assert queue["host is free after"] > 0.8 * queue["all is done after"]
    assert phone["host is free after"] < 0.2 * phone["all is done after"]
    blocking, ahead = result.plots[1:]
    assert longest(blocking, "host", "copy") > 0.9 * longest(blocking, "GPU, copies", "copy")
    assert longest(ahead, "host", "copy") < 0.2 * longest(ahead, "GPU, copies", "copy")


# mission 42, 100
def test_the_next_batch_travels_while_the_gpu_computes(small):
    result = small("transfer")
    blocking, ahead = result.plots[1:]
    assert overlap(blocking) == 0
    assert overlap(ahead) > 0
    assert value(result, "speedup_ahead") > value(result, "speedup_phone") > 1


def longest(timeline, lane, name):
    """The longest bar of that name in a lane, in seconds."""
    return max(bar.end_s - bar.begin_s for bar in timeline.bars if (bar.lane, bar.name) == (lane, name))


def overlap(timeline):
    """How long copies and products ran at the same time, in seconds."""
    copies = [bar for bar in timeline.bars if bar.lane == "GPU, copies"]
    products = [bar for bar in timeline.bars if bar.lane == "GPU, products"]
    both = (min(a.end_s, b.end_s) - max(a.begin_s, b.begin_s) for a in copies for b in products)
    return sum(length for length in both if length > 1e-7)


# mission 43
def test_many_small_operations_are_worse_and_foreach_and_graphs_mend_it(small):
    result = small("small-operations")
    last = rows(result)[-1]
    assert value(result, "gpu_ratio") == last["GPU, one by one"] / rows(result)[0]["GPU, one by one"] > 20
    assert last["GPU, foreach"] < last["GPU, graph"] < last["GPU, one by one"]


# mission 44
def test_rows_in_one_tensor_beat_rows_one_by_one(small):
    result = small("small-operations")
    assert value(result, "copies") == rows(result, 1)[0]["time"] / rows(result, 1)[1]["time"] > 5


@pytest.mark.parametrize("name", ["logging", "parameters", "small-operations"])
def test_the_cpu_alone_has_something_to_show(small, loose_numbers, name):
    result = small(name, "0")
    assert result.sources == {"cpu": "measured"}
    assert loose_numbers(result) == []
    assert not result.emulated
