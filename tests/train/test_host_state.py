"""Models and callbacks that live on the host train as in a loop written by hand, as a CUDA graph too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from host_cases import CASES, by_hand, by_trainer, differs

import windtunnel
from windtunnel import torch as wt


@pytest.mark.parametrize("name", CASES)
def test_on_the_cpu(name):
    assert differs(by_hand(CASES[name], wt.cpu()), by_trainer(CASES[name])) is None


@pytest.fixture(scope="module")
def gpu() -> Iterator[torch.device]:
    """One emulated V100 for all cases."""
    with windtunnel.emulate("V100"):
        yield wt.gpu(0)


STAY_EAGER = {
    "lr every step": "what the step reads on the host changes too often for a graph, at last the optimizer's group 0",
    "layer drop": "LayerDrop.between uses the module random, which a graph would do once",
    "numpy": "NumPyNoise.between uses the module numpy, which a graph would do once",
    "own generator": "the step itself changes model.rng, which a replay would not do",
    "noise from the host": "the step itself changes random numbers of the host, which a replay would not do",
    "counter": "the step itself changes model.calls (1, then 2), which a replay would not do",
    "global counter": "the step itself changes SEEN, which a replay would not do",
    "branch on values": "the capture failed",
    "print": "Prints.between calls print(), which a graph would do once",
    "memory": "the step itself changes model.before",
    "iterator": "model.schedule.factors is a range_iterator, whose use a graph would leave out",
}


@pytest.mark.long  # three trainings each
@pytest.mark.parametrize("name", CASES)
def test_on_an_emulated_gpu(name, gpu):
    """With and without a CUDA graph; the status says in a sentence why there is none."""
    expected = by_hand(CASES[name], gpu)
    eager = by_trainer(CASES[name], 1)
    captured = by_trainer(CASES[name], 1, graph=True)
    assert differs(expected, eager) is None
    assert differs(expected, captured) is None, captured[3]
    assert eager[3] == "eager: graph=False"
    reason = STAY_EAGER.get(name)
    assert captured[3].startswith("captured as a CUDA graph" if reason is None else f"eager: {reason}")
