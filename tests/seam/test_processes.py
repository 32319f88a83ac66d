"""Child processes and what travels between them: forks, spawns, queues, pickle, torch.save and torch.load."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import windtunnel
from windtunnel.trace.trace import Trace

pytestmark = pytest.mark.long
"""Each starts programs of its own."""

FORK_ERROR = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' "
    "start method"
)


def in_fork(call):
    """What `call` returns in a forked child, as text, or the first line of its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(call())
        except RuntimeError as error:
            text = str(error).split("\n", 1)[0]
        os.write(writing, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return pipe.read()


def test_a_fork_before_cuda_is_used_has_the_gpus(session):
    assert in_fork(lambda: torch.ones(1, device="cuda:1").device) == "cuda:1"
    assert not torch.cuda.is_initialized()


def test_a_fork_after_cuda_was_used_has_cudas_error(session):
    x = torch.ones(1, device="cuda")
    assert in_fork(lambda: torch.ones(1, device="cuda")) == FORK_ERROR
    assert in_fork(lambda: torch.cuda.synchronize()) == FORK_ERROR
    assert in_fork(lambda: x + 1) == "CUDA error: initialization error"
    assert in_fork(lambda: torch.ones(1) + 1) == "tensor([2.])"
    assert (x + 1).item() == 2.0


def test_a_forked_child_begins_with_an_empty_trace(session):
    torch.ones(1, device="cuda")
    assert in_fork(lambda: len(session.trace)) == "0"
    assert len(session.trace) > 0


@pytest.mark.parametrize("used", [True, False])
def test_a_forked_child_lets_go_of_tensors_whose_history_is_the_parents(session, used):
    torch.cuda.memory._record_memory_history()
    kept = [torch.ones(1000, device="cuda") for _ in range(5)] if used else []

    def let_go():
        before = len(session.trace.memory)
        kept.clear()
        if not used:
            torch.ones(1, device="cuda")
        session.complete()
        return before, len(session.trace.memory) > 0

    assert in_fork(let_go) == f"(0, {not used})"
    torch.cuda.memory._record_memory_history(None)


def run(folder, source, *options):
    """The finished process of a program under `windtunnel run`."""
    script = folder / "program.py"
    script.write_text(source, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "2xV100", *options, str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


QUEUES = """
import torch, torch.multiprocessing as mp

def work(queue, results, net):
    shared = queue.get()
    shared.add_(10)
    net.weight.data.fill_(5.0)
    results.put((str(shared.device), shared.is_shared()))
    results.put(torch.full((2,), 4.0, device="cuda:1"))
    queue.get()

if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue, results = context.Queue(), context.Queue()
    x = torch.arange(3.0, device="cuda:1")
    net = torch.nn.Linear(2, 1).cuda()
    child = context.Process(target=work, args=(queue, results, net))
    child.start()
    queue.put(x)
    print(results.get())
    received = results.get()
    print(x.tolist(), net.weight.tolist(), received.device, received.tolist())
    queue.put("end")
    child.join()
    print(child.exitcode)
"""


def test_tensors_in_queues_are_the_same_memory_on_both_sides(tmp_path):
    done = run(tmp_path, QUEUES)
    assert done.stdout.splitlines() == [
        "('cuda:1', True)",
        "[10.0, 11.0, 12.0] [[5.0, 5.0]] cuda:1 [4.0, 4.0]",
        "0",
    ], done.stderr


SENT_ON = """
import torch, torch.multiprocessing as mp

def work(queue, results):
    received = queue.get()
    for sent in (received, received[1:], received.clone()):
        try:
            torch.multiprocessing.reductions.reduce_tensor(sent)
            results.put("sent")
        except RuntimeError as error:
            results.put(str(error))

if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue, results = context.Queue(), context.Queue()
    x = torch.arange(3.0, device="cuda")
    queue.put(x)
    child = context.Process(target=work, args=(queue, results))
    child.start()
    for _ in range(3):
        print(results.get())
    child.join()
"""


def test_a_received_tensor_cannot_be_sent_on(tmp_path):
    """pytorch/pytorch#134755: a queue of a Manager, whose process passes on what it got."""
    refusal = (
        "Attempted to send CUDA tensor received from another process; this is not currently supported. Consider "
        "cloning before sending."
    )
    done = run(tmp_path, SENT_ON)
    assert done.stdout.splitlines() == [refusal, refusal, "sent"], done.stderr


FORKED = """
import torch, torch.multiprocessing as mp

def work():
    torch.ones(1, device="cuda:1").add_(1)

if __name__ == "__main__":
    child = mp.get_context("fork").Process(target=work)
    child.start()
    child.join()
"""


def test_a_forked_child_leaves_its_own_trace(tmp_path):
    done = run(tmp_path, FORKED, "--trace", str(tmp_path / "run.trace"))
    assert done.returncode == 0, done.stderr
    assert {record.lane.device for record in Trace.load(tmp_path / "run.trace")} >= {1}


SPAWNED = """
import torch, torch.multiprocessing as mp, windtunnel

def work(rank, queue):
    queue.put((rank, str(torch.ones(1, device=rank).device), torch.cuda.device_count()))

if __name__ == "__main__":
    with windtunnel.emulate("3xV100"):
        queue = mp.get_context("spawn").SimpleQueue()
        mp.spawn(work, (queue,), nprocs=2)
        print(sorted(queue.get() for _ in range(2)))
"""


def test_spawned_children_of_an_emulation_begun_in_process_inherit_it(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(SPAWNED, encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "[(0, 'cuda:0', 3), (1, 'cuda:1', 3)]\n", done.stderr


def test_the_environment_is_as_before_after_an_emulation():
    before = dict(os.environ)
    with windtunnel.emulate("2xV100"):
        assert "WINDTUNNEL_RUN" in os.environ
    assert dict(os.environ) == before


def saved(value, **options):
    """The bytes that `torch.save` writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize(
    ("place", "devices"),
    [
        (None, ["cuda:1", "cpu"]),
        ("cpu", ["cpu", "cpu"]),
        ("cuda:0", ["cuda:0", "cuda:0"]),
        (torch.device("cuda:0"), ["cuda:0", "cuda:0"]),
        ({"cuda:1": "cuda:0"}, ["cuda:0", "cpu"]),
        (lambda storage, location: storage, ["cpu", "cpu"]),
        (lambda storage, location: storage.cuda(0), ["cuda:0", "cuda:0"]),
    ],
)
def test_load_puts_storages_where_map_location_says(session, place, devices, weights_only):
    x = torch.arange(4.0, device="cuda:1")
    data = saved({"x": x, "view": x[1:3], "host": torch.ones(1)})
    found = torch.load(io.BytesIO(data), map_location=place, weights_only=weights_only)
    assert [str(found[name].device) for name in ("x", "host")] == devices
    assert found["x"].untyped_storage().data_ptr() == found["view"].untyped_storage().data_ptr()
    assert found["view"].tolist() == [1.0, 2.0]


def test_load_on_a_machine_with_fewer_devices():
    with windtunnel.emulate("2xV100"):
        data = saved(torch.ones(2, device="cuda:1"))
    with windtunnel.emulate("1xV100"):
        with pytest.raises(RuntimeError, match=r"on CUDA device 1 but torch.cuda.device_count\(\) is 1"):
            torch.load(io.BytesIO(data))
        assert torch.load(io.BytesIO(data), map_location="cuda:0").get_device() == 0
    with pytest.raises(RuntimeError, match=r"but torch.cuda.is_available\(\) is False"):
        torch.load(io.BytesIO(data))
    assert torch.load(io.BytesIO(data), map_location="cpu").tolist() == [1.0, 1.0]


def test_old_files_and_mapped_files(session, tmp_path):
    x = torch.arange(3.0, device="cuda:1")
    assert torch.load(io.BytesIO(saved(x, _use_new_zipfile_serialization=False))).get_device() == 1
    path = Path(tmp_path) / "x.pt"
    torch.save(x, path)
    assert torch.load(path, mmap=True).get_device() == 1


def test_pickle_and_deepcopy_keep_the_device(session):
    x = torch.arange(3.0, device="cuda:1")
    net = nn.Linear(2, 1).cuda(1)
    for copied in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert (copied.get_device(), copied.tolist()) == (1, [0.0, 1.0, 2.0])
        assert copied.data_ptr() != x.data_ptr()
    for module in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        assert module.weight.get_device() == 1
        assert torch.equal(module.weight, net.weight)


def test_optimizer_state_follows_the_parameters(session):
    net = nn.Linear(2, 1).cuda(1)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2, device="cuda:1")).sum().backward()
    optimizer.step()
    state = torch.load(io.BytesIO(saved(optimizer.state_dict())), map_location="cpu")
    other = torch.optim.Adam(net.parameters())
    other.load_state_dict(state)
    assert {name: str(value.device) for name, value in other.state[net.weight].items()} == {
        "step": "cpu",
        "exp_avg": "cuda:1",
        "exp_avg_sq": "cuda:1",
    }


def test_a_storage_made_on_a_device_takes_its_memory(session):
    before = torch.cuda.memory_allocated(1)
    storage = torch.UntypedStorage(1000, device="cuda:1")
    assert str(storage.device) == "cuda:1"
    assert torch.cuda.memory_allocated(1) - before == 1024
