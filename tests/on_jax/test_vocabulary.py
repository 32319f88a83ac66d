"""understudy.jax: the vocabulary on emulated GPUs and without any."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from understudy import jax as us
from understudy.errors import UsageError


# mission 21, 22, 23, 24
def test_gpus_are_counted_and_tried(session):
    assert us.num_gpus() == 2
    assert us.try_gpu() == us.gpu(0) == jax.devices("gpu")[0]
    assert us.try_gpu(10) == us.cpu() == us.cpu(5)
    assert us.try_all_gpus() == us.require_gpus(2) == jax.devices("gpu")
    assert us.visible_devices() == ["0", "1"]
    with pytest.raises(UsageError, match="JAX has 2 GPUs"):
        us.gpu(2)


def test_without_gpus_everything_falls_back():
    assert us.num_gpus() == 0
    assert us.try_gpu() == us.cpu()
    assert us.try_all_gpus() == [us.cpu()]
    with pytest.raises(UsageError, match=r"2 GPUs needed, 0 found: JAX .* has no GPU backend here"):
        us.require_gpus(2)


# mission 37, 38, 39, 50, 54
def test_batches_and_flax_parameters_move(session):
    params = nn.Dense(2).init(jax.random.PRNGKey(0), jnp.ones((1, 3)))
    moved = us.to(params, us.gpu(1))
    assert us.device_of(moved) == us.gpu(1)
    assert us.to(moved, us.gpu(1)) is moved
    batch = us.to({"x": np.ones((4, 3), np.float32), "name": "first"}, us.gpu(1))
    assert batch["name"] == "first"
    assert us.device_of(batch) == us.gpu(1)
    assert nn.Dense(2).apply(moved, batch["x"]).devices() == {us.gpu(1)}
    duplicate = us.copy(batch["x"], us.gpu(1))
    assert duplicate.unsafe_buffer_pointer() != batch["x"].unsafe_buffer_pointer()
    with pytest.raises(UsageError, match=r"arrays on cuda:0, cuda:1"):
        us.device_of((params, moved))
    with pytest.raises(UsageError, match="no array"):
        us.device_of([1, 2])


# mission 41
def test_the_policy_watches_copies(session):
    x = jnp.ones(3)
    with (
        us.policy("error"),
        pytest.raises(UsageError, match=r"us\.to copies 12 bytes from cuda:0 to cuda:1"),
    ):
        us.to(x, us.gpu(1))
    with us.policy("warn"), pytest.warns(us.DeviceCopyWarning):
        us.to(x, us.gpu(1))
    assert jax.config.jax_transfer_guard is None or jax.config.jax_transfer_guard == "allow"


def test_memory_and_time(session):
    x = us.to(np.ones(1 << 20, np.float32), us.gpu(1))
    memory = us.memory(us.gpu(1))
    assert memory.allocated_bytes == x.nbytes
    assert memory.free_bytes == memory.total_bytes - memory.allocated_bytes
    assert us.memory(us.cpu()).total_bytes > memory.total_bytes / 100
    timing = us.timer().measure(lambda: x @ x, repeats=3)
    assert len(timing.times_s) == 3
    assert timing.median_s > 0
