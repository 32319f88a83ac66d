"""Parameters on disk and arrays of other libraries, in TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf

from windtunnel import tensorflow as wt
from windtunnel.errors import UsageError
from windtunnel.train.tensorflow import load_parameters, save_parameters


def model(device, units=8):
    """A small built model on a device."""
    with tf.device(device):
        made = tf.keras.Sequential([tf.keras.layers.Dense(units), tf.keras.layers.Dense(1)])
        made.build((None, 3))
    return made


# mission 130
def test_parameters_are_written_and_read_across_devices(session, tmp_path):
    path = tmp_path / "model.safetensors"
    written = model(wt.gpu(1))
    save_parameters(written, path)
    for device in (wt.gpu(0), wt.cpu()):
        read = load_parameters(model(device), path)
        assert wt.device_of(read) == device
        for weight, other in zip(read.weights, written.weights, strict=True):
            np.testing.assert_array_equal(weight.numpy(), other.numpy())
    with pytest.raises(UsageError, match=r"'0.kernel' is of shape .* in the file and of shape"):
        load_parameters(model(wt.cpu(), units=9), path)


def test_a_tensor_says_that_it_is_on_a_gpu_and_comes_back_there(session):
    x = wt.to(tf.range(6.0), wt.gpu(1))
    assert tuple(x.__dlpack_device__()) == (2, 1)
    assert wt.device_of(wt.from_dlpack(x)) == wt.gpu(1)


def test_numpy_is_shared_on_the_cpu_and_copied_to_a_gpu(session):
    values = np.arange(64, dtype=np.float32)
    assert wt.device_of(wt.from_dlpack(values)) == wt.cpu()
    assert wt.device_of(wt.from_dlpack(values, wt.gpu(0))) == wt.gpu(0)
    with pytest.raises(UsageError, match="moving from /device:CPU:0 to /device:GPU:0 is a copy"):
        wt.from_dlpack(values, wt.gpu(0), copy=False)
    with pytest.raises(UsageError, match="TensorFlow cannot share the memory of this numpy array"):
        wt.from_dlpack(values[::2])
