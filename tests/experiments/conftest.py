"""Each experiment in its small form, on two emulated V100, once for all tests of a process."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import pytest

from windtunnel.cli.experiment import perform
from windtunnel.experiments import Result


@functools.cache
def _small(name: str, gpus: str | None) -> Result:
    return perform(name, gpus, small=True)


@pytest.fixture
def small() -> Callable[..., Result]:
    """`small("matmul")`: the result of an experiment on two V100; `small("matmul", None)` on what this machine has."""

    def small(name: str, gpus: str | None = "2xV100") -> Result:
        return _small(name, gpus)

    return small


@pytest.fixture
def loose_numbers() -> Callable[[Result], list[str]]:
    """The numbers in a conclusion that are none of its facts; what stands in backticks is no number of the run."""

    def loose_numbers(result: Result) -> list[str]:
        text = re.sub(r"`[^`]*`", "", " ".join(result.conclusion))
        for fact in sorted(map(str, result.facts.values()), key=len, reverse=True):
            text = re.sub(rf"(?<![\d.]){re.escape(fact)}(?![\d])", "", text)
        return re.findall(r"\d[\d.,]*", text)

    return loose_numbers
