"""Decisions by a value that each rank has of its own, and the collectives behind them, in the source of a program."""

from __future__ import annotations

import textwrap

import pytest

from windtunnel.ranks.decisions import Decision, decisions

LOOP = """
    def train():
        for x in data:
            loss = net(x)
            value = loss.item()
            {decides}
            loss.backward()
            opt.step()
    """
READ, DECIDES = 5, 6


def found(text, line, calls):
    return decisions(textwrap.dedent(text), line, calls)


@pytest.mark.parametrize(
    ("decides", "call_line"),
    [
        ("if value > 3: continue", 7),
        ("if value > 3: break", 7),
        ("if value > 3: return", 7),
        ("if value > 3: dist.barrier()", 6),
        ("if not math.isfinite(value): print('skipped'); continue", 7),
        ("while value > 3: dist.all_reduce(y)", 6),
    ],
)
def test_what_comes_behind_a_decision(decides, call_line):
    (one,) = found(LOOP.format(decides=decides), READ, {7: "all_reduce"})
    assert (one.line, one.call_line) == (DECIDES, call_line)


@pytest.mark.parametrize(
    "decides",
    [
        "if value > 3: print(value)",
        "if value > 3: raise ValueError",
        "if step > 3: continue",
        "if dist.all_reduce(value) > 3: continue",
        "if value > 3: run(lambda: exit)",
    ],
)
def test_decisions_that_leave_nobody_waiting(decides):
    assert not found(LOOP.format(decides=decides), READ, {7: "all_reduce"})


def test_a_loop_that_is_left_early_keeps_nobody_from_what_comes_behind_it():
    text = LOOP.format(decides="for y in parts:\n                if value > 3: break")
    assert not found(text, READ, {8: "all_reduce"})


def test_a_value_is_followed_through_names_attributes_and_functions():
    text = """
    class Log:
        def read(self, loss):
            self.last = loss.item()
            return self.last
    def train(log):
        if log.last > 1: dist.barrier()
        if log.read(x) > 2:
            dist.broadcast(x, 0)
    """
    assert found(text, 4, {}) == [Decision(7, 7, "barrier"), Decision(8, 9, "broadcast")]


@pytest.mark.parametrize(
    ("begin", "loop", "decides", "stops"),
    [
        ("bad = 0", "for x in data:", "if value > best: bad += 1", "if bad > 2: break"),
        ("stop = False", "while not stop:", "if value > best: stop = True", ""),
        ("", "for x in epochs:", "", "if epochs.should_stop(value): epochs.current = epochs.limit"),
        ("bad = 0", "for x in data:", "if step > 3: bad += 1", None),
        ("", "for x in data:", "", None),
        ("", "for x in epochs:", "if epochs.improved(value): best.epoch = epochs.current", None),
    ],
)
def test_a_training_that_each_rank_stops_by_a_loss_of_its_own(begin, loop, decides, stops):
    lines = [begin, loop, "    loss = net(x)", "    loss.backward()", "    value = loss.item()"]
    text = "\n".join([*lines, *(f"    {line}" for line in (decides, stops or ""))])
    assert bool(found(text, 5, {4: "all_reduce"})) == (stops is not None)


def test_a_name_of_another_function_is_another_value():
    text = """
    def one():
        value = loss.item()
    def two(value):
        if value: dist.barrier()
    """
    assert not found(text, 3, {})


def test_a_value_that_is_shared_before_the_decision():
    text = """
    value = loss.item()
    dist.all_gather_object(values, value)
    if max(values) > 3: dist.barrier()
    """
    assert not found(text, 2, {3: "all_gather"})


@pytest.mark.parametrize(
    ("chosen", "is_found"),
    [
        ("self.experts[hit](x)", True),
        ("expert = self.experts[hit]; expert(x)", True),
        ("functional.linear(x, self.weights[hit])", False),
    ],
)
def test_a_loop_over_what_a_rank_has_chosen_calls_modules(chosen, is_found):
    text = f"""
    def forward(self, x):
        hits = mask.nonzero()
        for hit in hits:
            {chosen}
    """
    assert found(text, 3, {5: ""}) == [Decision(4, 5, "")] * is_found
