"""JAX on emulated GPUs: devices, arrays, transfers, kernels, memory, several devices, and how it all ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from windtunnel.errors import HostMemoryError, InstallError
from windtunnel.options import Options
from windtunnel.reports import text
from windtunnel.seam import signatures
from windtunnel.session import Session, options_of
from windtunnel.trace.operation import Kind


def kinds(session, kind):
    """The records of one kind."""
    return [record for record in session.trace if record.kind == kind]


def copies(session):
    """(direction, bytes) of each transfer."""
    return [(record.signature.name.split()[1], record.value) for record in kinds(session, Kind.COPY)]


# mission 11, 12, 13, 21
def test_devices_are_the_models_gpus(session):
    assert [str(device) for device in jax.devices()] == ["cuda:0", "cuda:1"]
    assert repr(jax.devices("gpu")[1]) == "CudaDevice(id=1)"
    assert repr(jax.devices("cpu")) == "[CpuDevice(id=0)]"
    device = jax.devices()[0]
    assert (device.platform, device.device_kind, device.compute_capability) == ("gpu", "Tesla V100-SXM2-16GB", "7.0")
    assert jax.default_backend() == "gpu"
    assert jax.device_count("gpu") == jax.local_device_count() == 2


# mission 10, 26
def test_arrays_are_made_on_the_first_gpu(session):
    x = jnp.array([1, 2, 3])
    assert x.device == jax.devices("gpu")[0]
    with pytest.raises(TypeError):
        x.device()  # the old interface, see docs/errata.md
    assert (x + 1).devices() == {jax.devices("gpu")[0]}


def test_the_old_interface_answers_when_asked_for():
    session = Session(Options(gpus="2xV100", clock="real", compat="d2l"))
    session.attach("jax")
    try:
        assert repr(jnp.array([1, 2, 3]).device()) == "gpu(id=0)"
    finally:
        session.end()


# mission 28, 34
def test_operands_on_two_devices_are_refused_by_jax_itself(session):
    x, y = (jax.device_put(jnp.ones(3), device) for device in jax.devices())
    with pytest.raises(
        ValueError, match=r"incompatible devices for jitted computation.*device ids \[0\] on platform GPU"
    ):
        x + y
    with pytest.raises(ValueError, match="on platform CPU"):
        x + jax.device_put(jnp.ones(3), jax.devices("cpu")[0])


# mission 35, 37
def test_a_move_copies_once_and_a_second_one_shares_the_buffer(session):
    x = jax.device_put(np.ones((256, 4), np.float32), jax.devices()[0])
    z = jax.device_put(x, jax.devices()[1])
    before = len(copies(session))
    again = jax.device_put(z, jax.devices()[1])
    assert copies(session) == [("HtoD", 4096), ("PtoP", 4096)]
    assert len(copies(session)) == before
    assert again is not z
    assert again.unsafe_buffer_pointer() == z.unsafe_buffer_pointer()
    assert jax.devices()[1].memory_stats()["bytes_in_use"] == 4096


# mission 46, 49
@pytest.mark.parametrize("read", [np.asarray, np.array, lambda x: x.tolist(), repr, lambda x: np.stack([x])])
def test_reading_values_is_a_blocking_copy(session, read):
    x = jax.device_put(np.ones(1024, np.float32), jax.devices()[0])
    read(x)
    assert copies(session) == [("HtoD", 4096), ("DtoH", 4096)]
    assert [record.signature.name for record in kinds(session, Kind.SYNCHRONIZE)] == ["cudaMemcpy (blocking)"]
    assert kinds(session, Kind.SYNCHRONIZE)[0].site.file.endswith("test_seam.py")


def test_waiting_is_seen_at_its_line(session):
    x = jnp.ones(1024) * 2
    x.block_until_ready()
    jax.block_until_ready((x, x + 1))
    assert {record.signature.name for record in kinds(session, Kind.SYNCHRONIZE)} == {"block_until_ready"}


def test_every_call_of_a_jitted_function_is_seen(session):
    step = jax.jit(lambda a, b: jnp.tanh(a @ b) + 1)
    a = jnp.ones((128, 128))
    begin = len(kinds(session, Kind.KERNEL))
    for _ in range(3):
        step(a, a)
    names = [record.signature.name for record in kinds(session, Kind.KERNEL)][begin:]
    assert names == ["dot_general", "loop_fusion"] * 3
    product = kinds(session, Kind.KERNEL)[begin]
    assert product.signature.flops == 2 * 128**3
    assert product.duration_ns > 0


def test_a_compiled_function_and_a_loop_are_seen(session):
    compiled = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda _, c: c @ c, x)).lower(jnp.eye(8)).compile()
    begin = len(kinds(session, Kind.KERNEL))
    compiled(jnp.eye(8))
    names = [record.signature.name for record in kinds(session, Kind.KERNEL)][begin:]
    assert names.count("dot_general") == 5


# mission 32
def test_memory_follows_arrays(session):
    gpu = jax.devices()[0]
    x = jax.device_put(np.zeros(1000, np.float32), gpu)
    assert gpu.memory_stats()["bytes_in_use"] == 4096
    y = x + 1
    assert gpu.memory_stats()["bytes_in_use"] >= 2 * 4096
    del x, y
    stats = gpu.memory_stats()
    assert stats["bytes_in_use"] < 4096
    assert stats["bytes_limit"] == int(0.75 * session.machine.devices[0].gpu.memory_bytes)
    assert jax.devices()[1].memory_stats()["bytes_in_use"] == 0


def test_a_donated_argument_gives_its_memory_back(session):
    x = jax.device_put(np.zeros(1 << 20, np.float32), jax.devices()[0])
    y = jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert jax.devices()[0].memory_stats()["bytes_in_use"] == y.nbytes


# mission 33
def test_too_large_is_xlas_own_error(session):
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"RESOURCE_EXHAUSTED: Out of memory while trying to allocate 40000000000"
    ):
        jnp.ones((100_000, 100_000))


MIB = 1 << 20


def peaks_mib():
    """What each GPU had at most, in MiB."""
    return [device.memory_stats()["peak_bytes_in_use"] // MIB for device in jax.devices()]


def spread():
    return NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))


# XLA's account of jax#14075: the array, and a slice of it for each device, all on the first GPU. The slice that stays
# there is the shard.
@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda n: jax.device_put(jnp.zeros(n), spread()), [32, 8]),
        (lambda n: jax.device_put(np.zeros(n, np.float32), spread()), [8, 8]),
        (lambda n: jax.jit(lambda: jnp.zeros(n), out_shardings=spread())(), [8, 8]),
    ],
    ids=["an array of GPU 0", "numpy", "jit"],
)
def test_the_peak_of_sharding_an_array(session, made, expected):
    y = made(4 * MIB)
    y.block_until_ready()
    assert peaks_mib() == expected
    assert [shard.data.nbytes for shard in y.addressable_shards] == [8 * MIB, 8 * MIB]


def test_replicating_an_array_copies_it_to_the_other_gpu_only(session):
    x = jnp.zeros(MIB)
    y = jax.device_put(x, NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec()))
    assert y.is_fully_replicated
    assert peaks_mib() == [4, 4]


@pytest.mark.parametrize(("limit", "size"), [("64MiB", 1 << 27), ("1GiB", 1 << 31)])
def test_this_machines_memory_is_not_the_gpus(limit, size):
    session = Session(options_of({"gpus": "A100", "host_memory_limit": limit}))
    session.attach("jax")
    try:
        with pytest.raises(HostMemoryError, match="fit on the emulated GPU, and --host-memory-limit leaves no room"):
            jnp.zeros(size // 4)
        with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
            jnp.zeros((1 << 37) // 4)  # more than the GPU has
    finally:
        session.end()


def test_arrays_spread_over_both_gpus(session):
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    x = jax.device_put(np.arange(8, dtype=np.float32), rows)
    assert float(jax.jit(lambda x: (x * 2).sum())(x)) == 56
    lanes = {record.lane.device for record in kinds(session, Kind.KERNEL)}
    assert lanes == {0, 1}
    assert [record.signature.name for record in kinds(session, Kind.COLLECTIVE)] == ["all_reduce"] * 2


def test_pmap_and_shard_map_compute_on_both(session):
    assert jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(np.arange(2.0)).tolist() == [1, 1]
    mesh = Mesh(np.array(jax.devices()), ("d",))
    total = jax.shard_map(
        lambda x: jax.lax.psum(x.sum(), "d"), mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec()
    )
    assert float(total(np.arange(4.0))) == 6
    assert kinds(session, Kind.COLLECTIVE)


def test_values_are_those_of_the_cpu(session):
    def program(x):
        q, r = jnp.linalg.qr(x)
        return jnp.fft.fft(q @ r).real + jnp.sort(x, axis=0) + jax.nn.softmax(x)

    x = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
    gpu, cpu = jax.devices()[0], jax.devices("cpu")[0]
    on_gpu = jax.jit(program)(jax.device_put(x, gpu))
    on_cpu = jax.jit(program)(jax.device_put(x, cpu))
    np.testing.assert_array_equal(np.asarray(on_gpu), np.asarray(on_cpu))


def test_callbacks_run(session):
    seen = []
    jax.jit(lambda x: jax.debug.callback(seen.append, x * 2))(3.0)
    jax.effects_barrier()
    assert [float(value) for value in seen] == [6.0]


def test_everything_is_put_back():
    from jax._src import array, hardware_utils, pjit, xla_bridge
    from jax._src.interpreters import mlir, pxla
    from jaxlib import _jax, xla_client

    owners = [array.ArrayImpl, hardware_utils, pjit, pxla, pxla.ExecuteReplicated, pxla.MeshComputation, xla_bridge]
    owners += [pxla.MeshExecutable, mlir.ModuleContext, _jax.Device, _jax.Client, xla_client]
    jax.devices()
    before = [dict(vars(owner)) for owner in owners]
    session = Session(Options(gpus="2xV100", clock="real"))
    session.attach("jax")
    jnp.ones(3).block_until_ready()
    session.end()
    changed = [
        (owner, name)
        for owner, old in zip(owners, before, strict=True)
        for name in vars(owner).keys() | old.keys()
        if vars(owner).get(name) is not old.get(name)
    ]
    assert not changed
    assert memoryview(np.asarray(jnp.ones(3))).nbytes == 12
    assert jax.devices() == jax.devices("cpu")


def test_an_emulation_inside_another_is_refused(session):
    jax.devices()
    inner = Session(Options(gpus="1xV100", clock="real"))
    with pytest.raises(InstallError, match="already"):
        inner.attach("jax")


def test_the_report_says_which_rule_compiled(session):
    jax.jit(lambda x: x + 1)(jnp.ones(4))
    by = session.trace.facts["versions"]["jit of JAX by"]
    assert by == "windtunnel's rule of fusion, memory inside not counted"
    assert f"jit of JAX by: {by}" in " ".join(text.render(session.trace.canonical(), []).split())


def test_nothing_of_this_version_is_misread(monkeypatch):
    met = []
    monkeypatch.setattr(signatures, "_guarded", lambda ours, known, stock, wanted: met.append(stock) or ours)
    session = Session(Options(gpus="2xV100", clock="real"))
    session.attach("jax")
    session.end()
    assert met == []
