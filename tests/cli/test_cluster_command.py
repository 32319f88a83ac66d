"""`windtunnel run --cluster`: a program as every rank of a cluster."""

import json
import re
import sys

import pytest

from windtunnel.gpus import variation

PROGRAM = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.ones(1 << 20, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
line = f"rank {dist.get_rank()} of {dist.get_world_size()} on {torch.cuda.device_count()} GPUs\\n"
print(line, end="", flush=True)  # at once: the other rank prints too
dist.destroy_process_group()
"""
NEIGHBOURS = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.ones(1 << 20, device="cuda")
pairs = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]
rank = dist.get_rank()
if rank % 2:
    dist.recv(x, rank - 1, group=pairs[rank // 2])
else:
    dist.send(x, rank + 1, group=pairs[rank // 2])
torch.cuda.synchronize()
"""


@pytest.mark.long
def test_two_processes_play_all_ranks(windtunnel, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    done = windtunnel("run", "--cluster", "4x8xA100", "train.py")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 32 on 8 GPUs", "rank 31 of 32 on 8 GPUs"]
    assert "EMULATED on 32 x NVIDIA A100" in done.stderr
    assert "32 ranks by 2 processes: rank 0 stands for 0-31, checked with 31" in done.stderr
    assert "4 nodes, DGX A100, 8 x HDR InfiniBand, assumed" in done.stderr


@pytest.mark.long
def test_messages_make_their_group_represented(windtunnel, tmp_path):
    (tmp_path / "pairs.py").write_text(NEIGHBOURS)
    done = windtunnel("run", "--cluster", "4x8xA100", "-v", "--trace", "out.trace", "pairs.py")
    assert done.returncode == 0, done.stderr
    assert re.search("rank (0 and rank 1|31 and rank 30), which is not played, exchange a message", done.stderr)
    assert "rank 0 stands for 0-30 by 2, checked with 30; rank 1 stands for 1-31 by 2, checked with 31" in done.stderr
    assert {path.name for path in tmp_path.glob("*.trace")} == {
        "out.trace", "out.rank1.trace", "out.rank30.trace", "out.rank31.trace",
    }  # fmt: skip


WHERE = """
import os, torch, torch.distributed as dist
from pathlib import Path
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.barrier()
if dist.get_rank() == 0:
    port = f":{int(os.environ['MASTER_PORT']):04X}"
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()]
    print([row[1] for row in rows if row[3] == "0A" and row[1].endswith(port)])
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="/proc says where a process listens")
@pytest.mark.parametrize(
    "ranks", [["--cluster", "1x2xA100"], ["--gpus", "2xA100", "--nproc-per-node", "2", "--local-addr", "127.0.0.1"]]
)
def test_the_ranks_store_listens_to_this_machine_alone(windtunnel, tmp_path, ranks):
    (tmp_path / "where.py").write_text(WHERE)
    done = windtunnel("run", "-q", *ranks, "where.py")
    assert re.fullmatch(r"\['0100007F:[0-9A-F]{4}'\]\n", done.stdout), done.stderr


POLLS = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
sys.modules["windtunnel.seam.torch.distributed.played"].ABSENT_S = 2
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
open(f"done{rank}", "w").close()
while rank == 0 and not all(os.path.exists(f"done{other}") for other in range(dist.get_world_size())):
    time.sleep(0.5)
dist.all_reduce(torch.ones(8, device="cuda"))
"""


@pytest.mark.long
def test_a_rank_that_polls_for_files_of_absent_ranks_has_all_of_them_played(windtunnel, tmp_path):
    (tmp_path / "polls.py").write_text(POLLS)
    done = windtunnel("run", "--cluster", "1x4xH100", "polls.py")
    assert done.returncode == 0, done.stderr
    assert "a played rank waits by sleeping at polls.py:9" in done.stderr
    assert "each of 4 ranks is played by a process of its own" in done.stderr


LOOKS_AFTER = """
import os, sys, threading, time, torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
sys.modules["windtunnel.seam.torch.distributed.played"].ABSENT_S = 0.5

def look():
    for _ in range(110):
        time.sleep(0.5)

thread = threading.Thread(target=look)
thread.start()
thread.join()
dist.all_reduce(torch.ones(8, device="cuda"))
"""


@pytest.mark.long
def test_a_thread_that_looks_after_something_may_sleep_as_long_as_it_likes(windtunnel, tmp_path):
    (tmp_path / "looks.py").write_text(LOOKS_AFTER)
    done = windtunnel("run", "--cluster", "1x4xH100", "looks.py")
    assert done.returncode == 0, done.stderr
    assert "4 ranks by 2 processes: rank 0 stands for 0-3, checked with 3" in done.stderr


RESUMES = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
weight = torch.ones(8, 8, device="cuda")
begin = torch.load("last.pt")["step"] if os.path.exists("last.pt") else 0
for step in range(begin, 4):
    weight = weight @ weight
    if rank == 0:
        weight = weight + 1
dist.all_reduce(weight)
if rank == 0:
    torch.save({"step": 4}, "last.pt")
    torch.load("last.pt")
"""
READ = "it is assumed that what the program read from last.pt at resumes.py:7 does not change its steps"


@pytest.mark.long
def test_what_an_attempt_reads_that_an_earlier_one_has_written_is_named(windtunnel, tmp_path):
    (tmp_path / "resumes.py").write_text(RESUMES)
    done = windtunnel("run", "-v", "--cluster", "3x8xH100", "resumes.py")
    assert READ in done.stderr
    assert "assumed" in done.stderr.partition("verdict")[2]


@pytest.mark.long
def test_what_an_attempt_has_written_itself_is_not_named(windtunnel, tmp_path):
    (tmp_path / "resumes.py").write_text(RESUMES.replace('os.path.exists("last.pt")', "False"))
    done = windtunnel("run", "-v", "--cluster", "3x8xH100", "resumes.py")
    assert "starting anew" in done.stderr
    assert "it is assumed" not in done.stderr


STEPS = """
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
net = torch.nn.Linear(4096, 4096, device="cuda")
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    net(torch.ones(8192, 4096, device="cuda")).sum().backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.long
@pytest.mark.weekly
def test_gpus_differ_by_a_seed_in_a_run_and_in_a_trace_timed_anew(windtunnel, tmp_path):
    (tmp_path / "steps.py").write_text(STEPS)

    def step_ns(*words):
        done = windtunnel(words[0], "--json", *words[1:])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["timing"]["step_ns"]

    plain = step_ns("run", "--cluster", "4x8xH100", "--trace", "plain.trace", "steps.py")
    seeds = (7, 7, 8)
    drawn = [step_ns("run", "--cluster", "4x8xH100", "--jitter", str(seed), "steps.py") for seed in seeds]
    assert drawn[0] == drawn[1] != drawn[2]
    for seed, step in zip(seeds, drawn, strict=True):
        assert 1.0 < step / plain <= variation.pace(seed, range(32))  # collectives take as long as they did
    assert step_ns("retime", "plain.trace", "--jitter", "7") == drawn[0]
    assert step_ns("retime", "plain.trace", "--gpu", "H100") == plain


DECIDES = """
import os, torch, torch.distributed as dist
from torch import nn
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
net, best = nn.parallel.DistributedDataParallel(nn.Linear(64, 8).cuda()), float("inf")
for epoch in range(2):
    loss = net(torch.rand(16, 64, device="cuda")).mean()
    loss.backward()
    dist.REDUCES
    if loss.item() < best:
        best = loss.item()
        dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("reduces", "is_found"), [("reduce(loss.detach(), 0)", True), ("all_reduce(loss.detach())", False)]
)
def test_a_decision_by_a_number_of_each_ranks_own(windtunnel, tmp_path, reduces, is_found):
    (tmp_path / "train.py").write_text(DECIDES.replace("REDUCES", reduces))
    done = windtunnel("run", "--cluster", "1x4xA100", "--json", "train.py")
    assert done.returncode == 0, done.stderr
    found = [one for one in json.loads(done.stdout)["findings"] if one["code"] == "diverging-branch"]
    assert [(one["line"], "barrier at train.py:13" in one["message"]) for one in found] == [(11, True)] * is_found


EXPERTS = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(64, 8), nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
    def forward(self, x):
        chosen, out = self.gate(x).argmax(-1), torch.zeros_like(x)
        LOOPS
            tokens, = torch.where(chosen == i)
            DECIDES
            out = out.index_add(0, tokens, expert(x[tokens]))
        return out

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
net = Experts().cuda()
WRAPS
net(torch.rand(16, 64, device="cuda")).sum().backward()
dist.destroy_process_group()
"""
EACH = "for i, expert in enumerate(self.experts):"
HIT = "for i in torch.bincount(chosen, minlength=8).nonzero():"
SKIPS = "if not tokens.numel(): continue"
EVERY_EXPERT = "for expert in net.experts: fully_shard(expert)"
ZEROS_TOO = "net.set_reduce_scatter_unused_params(True)"


@pytest.mark.long
@pytest.mark.parametrize(
    ("loops", "decides", "wraps", "is_found"),
    [
        (EACH, SKIPS, "fully_shard(net)", True),
        (EACH, SKIPS, f"{EVERY_EXPERT}\nfully_shard(net)", True),
        (EACH, SKIPS, f"fully_shard(net)\n{ZEROS_TOO}", False),
        (EACH, SKIPS, f"{EVERY_EXPERT}\nfully_shard(net)\n{ZEROS_TOO}", True),  # who skips an expert gathers none
        (HIT, "expert = self.experts[i]", "fully_shard(net)", True),
        (EACH, "", "fully_shard(net)", False),
        (EACH, SKIPS, "net = nn.parallel.DistributedDataParallel(net)", True),
        (EACH, SKIPS, "net = nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)", False),
    ],
)
def test_experts_that_only_some_ranks_use(windtunnel, tmp_path, loops, decides, wraps, is_found):
    text = EXPERTS.replace("LOOPS", loops).replace("DECIDES", decides).replace("WRAPS", wraps)
    (tmp_path / "train.py").write_text(text)
    done = windtunnel("run", "--cluster", "1x4xH100", "--json", "train.py")
    assert done.returncode == 0, done.stderr
    found = [one["line"] for one in json.loads(done.stdout)["findings"] if one["code"] == "diverging-branch"]
    assert found == [12 if loops is HIT else 14] * is_found
