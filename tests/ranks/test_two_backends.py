"""Groups of two backends beyond what the programs of `programs/` say: both launchers, advice, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_programs import ask
from test_programs import server as server

from windtunnel.ranks.calls import ON_CPU, Call, Channel, Group, Operation, Rank, State
from windtunnel.ranks.judge import crosses_backends, judge, mismatches

HERE = Path(__file__).parent
PROGRAM = HERE / "programs" / "two_backends_in_different_order_valid.py"
HALVES = {"0": Group("default_pg", (0, 1)), "0" + ON_CPU: Group("the default group" + ON_CPU, (0, 1))}


def rank_in(number, *calls, main=0):
    """A rank that waits in the last of its calls: (group, operation, thread) each."""
    made, counts = [], {}
    for at, (group, operation, thread) in enumerate(calls, 1):
        channel = Channel(group)
        counts[channel] = counts.get(channel, 0) + 1
        state = State.WAITING if at == len(calls) else State.DONE
        made.append(Call(channel, counts[channel], Operation(operation), state=state, thread=thread))
    return Rank(number, HALVES, made, counts, main=main)


def test_ranks_that_wait_in_both_backends_may_go_on_elsewhere():
    gpu, cpu = ("0", "all_reduce", 1), ("0" + ON_CPU, "all_reduce", 1)
    assert crosses_backends(judge([rank_in(0, gpu), rank_in(1, cpu)]))


def test_ranks_that_wait_in_one_backend_do_not():
    notes = judge([rank_in(0, ("0", "all_reduce", 1)), rank_in(1, ("0", "broadcast", 1))])
    assert [note.code for note in notes] == ["collective-mismatch"]
    assert not crosses_backends(notes)


@pytest.mark.parametrize(("thread", "told"), [(1, 0), (2, 1)])
def test_a_mismatch_tells_whether_threads_share_a_group(thread, told):
    first = [("0", "barrier", 1), ("0", "all_gather", thread)]
    other = [("0", "all_gather", thread), ("0", "barrier", 1)]
    (note,) = mismatches({0: rank_in(0, *first), 1: rank_in(1, *other)})
    assert dict(note.detail)["threads"] == told


def test_a_thread_and_the_main_thread_of_another_rank_are_threads_that_share_a_group():
    ranks = {0: rank_in(0, ("0", "all_gather", 2), main=1), 1: rank_in(1, ("0", "barrier", 1), main=1)}
    assert dict(mismatches(ranks)[0].detail)["threads"] == 1


@pytest.mark.long
@pytest.mark.parametrize("torchrun", [False, True], ids=["ours", "torchrun"])
def test_both_launchers(torchrun, tmp_path):
    starter = ["-m", "torch.distributed.run", "--standalone"] if torchrun else []
    ranks = [*starter, "--nproc-per-node", "2", str(PROGRAM)]
    done = subprocess.run(
        [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "2xA100", *ranks],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_threads_that_share_a_backend_are_told_to_use_groups_of_their_own(server):
    answer = ask(server, HERE / "programs" / "two_backends_one_thread_too_many.py")
    assert [advice.partition(",")[0] for advice in answer["advice"]] == ["give each thread a process group of its own"]


@pytest.mark.long
def test_what_hardware_may_finish_is_refused_and_no_finding(server):
    answer = ask(server, HERE / "kernel_between_backends.py")
    assert answer["outcome"] == 66
    assert answer["findings"] == []
    assert "it cannot say whether this program ends" in "".join(answer["output"].values())
