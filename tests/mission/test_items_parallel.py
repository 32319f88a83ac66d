"""Several GPUs: DataParallel, DDP, launching, processes (items 102 to 128, 132)."""

import os
import time
import warnings

import pytest
import torch
from torch import nn

import windtunnel
from windtunnel.trace.operation import Kind


def network():
    """The book's network."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))


class Sizes(nn.Module):
    """Remembers the size and the device of each part that a replica gets."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def forward(self, x):
        """Return the input."""
        self.seen.append((x.shape[0], x.get_device()))
        return x


# mission 102
def test_one_process_drives_several_gpus_and_computes_the_same(session):
    x, y = torch.randn(128, 13), torch.randn(128, 1)
    single = network()
    nn.functional.mse_loss(single(x), y).backward()
    model = nn.DataParallel(network().cuda())
    nn.functional.mse_loss(model(x), y.cuda()).backward()
    for parallel, plain in zip(model.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(parallel.grad.cpu(), plain.grad)


# mission 104
def test_cuda_cannot_start_again_in_a_forked_process(session):
    torch.ones(1, device="cuda")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.ones(1, device="cuda")
            text = "no error"
        except RuntimeError as error:
            text = str(error)
        os.write(writing, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == (
            "Cannot re-initialize CUDA in forked subprocess. "
            "To use CUDA with multiprocessing, you must use the 'spawn' start method"
        )


# mission 104
@pytest.mark.long
def test_spawned_processes_have_the_gpus(run):
    done = run(
        "import torch, torch.multiprocessing as mp\n"
        "def work(rank, queue):\n"
        "    queue.put((rank, str(torch.ones(1, device=f'cuda:{rank}').device), torch.cuda.device_count()))\n"
        "if __name__ == '__main__':\n"
        "    torch.ones(1, device='cuda')\n"
        "    queue = mp.get_context('spawn').SimpleQueue()\n"
        "    mp.spawn(work, (queue,), nprocs=2)\n"
        "    print(sorted(queue.get() for _ in range(2)))\n"
    )
    assert done.stdout == "[(0, 'cuda:0', 2), (1, 'cuda:1', 2)]\n", done.stderr


# mission 106
def test_to_device_on_tensors_and_models(session):
    device = torch.device("cuda:0")
    assert torch.FloatTensor([1.5]).to(device).type() == "torch.cuda.FloatTensor"
    assert torch.LongTensor([1]).to(device).type() == "torch.cuda.LongTensor"
    assert torch.tensor([1.5]).type("torch.cuda.FloatTensor").get_device() == 0
    assert torch.tensor([1.5], device=device).type(torch.FloatTensor).device == torch.device("cpu")
    assert {parameter.device for parameter in network().to(device).parameters()} == {device}


# mission 107
def test_what_there_is(session):
    assert (torch.cuda.is_available(), torch.cuda.device_count()) == (True, 2)
    assert torch.cuda.get_device_name(0) == "Tesla V100-SXM2-16GB"
    assert torch.cuda.get_device_capability(1) == (7, 0)
    assert torch.cuda.get_device_properties(0).multi_processor_count == 80


# mission 108, 109
def test_batches_and_models_on_a_second_device(session):
    device1 = torch.device("cuda:1")
    model = network().to(device1)
    for img, label in [(torch.ones(4, 13), torch.ones(4, 1))] * 2:
        img, label = img.to(device1), label.to(device1)
        nn.functional.mse_loss(model(img), label).backward()
    assert {parameter.grad.get_device() for parameter in model.parameters()} == {1}
    assert next(model.cuda().parameters()).get_device() == 0


# mission 110, 111
def test_data_parallel_uses_every_visible_gpu_by_default():
    with windtunnel.emulate("3xV100"):
        assert nn.DataParallel(network().cuda()).device_ids == [0, 1, 2]
        assert nn.DataParallel(network().cuda(), device_ids=[0, 2]).device_ids == [0, 2]


# mission 112
def test_chosen_gpus_by_number_and_by_environment(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,3,4")
    with windtunnel.emulate("5xV100"):
        seen = []
        nn.DataParallel(Sizes(seen).cuda())(torch.ones(8, 1))
        assert sorted(seen, key=lambda part: part[1]) == [(2, 0), (2, 1), (2, 2), (2, 3)]
        seen.clear()
        nn.DataParallel(Sizes(seen).cuda(), device_ids=[1, 3])(torch.ones(8, 1))
        assert sorted(seen) == [(4, 1), (4, 3)]


# mission 113
def test_a_number_is_a_device(session):
    device_ids = [1, 0]
    assert torch.ones(2).to(device=device_ids[0]).get_device() == 1
    assert torch.ones(2, device=0).get_device() == 0


# mission 117
@pytest.mark.parametrize(
    ("number", "rows", "parts"),
    [(2, 128, [64, 64]), (2, 20, [10, 10]), (3, 128, [43, 43, 42]), (8, 20, [3, 3, 3, 3, 3, 3, 2]), (4, 1, [1])],
)
def test_batches_are_split_along_the_first_dimension(number, rows, parts):
    with windtunnel.emulate(f"{number}xV100"):
        seen = []
        out = nn.DataParallel(Sizes(seen).cuda())(torch.arange(rows * 2.0).view(rows, 2))
        assert [size for size, _ in sorted(seen, key=lambda part: part[1])] == parts
        assert out.get_device() == 0
        assert torch.equal(out.cpu(), torch.arange(rows * 2.0).view(rows, 2))


# mission 120
def test_both_gpus_are_busy_at_the_same_time(session):
    model = nn.DataParallel(nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024)).cuda())
    model(torch.randn(1024, 1024, device="cuda"))
    busy = {0: [], 1: []}
    for record in session.trace:
        if record.kind == Kind.KERNEL and "mm" in record.signature.name:
            busy[record.lane.device].append((record.start_ns, record.end_ns))
    assert len(busy[0]) == len(busy[1]) == 2
    assert any(a < end and start < b for a, b in busy[0] for start, end in busy[1])


# mission 121
def test_the_books_loss_compares_every_output_with_every_label(session):
    output, label = torch.randn(128, 1, device="cuda"), torch.randn(128, device="cuda")
    with pytest.warns(UserWarning, match=r"target size \(torch.Size\(\[128\]\)\) that is different"):
        loss = nn.MSELoss()(output, label)
    torch.testing.assert_close(loss, (output - label).square().mean())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nn.MSELoss()(output, label.unsqueeze(1))


# mission 122, 126
def test_small_data_is_slower_on_two_gpus_than_on_one(session):
    def milliseconds(model):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        x, y = torch.randn(128, 13, device="cuda"), torch.randn(128, 1, device="cuda")
        for step in range(4):
            if step == 1:  # the first step pays for what happens once
                torch.cuda.synchronize()
                before = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        torch.cuda.synchronize()
        return (time.perf_counter() - before) * 1e3

    assert milliseconds(nn.DataParallel(network().cuda())) > 1.5 * milliseconds(network().cuda())


# mission 125
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 7, 8])
def test_odd_numbers_of_gpus_train_as_even_ones_do(number):
    with windtunnel.emulate(f"{number}xV100"):
        model = nn.DataParallel(network().cuda())
        x, y = torch.randn(128, 13), torch.randn(128, 1)
        nn.functional.mse_loss(model(x), y.cuda()).backward()
        plain = network()
        nn.functional.mse_loss(plain(x), y).backward()
        for parallel, single in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(parallel.grad.cpu(), single.grad)


