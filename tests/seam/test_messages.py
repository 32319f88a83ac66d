"""Messages between two ranks: the communicator that each uses, its stream, its kernel, and PyTorch's warning."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel.seam.torch.distributed.communicators import BUFFERED, BUFFERED_BYTES, Communicator, wire_tag
from windtunnel.trace.operation import Kind
from windtunnel.trace.trace import Trace

PROGRAM = Path(__file__).parent / "programs" / "messages.py"


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """What both ranks saw, what rank 0's device did, and what was said."""
    folder = tmp_path_factory.mktemp("messages")
    out, trace = folder / "seen", folder / "run.trace"
    options = ["-q", "--gpus", "2xA100", "--nproc-per-node", "2", "--trace", str(trace)]
    done = subprocess.run(
        [sys.executable, "-m", "windtunnel", "run", *options, str(PROGRAM), str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = [json.loads(Path(f"{out}.{rank}").read_text("utf-8")) for rank in (0, 1)]
    rows = [(row.signature.name, row) for row in Trace.load(trace) if row.kind == Kind.COLLECTIVE]
    return seen, rows, done.stderr


@pytest.mark.long
def test_values_arrive_batched_and_plain(messages):
    seen = messages[0]
    assert [one["batched"] for one in seen] == [one["plain"] for one in seen] == [1.0, 0.0]
    assert seen[1]["many"] == 0.0


@pytest.mark.long
def test_only_plain_messages_make_a_communicator_of_their_pair(messages):
    for one in messages[0]:
        assert one["batched_memory"] == 0
        assert one["plain_memory"] > 100


@pytest.mark.long
def test_a_batch_is_one_kernel_on_the_groups_stream_and_a_plain_message_is_on_its_pairs(messages):
    rows = [(name, row) for name, row in messages[1] if name.startswith("nccl:")]
    (_, sent), (_, received), *_ = rows
    assert [name for name, _ in rows[:2]] == ["nccl:send", "nccl:recv"]
    assert received.start_ns < sent.end_ns  # beside one another
    (_, again), *_ = rows[2:]
    assert again.start_ns >= max(sent.end_ns, received.end_ns)
    plain = rows[4:]
    assert {row.lane for _, row in rows[:4]}.isdisjoint({row.lane for _, row in plain})
    assert len({row.lane for _, row in plain}) == 1
    assert plain[1][1].start_ns >= plain[0][1].end_ns  # one after the other


@pytest.mark.long
def test_pytorch_warns_once_of_plain_messages(messages):
    said = "was called on this ProcessGroup with size 2.  In lazy initialization mode, this will result in a new 2-rank"
    assert messages[2].count(said) == 2


class Posted:
    """A message in flight."""

    def __init__(self, line, sent_to=-1, size=4, batch=0):
        self.line, self.sent_to, self.size, self.batch = line, sent_to, size, batch
        line.append(self)

    def settle(self):
        self.line.remove(self)


@pytest.mark.parametrize(
    ("posted", "collective", "left"),
    [
        ({"sent_to": 1}, False, 1),
        ({"sent_to": 1}, True, 0),
        ({"sent_to": 1, "size": BUFFERED_BYTES}, False, 1),
        ({"sent_to": 1, "size": BUFFERED_BYTES + 1}, False, 0),
        ({}, False, 0),
        ({"batch": 2}, False, 1),
        ({"batch": 1}, False, 0),
    ],
)
def test_what_holds_up_the_next_operation_of_batch_2(posted, collective, left):
    communicator = Communicator()
    Posted(communicator.in_flight, **posted)
    communicator.line_up(2, collective)
    assert len(communicator.in_flight) == left


def test_the_buffer_takes_a_few_messages_to_each_rank():
    communicator = Communicator()
    for _ in range(BUFFERED + 1):
        Posted(communicator.in_flight, sent_to=1)
        Posted(communicator.in_flight, sent_to=2)
    communicator.line_up(0)
    assert [sum(one.sent_to == peer for one in communicator.in_flight) for peer in (1, 2)] == [BUFFERED - 1] * 2


def test_messages_of_other_sizes_numbers_or_communicators_never_meet():
    tags = {wire_tag(*args) for args in [(True, 1, 12), (False, 1, 12), (True, 2, 12), (True, 1, 20)]}
    assert len(tags) == 4
    assert all(1 << 29 <= tag < 1 << 30 for tag in tags)
