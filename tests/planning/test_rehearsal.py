"""What a rehearsal that failed says."""

from __future__ import annotations

import pytest

from understudy.launch import Program, Result
from understudy.planning.measurement import FAILED
from understudy.planning.rehearsal import Job, _measured

AGENT = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
RANKS = f"[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: 3 heads\nRoot Cause\n{AGENT}\n=====\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Traceback:\n  raise\nKeyError: 'x'\nbye\n", "KeyError: 'x'"),
        (RANKS, "ValueError: 3 heads"),
        (AGENT, AGENT),
        ("cannot start\n", "cannot start"),
        ("", "it wrote nothing on stderr"),
    ],
)
def test_a_program_that_failed_is_quoted_by_its_own_error(text: str, words: str) -> None:
    found = _measured(Job(Program("script", "train.py"), "A100"), 1, text, Result())
    assert (found.status, found.message) == (FAILED, f"it ended with 1: {words}")
