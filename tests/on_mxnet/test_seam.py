"""MXNet on emulated GPUs: contexts, arrays, copies, kernels, memory, gluon on two GPUs, and the end."""

import mxnet as mx
import numpy
import pytest
from mxnet import autograd, gluon, np, npx
from mxnet.gluon import nn

from windtunnel.options import Options
from windtunnel.seam import signatures
from windtunnel.session import Session
from windtunnel.trace.operation import Kind

npx.set_np()


def kinds(session, kind):
    """The records of one kind."""
    return [record for record in session.trace if record.kind == kind]


def copies(session, begin=0):
    """(direction, bytes) of each transfer."""
    return [(record.signature.name.split()[1], record.value) for record in kinds(session, Kind.COPY)[begin:]]


# mission 11, 12, 13, 15, 21
def test_contexts_are_mxnets_own(session):
    assert npx.num_gpus() == mx.context.num_gpus() == 2
    assert repr((npx.cpu(), npx.gpu(), npx.gpu(1), npx.cpu(5))) == "(cpu(0), gpu(0), gpu(1), cpu(5))"
    assert np.array([1, 2, 3]).ctx == npx.cpu()
    assert np.ones(3, ctx=npx.gpu(1)).ctx == npx.gpu(1)
    with npx.gpu(1):
        assert np.zeros(3).ctx == npx.gpu(1)
    assert mx.nd.ones(3, ctx=mx.gpu(0)).context == mx.gpu(0)
    with pytest.raises(mx.MXNetError, match="invalid device ordinal"):
        np.ones(3, ctx=npx.gpu(2))


# mission 30, 31
def test_arrays_show_their_gpu(session):
    assert repr(np.ones(2, ctx=npx.gpu(1))) == "array([1., 1.], ctx=gpu(1))"
    x = np.random.uniform(size=(2, 3), ctx=npx.gpu(1))
    assert x.ctx == npx.gpu(1)
    assert (x >= 0).all()


# mission 28, 34
def test_operands_on_two_contexts_are_refused(session):
    x, y = (np.ones(3, ctx=npx.gpu(i)) for i in (0, 1))
    with pytest.raises(
        mx.MXNetError, match=r"same context. But the first argument is on gpu\(0\) while the 2-th .* gpu\(1\)"
    ):
        x + y
    with pytest.raises(mx.MXNetError, match=r"on gpu\(0\) while the 2-th argument is on cpu\(0\)"):
        np.dot(x, np.ones(3))


# mission 35, 37, 38, 39
def test_copyto_always_copies_and_as_in_ctx_does_not(session):
    x = np.ones(1024, ctx=npx.gpu(0))
    before = len(copies(session))
    z = x.copyto(npx.gpu(1))
    assert copies(session, before) == [("PtoP", 4096)]
    assert z.as_in_ctx(npx.gpu(1)) is z
    assert len(copies(session)) == before + 1
    free, _ = mx.context.gpu_memory_info(1)
    again = z.copyto(npx.gpu(1))
    assert again is not z
    assert mx.context.gpu_memory_info(1)[0] == free - 4096


# mission 46
@pytest.mark.parametrize("read", [lambda x: x.asnumpy(), repr, lambda x: x.tolist(), lambda x: x[0].item()])
def test_reading_values_is_a_blocking_copy(session, read):
    x = np.ones(1024, ctx=npx.gpu(0))
    before = len(copies(session))
    read(x)
    assert [direction for direction, _ in copies(session, before)] == ["DtoH"]
    wait = kinds(session, Kind.SYNCHRONIZE)[-1]
    assert wait.signature.name == "cudaMemcpy (blocking)"
    assert wait.site.file.endswith("test_seam.py")


# mission 32
def test_memory_follows_arrays(session):
    free, total = mx.context.gpu_memory_info(0)
    assert total == session.machine.devices[0].gpu.memory_bytes
    x = np.ones((1000, 1000), ctx=npx.gpu(0))
    assert free - mx.context.gpu_memory_info(0)[0] == pytest.approx(4_000_000, rel=1e-3)
    view = x.reshape(-1)
    del x
    assert mx.context.gpu_memory_info(0)[0] < free
    del view
    assert mx.context.gpu_memory_info(0)[0] == free


