"""Jitted functions are compiled by XLA's GPU compiler for the emulated GPU; their values stay the CPU's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas
from jax.sharding import NamedSharding, PartitionSpec

from windtunnel.errors import UnsupportedError
from windtunnel.reports import text
from windtunnel.trace.operation import Kind


def names(session, kind=Kind.KERNEL, device=0):
    return [row.signature.name for row in session.trace if row.kind == kind and row.lane.device == device]


def mlp(w, x):
    return (jax.nn.softmax(jax.nn.gelu(x @ w["a"]) @ w["b"]) ** 2).mean()


def test_a_training_step_on_two_gpus(session):
    mesh = jax.make_mesh((2,), ("x",))
    rng = np.random.default_rng(0)
    host = {"a": rng.normal(size=(64, 256)).astype("f"), "b": rng.normal(size=(256, 64)).astype("f")}
    x_host = rng.normal(size=(32, 64)).astype("f")
    w = jax.device_put(host, NamedSharding(mesh, PartitionSpec()))
    x = jax.device_put(x_host, NamedSharding(mesh, PartitionSpec("x")))
    step = jax.jit(jax.value_and_grad(mlp))
    value, gradients = step(w, x)
    with jax.default_device(jax.devices("cpu")[0]):
        expected, wanted = jax.jit(jax.value_and_grad(mlp))(host, x_host)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradients["a"], wanted["a"], atol=1e-6)
    made = [row for row in session.trace if row.signature.name == "dot_general" and row.lane.device == 0]
    assert all(row.signature.flops == 2 * 16 * 64 * 256 for row in made)  # half of the batch is on each
    assert len(made) >= 4
    assert "all_reduce" in names(session, Kind.COLLECTIVE)
    assert names(session, device=1).count("dot_general") == len(made)


def test_memory_inside_a_function_counts(session):
    def inside(x):
        return jnp.sort(jnp.outer(x, x).reshape(-1)).reshape(len(x), -1).sum(0)

    x = jnp.ones(1024)
    compiled = jax.jit(inside).lower(x).compile()
    memory = compiled.memory_analysis()
    assert memory.temp_size_in_bytes >= 4 * 1024 * 1024
    before = jax.devices()[0].memory_stats()["bytes_in_use"]
    out = compiled(x)
    after = jax.devices()[0].memory_stats()
    assert after["bytes_in_use"] == before + out.nbytes
    assert after["peak_bytes_in_use"] >= before + out.nbytes + memory.temp_size_in_bytes


def test_temporaries_that_do_not_fit_are_resource_exhausted(session):
    def large(x):
        y = jnp.sort(lax.broadcast_in_dim(x, (70_000, 70_000), (1,)), axis=0)
        return jnp.sort(y, axis=1)[0, 0]

    x = jnp.ones(70_000)
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED: Out of memory"):
        jax.jit(large)(x)


def test_the_compiled_program_is_the_gpus(session):
    compiled = jax.jit(lambda a, b: jnp.tanh(a @ b)).lower(jnp.ones((64, 32)), jnp.ones((32, 16))).compile()
    assert "__cublas" in compiled.as_text() or "kind=kCustom" in compiled.as_text() or "wrapped" in compiled.as_text()
    with jax.default_device(jax.devices("cpu")[0]):
        assert "kind=kCustom" not in jax.jit(lambda a: a * 2).lower(np.ones(8, "f")).compile().as_text()


def test_costs_are_those_of_the_gpus_program(session):
    size = 512
    compiled = jax.jit(lambda x: jnp.tanh(x @ x)).lower(jnp.ones((size, size))).compile()
    costs = compiled.cost_analysis()
    assert 2 * size**3 <= costs["flops"] <= 2.1 * size**3
    assert costs["bytes accessed"] >= 3 * 4 * size**2
    assert costs["transcendentals"] == size**2


def test_memory_inside_each_devices_part_counts(session):
    """Automatic sharding, shard_map and pmap: each GPU's temporaries are on it, and run out on it."""
    mesh = jax.make_mesh((2,), ("x",))
    split = NamedSharding(mesh, PartitionSpec("x"))

    def sorted_rows(v):
        return jnp.sort(jnp.sin(v), axis=1).sum(1)

    x = jax.device_put(jnp.ones((64, 4096)), split)
    ways = (
        (jax.jit(sorted_rows), x),
        (jax.jit(jax.shard_map(sorted_rows, mesh=mesh, in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x"))), x),
        (jax.pmap(sorted_rows), jnp.ones((2, 32, 4096))),
    )
    for function, given in ways:
        memory = function.lower(given).compile().memory_analysis()
        assert memory.temp_size_in_bytes >= 32 * 4096 * 4  # of half of the rows
        function(given)
        for device in jax.devices():
            stats = device.memory_stats()
            assert stats["peak_bytes_in_use"] >= memory.argument_size_in_bytes + memory.temp_size_in_bytes


@pytest.mark.parametrize("way", ["shard_map", "pmap"])
def test_each_way_to_several_devices_runs_out_of_memory(session, way):
    def large(v):
        y = jnp.sort(jnp.broadcast_to(v.reshape(-1), (70_000, 70_000)), axis=0)
        return jnp.sort(y, axis=1)[:1, 0]

    x, function = np.ones((2, 70_000), "f"), jax.pmap(large)
    if way == "shard_map":
        mesh, parts = jax.make_mesh((2,), ("x",)), PartitionSpec("x")
        x = jax.device_put(x, NamedSharding(mesh, parts))
        function = jax.jit(jax.shard_map(large, mesh=mesh, in_specs=parts, out_specs=parts))
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED: Out of memory"):
        function(x)


def test_loops_run_as_often_as_they_turn(session):
    def turns(x):
        return lax.fori_loop(0, 7, lambda _, y: jnp.tanh(y @ y), x)

    x = jnp.full((64, 64), 0.01)
    jax.jit(turns)(x)
    assert names(session).count("dot_general") == 7


def test_shard_map_and_pmap(session):
    mesh = jax.make_mesh((2,), ("x",))
    parts = PartitionSpec("x")
    x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, parts))
    summed = jax.jit(jax.shard_map(lambda v: lax.psum(v, "x"), mesh=mesh, in_specs=parts, out_specs=PartitionSpec()))
    np.testing.assert_array_equal(summed(x), [4, 6, 8, 10])
    y = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(jax.pmap(lambda v: v * 2)(y), 2 * y)
    assert "all_reduce" in names(session, Kind.COLLECTIVE)


def test_pallas_kernels_are_refused(session):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    x = jnp.ones(8)
    call = pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))
    with pytest.raises(UnsupportedError, match="a Pallas kernel is compiled for the GPU itself"):
        jax.jit(call)(x)


def test_the_trace_says_who_compiled(session):
    assert session.trace.facts["versions"]["jit of JAX by"].startswith("XLA's GPU compiler (0.")
    jax.jit(lambda x: x + 1)(jnp.ones(4))
    shown = text.render(session.trace.canonical(), [])
    assert "jit of JAX by: XLA's GPU compiler (0." in shown
