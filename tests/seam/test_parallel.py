"""One process and several emulated devices: DataParallel, comm, nccl, foreach optimizers."""

from __future__ import annotations

import re
import threading

import pytest
import torch
from torch import nn
from torch.cuda import comm, nccl
from torch.nn.parallel import gather, parallel_apply, replicate, scatter

import windtunnel
from windtunnel.trace.operation import Kind


def on(*tensors):
    """The devices of tensors."""
    return [tensor.get_device() for tensor in tensors]


def copies(session):
    """The names of all transfers so far."""
    return [record.signature.name for record in session.trace if record.kind == Kind.COPY]


def test_scatter_of_a_device_tensor_copies_what_has_to_move(session):
    x = torch.arange(12.0, device="cuda:0").view(6, 2)
    before = len(copies(session))
    parts = comm.scatter(x, [0, 1])
    assert on(*parts) == [0, 1]
    assert parts[0].data_ptr() == x.data_ptr()
    assert copies(session)[before:] == ["Memcpy PtoP (Device -> Device)"]
    assert torch.equal(comm.gather(parts, destination="cpu"), torch.arange(12.0).view(6, 2))


def test_scatter_of_a_host_tensor_runs_on_background_streams(session):
    parts = scatter(torch.arange(4.0), [0, 1])
    assert on(*parts) == [0, 1]
    lanes = {record.lane for record in session.trace if record.kind == Kind.COPY}
    assert {(lane.device, lane.stream) for lane in lanes} == {(0, 1), (1, 1)}
    assert not session.trace.hazards


def test_scatter_with_sizes_and_into_tensors(session):
    x = torch.arange(6.0)
    assert [part.tolist() for part in comm.scatter(x, [0, 1], chunk_sizes=[1, 5])] == [[0.0], [1.0, 2.0, 3.0, 4.0, 5.0]]
    out = [torch.empty(2, device=1), torch.empty(4, device=0)]
    comm.scatter(x, out=out)
    assert [part.tolist() for part in out] == [[0.0, 1.0], [2.0, 3.0, 4.0, 5.0]]


def test_gather_goes_where_it_is_told(session):
    parts = [torch.ones(2, 1, device=0), torch.zeros(1, 1, device=1)]
    assert comm.gather(parts).get_device() == torch.cuda.current_device()
    assert comm.gather(parts, 0, 1).tolist() == [[1.0], [1.0], [0.0]]
    out = torch.empty(3, 1)
    comm.gather(parts, out=out)
    assert out.tolist() == [[1.0], [1.0], [0.0]]


def test_broadcast_keeps_the_tensor_where_it_is(session):
    x = torch.ones(3, device=0)
    one, other = comm.broadcast(x, [0, 1])
    assert one is x
    assert other.get_device() == 1
    out = [torch.empty(3, device=1)]
    comm.broadcast(x, out=out)
    assert out[0].tolist() == [1.0, 1.0, 1.0]


def test_broadcast_coalesced_sends_each_dtype_as_one_piece(session):
    tensors = [torch.ones(3, device=0), torch.arange(2, device=0), torch.zeros(2, 2, device=0)]
    before = len(copies(session))
    here, there = comm.broadcast_coalesced(tensors, [0, 1])
    assert all(a is b for a, b in zip(here, tensors, strict=True))
    assert len(copies(session)) - before == 2
    assert on(*there) == [1, 1, 1]
    assert [tensor.tolist() for tensor in there] == [[1.0, 1.0, 1.0], [0, 1], [[0.0, 0.0], [0.0, 0.0]]]


def test_reduce_add_is_a_collective_of_both_devices(session):
    parts = [torch.ones(2, device=0), torch.full((2,), 2.0, device=1)]
    total = comm.reduce_add(parts, 1)
    assert (total.tolist(), total.get_device()) == ([3.0, 3.0], 1)
    reduced = [record for record in session.trace if record.kind == Kind.COLLECTIVE]
    assert [record.lane.device for record in reduced] == [0, 1]
    assert {(record.signature.name, record.end_ns - record.start_ns) for record in reduced} == {
        ("nccl:reduce", reduced[0].end_ns - reduced[0].start_ns)
    }
    for part in parts:
        part.add_(1)
    later = [record for record in session.trace if record.kind == Kind.KERNEL][-2:]
    assert all(record.start_ns >= max(one.end_ns for one in reduced) for record in later)


def test_nccl_of_one_process(session):
    parts = [torch.full((2,), float(device + 1), device=device) for device in (0, 1)]
    assert nccl.is_available(parts)
    nccl.all_reduce(parts)
    assert [part.tolist() for part in parts] == [[3.0, 3.0], [3.0, 3.0]]
    gathered = [torch.empty(4, device=device) for device in (0, 1)]
    nccl.all_gather([torch.full((2,), float(device), device=device) for device in (0, 1)], gathered)
    assert gathered[1].tolist() == [0.0, 0.0, 1.0, 1.0]
    scattered = [torch.empty(1, device=device) for device in (0, 1)]
    nccl.reduce_scatter([torch.tensor([1.0, 2.0], device=device) for device in (0, 1)], scattered)
    assert [part.tolist() for part in scattered] == [[2.0], [4.0]]
    assert nccl.version() >= (2, 0)