# mission 33
def test_too_large_is_mxnets_own_error(session):
    parts = [np.empty((1 << 14, 1 << 14), ctx=npx.gpu(0)) for _ in range(15)]  # 1 GiB each, never touched
    with pytest.raises(mx.MXNetError, match="cudaMalloc retry failed: out of memory"):
        np.empty((1 << 14, 1 << 14), ctx=npx.gpu(0))
    assert len(parts) == 15


def test_operators_and_their_gradients_are_kernels(session):
    x = np.ones((64, 64), ctx=npx.gpu(0))
    x.attach_grad()
    begin = len(kinds(session, Kind.KERNEL))
    with autograd.record():
        y = npx.relu(np.dot(x, x)).sum()
    y.backward()
    found = kinds(session, Kind.KERNEL)[begin:]
    names = [record.signature.name for record in found]
    forward = [name for name in names if not name.startswith("_backward_")]
    assert [name.removeprefix("_backward_") for name in names[len(forward) :]] == forward[::-1]
    assert found[0].signature.flops == 2 * 64**3
    assert found[-1].signature.flops == 4 * 64**3
    numpy.testing.assert_allclose(x.grad.asnumpy(), numpy.full((64, 64), 128.0))


# mission 50, 53, 54
def test_gluon_parameters_live_where_they_are_told(session):
    net = nn.Sequential()
    net.add(nn.Dense(1))
    net.initialize(ctx=npx.gpu(0))
    assert net(np.ones((2, 3), ctx=npx.gpu(0))).ctx == npx.gpu(0)
    assert net[0].weight.data().ctx == npx.gpu(0)
    net.collect_params().reset_ctx(npx.gpu(1))
    assert net[0].weight.data().ctx == npx.gpu(1)


def test_gluon_trains_on_both_gpus_as_on_the_cpu(session):
    inputs = numpy.random.RandomState(0).normal(size=(64, 3)).astype("float32")

    def losses(contexts, hybridize):
        net = nn.HybridSequential()
        net.add(nn.Dense(8, activation="relu"), nn.Dense(1))
        net.initialize(mx.init.Constant(0.1), ctx=contexts)
        if hybridize:
            net.hybridize()
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        found = []
        for _ in range(5):
            xs = gluon.utils.split_and_load(np.array(inputs), contexts)
            ys = gluon.utils.split_and_load(np.array(inputs.sum(1, keepdims=True)), contexts)
            with autograd.record():
                parts = [((net(x) - y) ** 2).sum() for x, y in zip(xs, ys, strict=True)]
            for part in parts:
                part.backward()
            trainer.step(64)
            found.append(sum(float(part) for part in parts))
        return found

    on_cpu = losses([npx.cpu()], False)
    numpy.testing.assert_allclose(losses([npx.gpu(0), npx.gpu(1)], False), on_cpu, rtol=1e-5)
    begin = len(kinds(session, Kind.KERNEL))
    numpy.testing.assert_allclose(losses([npx.gpu(0), npx.gpu(1)], True), on_cpu, rtol=1e-5)
    products = [r.lane.device for r in kinds(session, Kind.KERNEL)[begin:] if r.signature.name == "FullyConnected"]
    assert products.count(0) == products.count(1) == 5 * 2


def test_everything_is_put_back():
    from mxnet._ctypes import ndarray

    library = mx.base._LIB
    np.ones(3).asnumpy()
    before = dict(vars(library)), dict(vars(ndarray.CachedOp))
    session = Session(Options(gpus="2xV100", clock="real"))
    session.attach("mxnet")
    np.ones(3, ctx=npx.gpu(0)).asnumpy()
    session.end()
    for owner, old in zip((library, ndarray.CachedOp), before, strict=True):
        assert all(vars(owner)[name] is value for name, value in old.items())
    assert npx.num_gpus() == 0


def test_nothing_of_this_version_is_misread(monkeypatch):
    met = []
    monkeypatch.setattr(signatures, "_guarded", lambda ours, known, stock, wanted: met.append(stock) or ours)
    session = Session(Options(gpus="2xV100", clock="real"))
    session.attach("mxnet")
    session.end()
    assert met == []
