"""Parameters on disk and arrays of other libraries, in MXNet."""

import numpy
import pytest
from mxnet import np, npx
from mxnet.gluon import nn

from windtunnel import mxnet as wt
from windtunnel.errors import UsageError
from windtunnel.train.mxnet import load_parameters, save_parameters

npx.set_np()


def block(device, units=8):
    """Two layers on a device."""
    net = nn.Sequential()
    net.add(nn.Dense(units, in_units=3), nn.Dense(1, in_units=units))
    net.initialize(ctx=device)
    return net


# mission 130
def test_parameters_are_written_and_read_across_devices(session, tmp_path):
    path = tmp_path / "model.safetensors"
    written = block(wt.gpu(1))
    save_parameters(written, path)
    x = numpy.ones((2, 3), "float32")
    for device in (wt.gpu(0), wt.cpu()):
        read = load_parameters(block(device), path)
        assert wt.device_of(read) == device
        there, here = read(np.array(x, ctx=device)), written(np.array(x, ctx=wt.gpu(1)))
        numpy.testing.assert_array_equal(there.asnumpy(), here.asnumpy())
    with pytest.raises(UsageError, match="is of a different model"):
        load_parameters(block(wt.cpu(), units=9), path)


def test_numpy_is_shared_on_the_cpu_and_copied_to_a_gpu(session):
    values = numpy.arange(64, dtype="float32")
    shared = wt.from_dlpack(values)
    values[0] = 7
    assert float(shared[0]) == 7
    assert wt.device_of(wt.from_dlpack(values, wt.gpu(0))) == wt.gpu(0)
    with pytest.raises(UsageError, match=r"moving from cpu\(0\) to gpu\(0\) is a copy"):
        wt.from_dlpack(values, wt.gpu(0), copy=False)


def test_its_own_arrays_speak_dlpack_through_the_vocabulary(session):
    x = np.arange(4)
    shared = wt.from_dlpack(x)
    x[0] = 7
    x.wait_to_read()  # the engine orders work by array, and these are two arrays of one memory
    assert float(shared[0]) == 7