def _on(*devices, size=4, **options):
    return [torch.ones(size, device=device, **options) for device in devices]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: nccl.all_reduce([]), "input sequence can't be empty"),
        (lambda: nccl.all_reduce(_on(0, 0)), "inputs must be on unique devices"),
        (lambda: nccl.all_reduce(_on("cpu", 1)), "input and output elements have to be cuda dense Tensors"),
        (lambda: nccl.all_reduce([*_on(0), *_on(1, size=3)]), "all inputs must have the same number of elements"),
        (
            lambda: nccl.all_reduce([*_on(0), *_on(1, dtype=torch.float16)]),
            "all inputs and outputs must be of the same Tensor dtype",
        ),
        (lambda: nccl.all_reduce([each.view(2, 2).t() for each in _on(0, 1)]), "outputs have to be contiguous"),
        (lambda: nccl.all_reduce(_on(0, 1, dtype=torch.int16)), "Unconvertible NCCL type Short"),
        (lambda: nccl.all_reduce(_on(0, 1), _on(1, 0)), "input and output must be on the same device"),
        (lambda: nccl.all_gather(_on(0, 1), _on(0, 1)), "output must be of size input_size * size_multiplier"),
        (lambda: nccl.reduce_scatter(_on(0, 1), _on(0)), "but got input of length 2 and output of length 1"),
        (lambda: nccl.broadcast(_on(0, 1), root=2), "invalid root"),
        (lambda: nccl.all_reduce(_on(0, 1), streams=[None]), "number of streams is not equal to number of inputs"),
    ],
)
def test_nccl_refuses_what_pytorch_does(session, call, text):
    with pytest.raises(RuntimeError, match=re.escape(text)):
        call()


def test_a_result_of_nccl_is_read_too_early(session):
    streams = [torch.cuda.Stream(device) for device in (0, 1)]
    parts = _on(0, 1)
    for device, stream in enumerate(streams):
        stream.wait_stream(torch.cuda.current_stream(device))
    nccl.all_reduce(parts, streams=streams)
    parts[0] + 1
    assert "unsynchronized-access" in {finding.code for finding in session.findings()}


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: comm.scatter(torch.ones(2), []), "Expected at least one device to scatter to"),
        (
            lambda: comm.scatter(torch.ones(2), [0, 1], [2]),
            "Expected devices and chunk_sizes to be of same length, but got len(devices) = 2 and len(chunk_sizes) = 1",
        ),
        (
            lambda: comm.scatter(torch.ones(2), out=[torch.ones(1)]),
            "Expected all output tensors to be CUDA tensors, but output tensor at index 0 has device 'cpu'",
        ),
        (
            lambda: comm.gather([torch.ones(2)]),
            "Expected all input tensors to be CUDA tensors, but tensor at index 0 has device 'cpu'",
        ),
        (
            lambda: comm.gather([torch.ones(2, 2, device=0), torch.ones(2, 3, device=1)]),
            "Input tensor at index 1 has invalid shape [2, 3], but expected [2, 2]",
        ),
        (
            lambda: comm.broadcast_coalesced([torch.ones(1, device=1)], [0, 1]),
            "All tensors must be on devices[0]: 0",
        ),
        (
            lambda: comm.reduce_add([torch.ones(1, device=1)] * 2, 0),
            "reduce_add expects destination to be on the same GPU with one of the tensors",
        ),
    ],
)
def test_errors_are_pytorchs(session, call, text):
    with pytest.raises(RuntimeError) as error:
        call()
    assert str(error.value) == text


