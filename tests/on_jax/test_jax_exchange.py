"""Parameters on disk and arrays of other libraries, in JAX."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from windtunnel import jax as wt
from windtunnel.errors import FileFormatError, UsageError
from windtunnel.train.jax import load_parameters, save_parameters

MODEL = nn.Sequential([nn.Dense(8), nn.relu, nn.Dense(1)])


def params(device, seed=0):
    """The model's parameters on a device."""
    return wt.to(MODEL.init(jax.random.PRNGKey(seed), np.ones((1, 3), np.float32)), device)


# mission 130
def test_parameters_are_written_and_read_across_devices(session, tmp_path):
    path = tmp_path / "model.safetensors"
    written = params(wt.gpu(1))
    save_parameters(written, path)
    for device in (wt.gpu(0), wt.cpu()):
        read = load_parameters(params(device, seed=1), path)
        assert wt.device_of(read) == device
        jax.tree.map(np.testing.assert_array_equal, read, written)


def test_parameters_of_another_model_and_damage_are_refused(session, tmp_path):
    path = tmp_path / "model.safetensors"
    save_parameters({"w": jax.numpy.ones(3)}, path)
    with pytest.raises(UsageError, match=r"'params.layers_0.bias' is missing in the file and of shape"):
        load_parameters(params(wt.cpu()), path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileFormatError, match="cannot be read as safetensors"):
        load_parameters({"w": jax.numpy.ones(3)}, path)


def test_leaves_whose_paths_are_alike_and_numbers_come_back(tmp_path):
    ones = jax.numpy.ones
    written = {"a.b": ones(2), "a": {"b": 2 * ones(2)}, "scale": 3 * ones(()), "half": ones(2, jax.numpy.bfloat16)}
    save_parameters(written, tmp_path / "p")
    read = load_parameters(jax.tree.map(jax.numpy.zeros_like, written), tmp_path / "p")
    jax.tree.map(np.testing.assert_array_equal, read, written)
    assert read["half"].dtype == jax.numpy.bfloat16


def test_a_type_that_cannot_be_read_back_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot hold 'w' of type float8_e4m3fn"):
        save_parameters({"w": jax.numpy.ones(2, jax.numpy.float8_e4m3fn)}, tmp_path / "p")


def test_an_array_says_that_it_is_on_a_gpu_and_comes_back_there(session):
    x = wt.to(np.arange(6.0), wt.gpu(1))
    assert tuple(map(int, x.__dlpack_device__())) == (2, 1)
    shared = wt.from_dlpack(x, copy=False)
    assert wt.device_of(shared) == wt.gpu(1)
    assert shared.unsafe_buffer_pointer() == x.unsafe_buffer_pointer()
    assert wt.from_dlpack(x, copy=True).unsafe_buffer_pointer() != x.unsafe_buffer_pointer()


def test_numpy_is_shared_on_the_cpu_and_copied_to_a_gpu(session):
    values = np.arange(64, dtype=np.float32)
    assert wt.device_of(wt.from_dlpack(values)) == wt.cpu()
    moved = wt.from_dlpack(values, wt.gpu(0))
    assert wt.device_of(moved) == wt.gpu(0)
    np.testing.assert_array_equal(moved, values)
    with pytest.raises(UsageError, match=r"moving from .* to .* is a copy"):
        wt.from_dlpack(values, wt.gpu(0), copy=False)
    with pytest.raises(UsageError, match="a list does not support DLPack"):
        wt.from_dlpack([1.0])