# mission 127
def test_half_precision_takes_half_the_memory(session):
    net = nn.Linear(1024, 1024, bias=False).cuda()
    assert torch.cuda.memory_allocated() == 4 * 2**20
    net.half()
    assert torch.cuda.memory_allocated() == 2 * 2**20
    assert net(torch.ones(8, 1024, dtype=torch.float16, device="cuda")).dtype == torch.float16
    assert net.to(torch.bfloat16).weight.dtype == torch.bfloat16


# mission 128
def test_power_and_temperature_can_be_monitored(session):
    import pynvml

    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 2
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetName(handle) == "Tesla V100-SXM2-16GB"
    assert 20 <= pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU) <= 90
    assert 20_000 <= pynvml.nvmlDeviceGetPowerUsage(handle) <= pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) == 300_000
    pynvml.nvmlShutdown()


# mission 132
def test_two_products_on_two_gpus_take_half_the_time_of_two_on_one(session):
    def milliseconds(devices):
        matrices = [torch.ones(1024, 1024, device=device) for device in devices]
        torch.cuda.synchronize(0), torch.cuda.synchronize(1)
        begin = max(record.end_ns for record in session.trace)
        for matrix in matrices:
            matrix @ matrix
        return max(record.end_ns for record in session.trace) - begin

    milliseconds([0, 1])
    assert milliseconds([0, 0]) / milliseconds([0, 1]) > 1.6