def network():
    """A small network with every kind of layer that DataParallel must copy."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def test_data_parallel_computes_what_each_part_gives(session):
    x = torch.randn(8, 4)
    plain = network()
    expected = torch.cat([plain(part) for part in x.chunk(2)])
    expected.square().mean().backward()
    model = nn.DataParallel(network().cuda())
    model(x.cuda()).square().mean().backward()
    for parallel, single in zip(model.module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parallel.grad.cpu(), single.grad)


def test_replicas_are_on_their_devices_and_differentiable(session):
    net = nn.Linear(3, 2).cuda()
    replicas = replicate(net, [0, 1])
    assert [replica.weight.get_device() for replica in replicas] == [0, 1]
    outputs = parallel_apply(replicas, [torch.ones(1, 3, device=device) for device in (0, 1)])
    gather(outputs, 0).sum().backward()
    assert net.bias.grad.tolist() == [2.0, 2.0]
    assert net.weight.grad.get_device() == 0


def test_nested_inputs_and_outputs(session):
    class Net(nn.Module):
        def forward(self, data, *, scale):
            return {"sum": data["a"] + data["b"][0], "scaled": (data["a"] * scale,)}

    out = nn.DataParallel(Net().cuda())({"a": torch.arange(4.0), "b": [torch.ones(4)]}, scale=2)
    assert out["sum"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert out["scaled"][0].tolist() == [0.0, 2.0, 4.0, 6.0]


def test_a_scalar_a_replica_becomes_a_vector(session):
    class Total(nn.Module):
        def forward(self, data):
            return data.sum()

    with pytest.warns(UserWarning, match="all input tensors were scalars"):
        assert nn.DataParallel(Total().cuda())(torch.arange(4.0)).tolist() == [1.0, 5.0]


def test_a_module_elsewhere_and_an_error_in_a_replica(session):
    with pytest.raises(RuntimeError, match="but found one of them on device: cuda:1"):
        nn.DataParallel(nn.Linear(2, 2).cuda(1))(torch.ones(2, 2))

    class Fails(nn.Module):
        def forward(self, data):
            raise ValueError("wrong on purpose")

    with pytest.raises(ValueError, match="Caught ValueError in replica 0 on device 0"):
        nn.DataParallel(Fails().cuda())(torch.ones(2, 2))


def test_data_parallel_is_remarked_on_where_it_is_called(session):
    nn.DataParallel(nn.Linear(4, 1).cuda())(torch.ones(64, 4))
    finding = next(finding for finding in session.findings() if finding.code == "data-parallel")
    assert finding.severity == "info"
    assert finding.site.file.endswith("test_parallel.py")


def test_threads_of_replicas_take_turns_in_two_lanes(session):
    model = nn.DataParallel(nn.Linear(4, 1).cuda())
    for _ in range(3):
        model(torch.ones(8, 4, device="cuda"))
    assert {record.lane.thread for record in session.trace} == {0, 1, 2}


def test_dropout_in_threads_draws_the_same_numbers_every_time():
    def draw():
        with windtunnel.emulate("2xV100"):
            torch.cuda.manual_seed_all(7)
            model = nn.DataParallel(nn.Dropout(0.5).cuda())
            return [model(torch.ones(256, 8, device="cuda")).cpu() for _ in range(10)]

    for one, other in zip(draw(), draw(), strict=True):
        assert torch.equal(one, other)


def test_tables_filled_by_many_threads_at_once_stay_right(session):
    def work(device):
        for size in range(1, 60):
            torch.ones(size, device=device).add_(1)

    threads = [threading.Thread(target=work, args=(device,)) for device in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shapes = [record.signature.shapes[0] for record in session.trace if record.signature.name == "aten::add_"]
    assert sorted(shapes) == sorted([(size,) for size in range(1, 60)] * 2)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "ASGD", "Adamax"])
def test_optimizers_use_foreach_as_on_cuda(session, name):
    net = nn.Linear(3, 2).cuda()
    optimizer = getattr(torch.optim, name)(net.parameters(), lr=0.1)
    net(torch.ones(1, 3, device="cuda")).sum().backward()
    before = len(session.trace)
    optimizer.step()
    names = {record.signature.name for record in list(session.trace)[before:]}
    assert any(name.startswith("aten::_foreach_") for name in names)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_fused_optimizers_compute_the_same(session, name):
    def train(device, **options):
        torch.manual_seed(0)
        net = nn.Linear(3, 2).to(device)
        optimizer = getattr(torch.optim, name)(net.parameters(), lr=0.1, **options)
        for _ in range(3):
            net(torch.ones(1, 3, device=device)).sum().backward()
            optimizer.step()
        return net.weight.detach().cpu()

    torch.testing.assert_close(train("cuda", fused=True), train("cpu"))
    assert any("_fused_" in record.signature.name for record in session.trace)


def test_capturable_keeps_the_steps_on_the_device(session):
    net = nn.Linear(3, 2).cuda()
    optimizer = torch.optim.Adam(net.parameters(), capturable=True)
    net(torch.ones(1, 3, device="cuda")).sum().backward()
    optimizer.step()
    assert optimizer.state[net.weight]["step"].is_cuda


def test_grouping_refuses_what_is_elsewhere(session):
    group = torch.utils._foreach_utils._group_tensors_by_device_and_dtype
    one, other = torch.ones(1, device=0), torch.ones(1, device=1)
    found = group([[one, other], [one.clone(), None]], with_indices=True)
    assert {str(device): indices for (device, _), (_, indices) in found.items()} == {"cuda:0": [0], "cuda:1": [1]}
    with pytest.raises(RuntimeError, match="must be on the same device and the same dtype except `step` tensors"):
        group([[one], [torch.ones(1, dtype=torch.int64)]])


@pytest.mark.parametrize("name", ["sign", "maximum", "minimum", "clamp_max", "clamp_min", "add", "abs"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_lists_of_whole_numbers_go_one_by_one_as_on_cuda(session, name, dtype):
    """torch/testing/_internal/common_methods_invocations.py: `_should_disable_fastpath`, of test_foreach.py."""
    tensors = [torch.ones(3, device="cuda").to(dtype) for _ in range(4)]
    before = len(session.trace)
    getattr(torch, f"_foreach_{name}")(*([tensors] if name in ("sign", "abs") else [tensors, tensors]))
    kernels = [row.signature.name for row in list(session.trace)[before:] if row.kind == Kind.KERNEL]
    at_once = dtype.is_floating_point or name in ("add", "abs")
    assert len(kernels) == (1 if at_once else 4), kernels
