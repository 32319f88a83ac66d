"""A fragmented run with a history of its allocations is replayed, and told which setting would have helped."""

from __future__ import annotations

import pytest

from windtunnel import emulate

MIB = 1 << 20


def grow(sizes):
    import torch

    for size in sizes:
        buffer = torch.empty(size * MIB, dtype=torch.uint8, device="cuda")
        del buffer


@pytest.mark.parametrize("history", [True, False])
def test_the_replay_is_part_of_the_run_s_facts(history):
    with emulate("V100", memory_history=history) as session:
        grow((1000, 1200, 1400, 1600, 1800))
    (finding,) = [one for one in session.findings() if one.code == "fragmentation"]
    if not history:
        assert "replays" not in session.trace.facts
        assert "`--memory-history`" in finding.advice
        return
    own, expandable, *_ = session.trace.facts["replays"]
    assert (own["setting"], own["peak_reserved_bytes"]) == ("", 7000 * MIB)
    assert (expandable["setting"], expandable["peak_reserved_bytes"]) == ("expandable_segments:True", 1800 * MIB)
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in finding.advice


def test_a_run_without_gaps_replays_nothing():
    with emulate("V100", memory_history=True) as session:
        grow((1800, 1600, 1000))
    assert "replays" not in session.trace.facts


def test_out_of_memory_names_what_was_alive():
    import torch

    with emulate("V100", memory_history=True) as session:
        weights = torch.empty(9000 * MIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(8000 * MIB, dtype=torch.uint8, device="cuda")
        del weights
    (finding,) = [one for one in session.findings() if one.code == "out-of-memory"]
    assert "most of it held by" in finding.message
    assert "test_remedies_of_checks.py" in finding.message
    assert "(8.79 GiB, made by aten::empty)" in finding.message
