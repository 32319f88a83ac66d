"""What a rehearsal that failed says."""

from __future__ import annotations

import pytest

from windtunnel.launch import Program, Result
from windtunnel.planning.measurement import FAILED, REFUSED
from windtunnel.planning.rehearsal import Job, _measured, rehearse
from windtunnel.trace.operation import Note, Site
from windtunnel.trace.trace import Trace

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


def test_a_program_that_was_to_be_compiled_and_was_not_is_refused() -> None:
    trace = Trace()
    trace.notes.append(Note("not-modelled", Site("train.py", 2), (("what", "compile"), ("cure", "pip install x"))))
    found = _measured(Job(Program("script", "train.py"), "A100"), 0, "", Result(traces=[trace]))
    assert found.status == REFUSED
    assert "the uncompiled program's: pip install x; TORCH_COMPILE_DISABLE=1 plans" in found.message


LAYOUT = """
import os, sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parts = int(sys.argv[1])
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
data = TensorDataset(torch.arange(192).reshape(24, 8))
sampler = DistributedSampler(data, num_replicas=parts, rank=rank % parts)
net = torch.nn.Embedding(192, 4).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for (tokens,) in DataLoader(data, batch_size=4, sampler=sampler):
    net(tokens.cuda()).sum().backward()
    optimizer.step()
"""


@pytest.mark.long
@pytest.mark.parametrize(("parts", "samples"), [(2, 8), (1, 4)])
def test_ranks_that_share_their_batches_are_counted_once(tmp_path, parts, samples) -> None:
    (tmp_path / "train.py").write_text(LAYOUT)
    options = {"no_data": True, "stop_after": 3}
    program = Program("script", "train.py", (str(parts),))
    found = rehearse(Job(program, "2xA100", options, processes=2, folder=str(tmp_path))).measurement
    assert (found.status, found.samples, found.tokens) == ("ran", samples, 8 * samples), found.message
