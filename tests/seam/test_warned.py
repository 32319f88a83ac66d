"""Warnings name the line of the program that would be named on a GPU."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable

import pytest
import torch

from windtunnel.session import Session


def resized() -> None:
    torch.add(torch.ones(2, device="cuda"), 1, out=torch.empty(1, device="cuda"))


def read_only() -> None:
    torch.frombuffer(b"1234", dtype=torch.uint8)


def own() -> None:
    warnings.warn("mine", stacklevel=1)


@pytest.mark.parametrize(("work", "text"), [(resized, "was resized"), (read_only, "not writable"), (own, "mine")])
def test_the_line_that_a_gpu_would_name(work: Callable[[], None], text: str, session: Session) -> None:
    with pytest.warns(UserWarning, match=text) as found:
        work()
    assert (found[0].filename, found[0].lineno) == (__file__, inspect.getsourcelines(work)[1] + 1)
