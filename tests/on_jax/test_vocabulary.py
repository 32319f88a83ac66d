"""windtunnel.jax: the vocabulary on emulated GPUs and without any."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from windtunnel import jax as wt
from windtunnel.errors import UsageError


# mission 21, 22, 23, 24
def test_gpus_are_counted_and_tried(session):
    assert wt.num_gpus() == 2
    assert wt.try_gpu() == wt.gpu(0) == jax.devices("gpu")[0]
    assert wt.try_gpu(10) == wt.cpu() == wt.cpu(5)
    assert wt.try_all_gpus() == wt.require_gpus(2) == jax.devices("gpu")
    assert wt.visible_devices() == ["0", "1"]
    with pytest.raises(UsageError, match="JAX has 2 GPUs"):
        wt.gpu(2)


def test_without_gpus_everything_falls_back():
    assert wt.num_gpus() == 0
    assert wt.try_gpu() == wt.cpu()
    assert wt.try_all_gpus() == [wt.cpu()]
    with pytest.raises(UsageError, match=r"2 GPUs needed, 0 found: JAX .* has no GPU backend here"):
        wt.require_gpus(2)


# mission 37, 38, 39, 50, 54
def test_batches_and_flax_parameters_move(session):
    params = nn.Dense(2).init(jax.random.PRNGKey(0), jnp.ones((1, 3)))
    moved = wt.to(params, wt.gpu(1))
    assert wt.device_of(moved) == wt.gpu(1)
    assert wt.to(moved, wt.gpu(1)) is moved
    batch = wt.to({"x": np.ones((4, 3), np.float32), "name": "first"}, wt.gpu(1))
    assert batch["name"] == "first"
    assert wt.device_of(batch) == wt.gpu(1)
    assert nn.Dense(2).apply(moved, batch["x"]).devices() == {wt.gpu(1)}
    duplicate = wt.copy(batch["x"], wt.gpu(1))
    assert duplicate.unsafe_buffer_pointer() != batch["x"].unsafe_buffer_pointer()
    with pytest.raises(UsageError, match=r"arrays on cuda:0, cuda:1"):
        wt.device_of((params, moved))
    with pytest.raises(UsageError, match="no array"):
        wt.device_of([1, 2])


# mission 41
def test_the_policy_watches_copies(session):
    x = jnp.ones(3)
    with (
        wt.policy("error"),
        pytest.raises(UsageError, match=r"wt\.to copies 12 bytes from cuda:0 to cuda:1"),
    ):
        wt.to(x, wt.gpu(1))
    with wt.policy("warn"), pytest.warns(wt.DeviceCopyWarning):
        wt.to(x, wt.gpu(1))
    assert jax.config.jax_transfer_guard is None or jax.config.jax_transfer_guard == "allow"


def test_memory_and_time(session):
    x = wt.to(np.ones(1 << 20, np.float32), wt.gpu(1))
    memory = wt.memory(wt.gpu(1))
    assert memory.allocated_bytes == x.nbytes
    assert memory.free_bytes == memory.total_bytes - memory.allocated_bytes
    assert wt.memory(wt.cpu()).total_bytes > memory.total_bytes / 100
    timing = wt.timer().measure(lambda: x @ x, repeats=3)
    assert len(timing.times_s) == 3
    assert timing.median_s > 0
