"""Where the time went: the step, its causes, the operators."""

from __future__ import annotations

import json

import numpy as np

from windtunnel.reports import json as json_report
from windtunnel.reports.parts import time as _time
from windtunnel.reports.text import render
from windtunnel.trace.operation import Kind, Lane

PEAKS = {"fp32": 15.7e12, "fp16": 125e12}


def facts(program, **changed):
    gpu = {"name": "V100", "compute_capability": [7, 0], "memory_bandwidth_bytes_per_s": 900e9, "peak_flops": PEAKS}
    program.trace.facts["gpus"] = [gpu | changed]


def test_a_step_ends_when_the_device_has_done_it_and_the_first_is_left_out(training):
    timing = _time.measure(training.trace)
    assert timing.steps == 10
    assert timing.step_ns is not None
    assert timing.first_step_ns is not None
    assert 240_000 < timing.step_ns < 1_000_000
    assert timing.steps_per_s == 1e9 / timing.step_ns


def test_the_causes_make_up_the_window(training):
    (split,) = _time.measure(training.trace).splits
    assert sum(split.causes.values()) == split.window_ns
    assert sum(split.causes[cause] for cause in _time.BUSY) == split.busy_ns > 0.3 * split.window_ns
    assert split.causes["wait"] > 0


def test_kernels_are_bound_by_what_the_roofline_says(program):
    facts(program)
    program.kernel("aten::mm", ns=1_000_000, shapes=((4096, 4096),), dtypes=("float16",), flops=10**11)
    program.kernel("aten::add", ns=1_000_000, shapes=((1 << 26,),), dtypes=("float32",))
    program.kernel("aten::neg", ns=3_000, shapes=((4,),), dtypes=("float32",))
    timing = _time.measure(program.trace)
    (split,) = timing.splits
    assert split.causes["compute"] == 1_000_000
    assert split.tensor_core_ns == split.matrix_ns == 1_000_000
    mm = next(one for one in timing.operators if one.name == "aten::mm")
    assert mm.bound == "compute"
    assert mm.roofline == 10**11 / 125e12 / 1e-3


def test_a_recurrent_layers_steps_are_small_kernels(program):
    facts(program)
    program.kernel("aten::_cudnn_rnn", ns=1_000_000, shapes=((64, 64),), dtypes=("float32",), flops=10**7)
    (split,) = _time.measure(program.trace).splits
    assert split.causes["small kernels"] == 1_000_000


def test_tensor_cores_need_their_types(program):
    facts(program)
    program.kernel("aten::mm", ns=1_000, shapes=((64, 64),), dtypes=("float32",), flops=10**6)
    program.kernel("aten::mm", ns=3_000, shapes=((64, 64),), dtypes=("bfloat16",), flops=10**6)
    (split,) = _time.measure(program.trace).splits
    assert (split.matrix_ns, split.tensor_core_ns) == (4_000, 0)


def test_copies_behind_kernels_are_hidden():
    busy = _time.union(np.array([0, 50, 300]), np.array([100, 200, 400]))
    assert busy.tolist() == [[0, 300], [200, 400]]
    assert _time.overlap(np.array([[150], [350]]), busy) == 100


def test_what_is_done_once_is_named_apart(program):
    program.kernel(ns=1_000)
    trace = program.trace
    name = trace.signatures.number(trace.signatures[0]._replace(name="first use: cuDNN"))
    trace.rows.append((int(Kind.HOST), 0, name, 0, 0, 0, 400_000_000, 400_000_000))
    timing = _time.measure(trace)
    assert timing.first_uses == [("cuDNN", 400_000_000)]
    assert _time.first_use_words(timing) == "cuDNN 400 ms"


def test_the_wait_for_a_library_is_no_input(program):
    program.kernel(ns=1_000)
    program.host(60_000_000, name="first use: cuSOLVER")
    program.kernel(ns=1_000)
    (split,) = _time.measure(program.trace).splits
    assert split.causes["first use"] == 60_000_000
    assert split.causes["input"] == 0


def test_text_and_json_say_the_step_the_split_and_the_operators(training):
    training.trace.facts["band"] = 0.2
    text = render(training.trace, [])
    assert "step: " in text
    assert " a second; median of 9 steps after the first" in text
    assert "  time: " in text
    assert "most time in aten::addmm 100 %" in " ".join(text.split())
    report = json.loads(json_report.render(training.trace, []))
    assert report["timing"]["steps"] == 10
    assert set(report["timing"]["devices"][0]["causes"]) == set(_time.CAUSES)
    assert report["timing"]["operators"][0]["name"] == "aten::addmm"


def test_every_process_has_shares_of_the_first_ones_steps(program):
    facts(program)
    program.trace.facts["gpus"] *= 2
    for number in range(4):
        program.kernel("aten::mm", ns=500_000, shapes=((4096,),), dtypes=("float32",), flops=10**9).step(number)
    rows = list(program.trace.rows)
    for row in rows:  # another process, whose device did the same
        if row[0] != Kind.STEP:
            lane = program.trace.lanes.number(Lane(1, 0, 1))
            program.trace.rows.append((row[0], lane, *row[2:]))
    first, second = _time.measure(program.trace).splits
    assert (first.device, second.device) == (0, 1)
    assert first.window_ns == second.window_ns
    assert first.busy_ns == second.busy_ns > 0
    assert first.causes == second.causes
