"""cuDNN's recurrent layers against the times that DeepBench publishes, in bands, and against formulas written out."""

from __future__ import annotations

import pytest

from windtunnel import gpus
from windtunnel.cost import CostModel, flops, recurrent
from windtunnel.trace.operation import Signature

V100 = CostModel(gpus.find("V100"))
RNN, LSTM, GRU = 1, 2, 3


def layer(mode, units, texts, steps, dtype="float32", backward=False, inputs=None, **detail):
    gates = (1, 1, 4, 3)[mode]
    inputs = units if inputs is None else inputs
    words, state = (steps, texts, inputs), (1, texts, units)
    matrices = ((gates * units, inputs), (gates * units, units))
    given = {"mode": mode, "hidden_size": units, "num_layers": 1, "batch_first": False, "batch_sizes": "[]"} | detail
    name = "aten::_cudnn_rnn_backward" if backward else "aten::_cudnn_rnn"
    shapes = (words, *matrices, state, (steps, texts, units))
    return Signature(name, shapes, (dtype,) * 5, 4, detail=tuple((key, str(value)) for key, value in given.items()))


def chain_ms(*args, **kwargs):
    """A layer without its inputs' products, which DeepBench leaves out (CUDNN_SKIP_INPUT): one input is left."""
    return V100.kernel(layer(*args, **kwargs, inputs=0)).duration_ns / 1e6


@pytest.mark.parametrize(
    ("mode", "units", "texts", "steps", "dtype", "forward_ms", "backward_ms"),
    [
        (LSTM, 256, 16, 150, "float32", 4.542, 5.073 + 0.221),
        (LSTM, 512, 64, 25, "float32", 1.341, 1.257 + 0.436),
        (LSTM, 1536, 32, 50, "float32", 5.574, 4.815 + 2.42),
        (LSTM, 4096, 128, 25, "float32", 31.17, 29.97 + 28.49),
        (LSTM, 2048, 64, 25, "float16", 2.302, 2.475 + 0.862),
        (GRU, 2816, 32, 375, "float32", 64.9, 84.0 + 39.1),
        (GRU, 2048, 32, 187, "float16", 14.26, 14.794 + 2.009),
        (RNN, 2048, 64, 50, "float32", 4.737, 4.171 + 2.173),
    ],
)
def test_published_times_lie_in_the_band(mode, units, texts, steps, dtype, forward_ms, backward_ms):
    """baidu-research/DeepBench, results/train/DeepBench_NV_V100.xlsx."""
    low, high = 1 - recurrent.BAND, 1 + recurrent.BAND
    assert low < forward_ms / chain_ms(mode, units, texts, steps, dtype) < high
    assert low < backward_ms / chain_ms(mode, units, texts, steps, dtype, backward=True) < high


def test_steps_follow_one_another_and_layers_overlap():
    one, longer, deeper = layer(LSTM, 128, 8, 50), layer(LSTM, 128, 8, 100), layer(LSTM, 128, 8, 50, num_layers=4)
    times = [V100.kernel(given).duration_ns for given in (one, longer, deeper)]
    assert 1.9 < times[1] / times[0] < 2.1
    assert 2.1 < times[2] / times[0] < 2.6
    assert V100.kernel(one).bound == V100.kernel(deeper).bound == "launch"
    assert V100.kernel(one).band >= recurrent.BAND


def test_the_batch_sizes_of_a_packed_sequence_are_its_steps():
    words = layer(GRU, 8, 1, 1)._replace(shapes=((9, 8), (24, 8), (24, 8), (1, 3, 8), (9, 8)))
    sizes = recurrent.recurrence(words._replace(detail=(*words.detail, ("batch_sizes", "[3, 3, 2, 1]"))))
    assert (sizes.steps, sizes.cells) == (4, 9)


def test_operations_of_a_projected_bidirectional_lstm():
    given = layer(LSTM, 6, 2, 5, inputs=3, proj_size=4, num_layers=2, bidirectional=True)
    cell = [2 * (24 * 3 + 24 * 4 + 4 * 6), 2 * (24 * 8 + 24 * 4 + 4 * 6)]
    assert flops.count(given, "_cudnn_rnn", "rnn") == 2 * 10 * sum(cell)
    assert flops.count(given, "_cudnn_rnn_backward", "rnn") == 2 * 2 * 10 * sum(cell)


def test_where_the_batch_comes_first_the_second_dimension_is_the_steps():
    """Truth values stand as 1 in a signature, and as words in older traces."""
    for value in (1, "True"):
        given = layer(LSTM, 6, 2, 5, batch_first=value)._replace(shapes=((2, 6, 5),))
        assert recurrent.recurrence(given).steps == 6


@pytest.mark.parametrize(("mode", "units", "backward"), [(LSTM, 192, False), (LSTM, 128, True), (RNN, 384, False)])
def test_matrices_of_few_units_stay_on_the_chip_in_32_bits(mode, units, backward):
    """As many as PyTorch asks cuDNN to keep (`use_rnn_persist_small_h` in aten/src/ATen/native/cudnn/RNN.cpp)."""
    model = CostModel(gpus.find("A100"), (12, 8))

    def step_us(units, dtype="float32", **detail):
        return model.kernel(layer(mode, units, 32, 1000, dtype, backward, inputs=0, **detail)).duration_ns / 1e6

    assert step_us(units) < 5 < step_us(units + 1)
    assert step_us(units, "float16") > 5
    assert step_us(units, batch_sizes=str([32] * 1000)) > 5
    older = CostModel(gpus.find("A100"), (11, 8))
    assert older.kernel(layer(mode, units, 32, 1000, backward=backward, inputs=0)).duration_ns > 5e6
