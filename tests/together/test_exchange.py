"""PyTorch, JAX and TensorFlow in one process on the same emulated GPUs, handing arrays to each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
import torch

import windtunnel
from windtunnel import jax as us_jax
from windtunnel import tensorflow as us_tensorflow
from windtunnel import torch as us_torch
from windtunnel.errors import UsageError
from windtunnel.train import jax as train_jax
from windtunnel.train import load_parameters

VALUES = np.arange(24, dtype=np.float32).reshape(4, 6)
LIBRARIES = {"torch": us_torch, "jax": us_jax, "tensorflow": us_tensorflow}
PAIRS = [(source, target) for source in LIBRARIES for target in LIBRARIES if source != target]


@pytest.fixture(scope="module", autouse=True)
def session():
    """Two emulated V100 for all three; TensorFlow wants them before its first operation, so once for the module."""
    with windtunnel.emulate("2xV100") as session:
        yield session


def made(name: str, device: int):
    """VALUES as an array of a framework on GPU `device`, or on the CPU where it is -1."""
    library = LIBRARIES[name]
    place = library.cpu() if device < 0 else library.gpu(device)
    if name == "torch":
        return torch.from_numpy(VALUES.copy()).to(place)
    if name == "jax":
        return jax.device_put(VALUES, place)
    with tf.device(place):
        return tf.identity(tf.constant(VALUES))


def values(array) -> np.ndarray:
    """What an array of any framework holds, on the host."""
    return array.cpu().numpy() if isinstance(array, torch.Tensor) else np.asarray(array)


@pytest.mark.parametrize("device", [-1, 0, 1])
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_an_array_stays_on_its_device(source, target, device):
    library = LIBRARIES[target]
    received = library.from_dlpack(made(source, device))
    assert library.device_of(received) == (library.cpu() if device < 0 else library.gpu(device))
    np.testing.assert_array_equal(values(received), VALUES)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_an_array_moves_where_it_is_told(source, target):
    library = LIBRARIES[target]
    received = library.from_dlpack(made(source, 0), library.gpu(1))
    assert library.device_of(received) == library.gpu(1)
    np.testing.assert_array_equal(values(received), VALUES)
    with pytest.raises(UsageError, match="is a copy"):
        library.from_dlpack(made(source, 0), library.gpu(1), copy=False)


def test_memory_is_one_between_torch_and_jax():
    tensor = made("torch", 0)
    array = us_jax.from_dlpack(tensor, copy=False)
    tensor.add_(1)
    np.testing.assert_array_equal(np.asarray(array), VALUES + 1)
    back = us_torch.from_dlpack(array, copy=False)
    assert back.device == torch.device("cuda", 0)
    assert back.data_ptr() == tensor.data_ptr()


def test_a_received_tensor_computes_with_its_neighbours():
    received = us_torch.from_dlpack(jnp.asarray(VALUES))  # JAX's default is GPU 0
    assert (received @ torch.ones(6, 2, device="cuda:0")).shape == (4, 2)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        received + torch.ones(6, device="cuda:1")


def test_strides_that_a_framework_does_not_take_are_named():
    with pytest.raises(UsageError, match="TensorFlow cannot share the memory of this torch array"):
        us_tensorflow.from_dlpack(made("torch", 0).t())


# mission 130
def test_parameters_written_by_jax_are_read_by_torch(tmp_path):
    weight = jax.device_put(VALUES, us_jax.gpu(1))
    train_jax.save_parameters({"weight": weight, "bias": jnp.zeros(4)}, tmp_path / "layer.safetensors")
    layer = load_parameters(torch.nn.Linear(6, 4).cuda(), tmp_path / "layer.safetensors")
    assert layer.weight.device == torch.device("cuda", 0)
    np.testing.assert_array_equal(values(layer.weight.detach()), VALUES)
