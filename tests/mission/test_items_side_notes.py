"""What the documents say in passing about copies and small operations (items 40 to 49, 131)."""

import time

import pytest
import torch
from torch import nn

from windtunnel.trace.operation import Kind


def timed(work):
    """How long the host and the GPUs together take over some work, in seconds of the machine's clock."""
    torch.cuda.synchronize()
    before = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - before


# mission 40
def test_a_transfer_takes_longer_than_the_computation_on_its_data(session):
    host = torch.ones(1024, 1024)
    device = host.cuda()
    timed(lambda: device @ device)
    assert timed(lambda: host.cuda()) > 2 * timed(lambda: device @ device)
    assert timed(lambda: device.cpu()) > 2 * timed(lambda: device @ device)


# mission 42
def test_a_copy_to_the_host_waits_for_the_queue(session):
    matrix, small = torch.ones(1024, 1024, device="cuda"), torch.ones(1, device="cuda")
    alone = timed(lambda: small.cpu())
    before = time.perf_counter()
    for _ in range(5):
        matrix @ matrix
    issued = time.perf_counter() - before
    small.cpu()
    assert time.perf_counter() - before > 2 * (issued + alone)
    assert torch.cuda.current_stream().query()


# mission 43
def test_many_small_operations_are_worse_than_one_big_one(session):
    big = torch.ones(1000, 1000, device="cuda")
    rows = list(big)
    assert timed(lambda: [row.add(1) for row in rows]) > 20 * timed(lambda: big.add(1))


# mission 44
def test_operations_at_a_time_beat_operations_between_copies(session):
    host = [torch.ones(1000) for _ in range(100)]

    def interspersed():
        return [row.cuda().add(1).cpu() for row in host]

    def together():
        return torch.stack(host).cuda().add(1).cpu()

    assert torch.equal(torch.stack(interspersed()), together())
    assert timed(interspersed) > 10 * timed(together)


# mission 46
def test_conversion_to_numpy_copies_and_waits_once(session, count):
    x = torch.ones(4, device="cuda")
    with pytest.raises(TypeError) as error:
        x.numpy()
    assert str(error.value) == (
        "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
    )
    count(Kind.COPY), count(Kind.SYNCHRONIZE)
    assert x.cpu().numpy().tolist() == [1, 1, 1, 1]
    assert (count(Kind.COPY), count(Kind.SYNCHRONIZE)) == (1, 1)
    x.tolist()
    assert (count(Kind.COPY), count(Kind.SYNCHRONIZE)) == (1, 1)


# mission 46
def test_printing_copies_and_waits(session, count):
    x = torch.ones(4, device="cuda")
    count(Kind.COPY), count(Kind.SYNCHRONIZE)
    assert str(x) == "tensor([1., 1., 1., 1.], device='cuda:0')"
    assert count(Kind.COPY) >= 1
    assert count(Kind.SYNCHRONIZE) >= 1


# mission 48, 131
def test_a_log_on_the_gpu_waits_once_and_one_result_at_a_time_each_time(session, count):
    matrix = torch.randn(100, 100, device="cuda")
    count(Kind.SYNCHRONIZE)
    one_at_a_time = [(matrix @ matrix).norm().item() for _ in range(100)]
    assert count(Kind.SYNCHRONIZE) == 100
    log = torch.empty(100, device="cuda")
    for step in range(100):
        log[step] = (matrix @ matrix).norm()
    assert log.tolist() == one_at_a_time
    assert count(Kind.SYNCHRONIZE) == 1


# mission 49
def test_reading_the_loss_of_each_batch_waits_for_the_gpus(session, count):
    net = nn.Linear(32, 1).cuda()
    replicas = nn.parallel.replicate(net, [0, 1])
    x = torch.randn(64, 32, device="cuda")
    halves = nn.parallel.scatter(x, [0, 1])
    count(Kind.SYNCHRONIZE)
    for _ in range(5):
        losses = [replica(half).square().mean() for replica, half in zip(replicas, halves, strict=True)]
        reported = (losses[0].item() + losses[1].item()) / 2
    assert reported > 0
    assert count(Kind.SYNCHRONIZE) == 10
    waited = {
        record.lane.device
        for record in session.trace
        if record.kind == Kind.COPY and record.signature.name.startswith("Memcpy DtoH")
    }
    assert waited == {0, 1}
