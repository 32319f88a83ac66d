"""Faults on purpose on one GPU: each does what it does on hardware, where and when it was asked for, repeatably."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint import CheckpointException
from torch.utils.data import DataLoader, TensorDataset

from windtunnel import checks, emulate
from windtunnel.errors import UsageError
from windtunnel.reports import smi


def train(steps=4):
    """A few steps of training; the losses."""
    torch.manual_seed(0)
    net = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.ones(4, 8, device="cuda")
    losses = []
    for _ in range(steps):
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def with_faults(*faults, steps=4, **options):
    with emulate("1xV100", faults=faults, **options) as session:
        return train(steps), session


def injected(session):
    return [finding.message for finding in checks.run(session.trace, ["injected-fault"])]


def test_a_nan_at_a_step_and_not_before():
    losses, session = with_faults("nan:step=3,operation=addmm")
    plain, _ = with_faults()
    assert losses[:2] == plain[:2]
    assert losses[2] != losses[2]
    assert injected(session) == ["the fault nan:step=3,operation=addmm was injected here, as requested"]


def test_an_element_becomes_what_was_asked_for():
    with emulate("1xV100", faults=["nan:value=5,operation=zeros"]):
        assert sorted(torch.zeros(3, device="cuda").tolist()) == [0, 0, 5]


def test_a_bit_flips_the_same_way_each_time():
    first, _ = with_faults("bit-flip:step=2,operation=addmm", seed=3)
    again, _ = with_faults("bit-flip:step=2,operation=addmm", seed=3)
    plain, _ = with_faults(seed=3)
    assert first == again
    assert first[0] == plain[0]
    assert first[1:] != plain[1:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8, torch.float64])
def test_the_highest_bit_is_the_sign(dtype):
    bit = 8 * torch.empty(0, dtype=dtype).element_size() - 1
    with emulate("1xV100", faults=[f"bit-flip:bit={bit},operation=ones"]):
        (found,) = torch.ones(1, device="cuda", dtype=dtype).tolist()
    expected = {torch.int64: 1 - 2**63, torch.uint8: 129}.get(dtype, -1.0)
    assert found == expected


def test_memory_is_refused_once():
    with emulate("1xV100", faults=["oom:operation=empty"]) as session:
        with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory\. Tried to allocate 2\.00 MiB"):
            torch.empty(1 << 18, device="cuda")
        assert torch.empty(1 << 18, device="cuda").numel() == 1 << 18
    (finding,) = (finding for finding in session.findings() if finding.code == "out-of-memory")
    assert "refused the memory on purpose" in finding.advice


def test_memory_is_refused_until_some_is_given_back():
    with emulate("1xV100", faults=["oom:operation=empty,step=1,times=1,until=freed"]):
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 18, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(1 << 18, device="cuda")


def test_a_retry_after_out_of_memory_goes_on():
    with emulate("1xV100", faults=["oom:step=2"]):
        torch.manual_seed(0)
        held = torch.ones(8, device="cuda")
        net = nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        failed = 0
        for _ in range(3):
            try:
                net(held).sum().backward()
            except torch.OutOfMemoryError:
                failed += 1
                net(held).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert failed == 1


def test_a_slow_gpu_is_slow_from_that_step_on():
    def spent(*faults):
        _, session = with_faults(*faults)
        kernels = [record for record in session.trace if record.kind == 0]
        return [sum(one.duration_ns for one in half) for half in (kernels[:20], kernels[-20:])]

    plain, slow = spent(), spent("slow:factor=3,step=3")
    assert slow[0] == plain[0]
    assert slow[1] == pytest.approx(3 * plain[1], rel=0.01)


def test_a_lost_device_stays_lost():
    with emulate("1xV100", faults=["xid:code=48,step=2"]):
        with pytest.raises(RuntimeError, match="CUDA error: uncorrectable ECC error encountered"):
            train()
        with pytest.raises(RuntimeError, match="uncorrectable ECC"):
            torch.ones(1, device="cuda").item()


def test_nvml_and_nvidia_smi_show_what_a_gpu_has():
    pynvml = pytest.importorskip("pynvml")
    with emulate("2xV100", faults=["xid:step=2"]) as session:
        pynvml.nvmlInit()
        with pytest.raises(RuntimeError, match="uncorrectable ECC error"):
            train()
        counts = [
            pynvml.nvmlDeviceGetTotalEccErrors(pynvml.nvmlDeviceGetHandleByIndex(index), 1, 0) for index in (0, 1)
        ]
        shown, code = smi.main(["--query-gpu=ecc.errors.uncorrected.volatile.total", "--format=csv,noheader"],
                               session.smi_host())  # fmt: skip
        pynvml.nvmlShutdown()
    assert (counts, shown.split(), code) == ([1, 0], ["1", "0"], 0)


def test_a_gpu_off_the_bus_is_lost_to_nvml():
    pynvml = pytest.importorskip("pynvml")
    with emulate("2xV100", faults=["xid:code=79"]) as session:
        pynvml.nvmlInit()
        with pytest.raises(RuntimeError, match="unknown error"):
            train()
        with pytest.raises(pynvml.NVMLError_GpuIsLost, match="GPU is lost"):
            pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceGetHandleByIndex(1)
        text, code = smi.main([], session.smi_host())
        pynvml.nvmlShutdown()
    assert (text.partition(":")[0], code) == ("Unable to determine the device handle for GPU 0000", 15)
    assert smi.main(["-L", "-i", "1"], session.smi_host())[1] == 0


def test_an_exception_at_a_modelled_time():
    with emulate("1xV100", faults=["die:error=lost,after_ms=1"]), pytest.raises(RuntimeError, match="lost"):
        train(100)


def test_another_ranks_fault_does_not_happen_here(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    losses, session = with_faults("nan:rank=1")
    assert losses == with_faults()[0]
    assert injected(session) == []


def test_slow_data_takes_modelled_time():
    def spent(*faults):
        with emulate("1xV100", faults=faults) as session:
            for (x,) in DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=4):
                x.cuda()
            return session.machine.host.now_ns

    assert spent("slow-data:ms=5,times=0") == pytest.approx(spent() + 2 * 5_000_000, abs=1000)


@pytest.mark.long
def test_a_worker_of_a_loader_dies():
    with emulate("1xV100", faults=["data-worker-dies"]):
        loader = DataLoader(TensorDataset(torch.ones(64, 2)), batch_size=1, num_workers=1)
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.* (is killed by signal|exited unexpectedly)"):
            list(loader)


def test_a_disk_is_full_in_the_middle_of_a_file(tmp_path):
    path = tmp_path / "model.pt"
    with emulate("1xV100", faults=["disk-full"]):
        with pytest.raises(RuntimeError, match="PytorchStreamWriter failed writing file"):
            torch.save({"x": torch.ones(4)}, path)
        assert path.stat().st_size > 0
        with pytest.raises(RuntimeError, match="PytorchStreamReader"):
            torch.load(path)
        torch.save({"x": torch.ones(4)}, path)
        assert torch.load(path)["x"].tolist() == [1.0] * 4


def test_a_disk_is_full_for_safetensors_and_for_a_distributed_checkpoint(tmp_path):
    state = {"weight": torch.ones(100)}
    with emulate("1xV100", faults=["disk-full"]), pytest.raises(SafetensorError, match="No space left on device"):
        save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(SafetensorError):
        load_file(tmp_path / "model.safetensors")
    with emulate("1xV100", faults=["disk-full"]), pytest.raises(CheckpointException, match="file write failed"):
        dcp.save(state, checkpoint_id=tmp_path / "parts", no_dist=True)
    with emulate("1xV100"):
        dcp.save(state, checkpoint_id=tmp_path / "parts", no_dist=True)


def test_a_disk_is_full_from_its_step_on(tmp_path):
    with emulate("1xV100", faults=["disk-full:step=2"]):
        weight = torch.ones(2, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        torch.save(weight, tmp_path / "step-1.pt")
        for _ in range(2):
            weight.sum().backward()
            optimizer.step()
        with pytest.raises(RuntimeError, match="file write failed"):
            torch.save(weight, tmp_path / "step-3.pt")
        torch.save(weight, tmp_path / "step-3.pt")


def test_nothing_stays_replaced():
    before = torch.save
    with emulate("1xV100", faults=["disk-full", "slow-data", "nan"]):
        assert torch.save is not before
    assert torch.save is before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dye", "there is no fault 'dye'; did you mean die?"),
        ("die:stop=3", "has no parameter 'stop'; did you mean step?"),
        ("die:step=x", "step of the fault 'die' cannot be 'x': it is a whole number"),
        ("die:step=0", "never happens"),
    ],
)
def test_a_wrong_description_is_refused(text, words):
    with pytest.raises(UsageError, match=words), emulate("1", faults=[text]):
        pass
