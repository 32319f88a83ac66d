"""Samples a second: from a loader, else from the inputs that a step copies, else not said."""

from __future__ import annotations

import json

from traces import HTOD

from windtunnel.reports import json as json_report
from windtunnel.reports.parts.summary import summarize
from windtunnel.reports.parts.throughput import tokens
from windtunnel.reports.text import render
from windtunnel.trace.operation import Kind, Lane, Signature, Site


def deliver(program, samples, line=9):
    program.row(Kind.BATCH, Lane(-1, 0), Signature("DataLoader"), Site("train.py", line), 0, 0, samples)
    return program


def inputs(program, *shapes, line=10):
    for shape in shapes:
        program.now_ns += 5_000
        signature = Signature(HTOD, (shape,), detail=(("non_blocking", 0),))
        program.row(Kind.COPY, Lane(0, 0), signature, Site("train.py", line), program.now_ns, program.now_ns, 4096)
    return program


def test_a_loader_says_how_many_samples_a_step_takes(program):
    for number in range(5):
        deliver(deliver(program, 32), 32 if number < 4 else 7)  # two batches a step, the last one short
        inputs(program, (32, 8)).kernel(ns=1_000_000).step(number)
    summary = summarize(program.trace, [])
    assert summary.samples.number == 64
    per_s = 64e9 / summary.timing.step_ns
    assert summary.throughput == f"{per_s:,.0f} samples a second (64 a step, by the DataLoader at train.py:9)"
    assert summary.throughput in " ".join(render(program.trace, [], width=200).split())
    samples = json.loads(json_report.render(program.trace, []))["timing"]["samples"]
    assert (samples["per_step"], samples["source"], samples["line"]) == (64, "loader", 9)


def test_else_the_first_dimension_of_the_inputs_does(program):
    for number in range(5):
        inputs(program, (16, 3, 8, 8), (16,), ()).kernel(ns=1_000_000).step(number)
    summary = summarize(program.trace, [])
    assert summary.samples.number == 16
    assert "16 a step, by the first dimension of what train.py:10 copies" in summary.throughput


def test_inputs_and_labels_of_one_shape_are_one_batch_and_a_kernel_between_them_makes_two(program):
    for number in range(5):
        inputs(program, (12, 64), (12, 64)).kernel(ns=1_000_000).step(number)
    assert summarize(program.trace, []).samples.number == 12
    for number in range(5, 10):
        inputs(inputs(program, (12, 64)).kernel(ns=1_000_000), (12, 64)).kernel(ns=1_000_000).step(number)
    assert 12 < summarize(program.trace, []).samples.number < 24


def test_tokens_are_the_elements_of_whole_numbers_of_two_dimensions(program):
    for number in range(5):
        inputs(program, (8, 64), (8, 64), (8, 1024)).kernel(ns=1_000_000).step(number)
    assert tokens(program.trace) == 8 * 64  # 4,096 bytes: 8 an element there, less in the last
    for number in range(5, 10):
        inputs(program, (16, 3, 8, 8)).kernel(ns=1_000_000).step(number)
    assert tokens(program.trace) == 8 * 64 * 4 / 9


def test_flat_tokens_are_what_an_embedding_takes_of_them(program):
    """nanochat copies the tokens and the labels of a batch in one flat tensor."""
    for number in range(5):
        signature = Signature(HTOD, ((4096,),), detail=(("non_blocking", 0),))
        program.now_ns += 5_000
        program.row(Kind.COPY, Lane(0, 0), signature, Site("train.py", 10), program.now_ns, program.now_ns, 8 * 4096)
        program.kernel("aten::embedding", shapes=((50304, 768), (2, 1024))).kernel(ns=1_000_000).step(number)
    assert tokens(program.trace) == 2048
    assert summarize(program.trace, []).samples is None


def test_inputs_that_do_not_agree_say_nothing(program):
    for number in range(5):
        inputs(program, (16, 3), (20, 16)).kernel(ns=1_000_000).step(number)
    assert summarize(program.trace, []).throughput == ""
    assert json.loads(json_report.render(program.trace, []))["timing"]["samples"] is None


def test_several_processes_each_have_their_own(program):
    for number in range(5):
        deliver(program, 8).kernel(ns=1_000_000).step(number)
    program.trace.facts["processes"] = 2
    assert "samples a second in each of 2 processes (8 a step" in summarize(program.trace, []).throughput
