"""TensorFlow on emulated GPUs: devices, tensors, copies, kernels, memory, functions, several devices, and the end."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from windtunnel.errors import InstallError, UnsupportedError
from windtunnel.options import Options
from windtunnel.seam import signatures
from windtunnel.session import Session
from windtunnel.trace.operation import Kind
from windtunnel.train.tensorflow import Trainer

GPU = "/job:localhost/replica:0/task:0/device:GPU:{}"
CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def kinds(session, kind):
    """The records of one kind."""
    return [record for record in session.trace if record.kind == kind]


def names(session, kind, begin=0):
    """(device, name) of each record of one kind."""
    return [(record.lane.device, record.signature.name) for record in kinds(session, kind)][begin:]


# mission 11, 12, 21
def test_devices_are_the_models_gpus(session):
    gpus = tf.config.list_physical_devices("GPU")
    assert [gpu.name for gpu in gpus] == ["/physical_device:GPU:0", "/physical_device:GPU:1"]
    assert len(tf.config.list_physical_devices()) == 3
    assert [d.name for d in tf.config.list_logical_devices()] == ["/device:CPU:0", "/device:GPU:0", "/device:GPU:1"]
    details = tf.config.experimental.get_device_details(gpus[0])
    assert details == {"device_name": "Tesla V100-SXM2-16GB", "compute_capability": (7, 0)}


# mission 10, 26, 29
def test_the_local_devices_are_listed_with_their_memory(session):
    from tensorflow.python.client import device_lib

    assert tf.test.gpu_device_name() == "/device:GPU:0"
    names = [device.name for device in device_lib.list_local_devices()]
    assert names == ["/device:CPU:0", "/device:GPU:0", "/device:GPU:1"]
    last = device_lib.list_local_devices()[-1]
    assert last.device_type == "GPU"
    assert 14 << 30 < last.memory_limit < 16 << 30
    assert last.physical_device_desc == "device: 1, name: Tesla V100-SXM2-16GB, compute capability: 7.0"


def test_soft_placement_takes_the_first_gpu_for_one_that_is_not_there(session):
    with tf.device("/GPU:5"):
        assert tf.zeros(3).device.endswith("GPU:0")
        assert tf.function(lambda: tf.zeros(3) + 1)().device.endswith("GPU:0")
    tf.config.set_soft_device_placement(False)
    try:
        refused = pytest.raises(tf.errors.InvalidArgumentError, match="Could not satisfy device specification '/GPU:5'")
        with refused, tf.device("/GPU:5"):
            tf.zeros(3)
    finally:
        tf.config.set_soft_device_placement(True)


def test_tensors_are_made_on_the_first_gpu_unless_told(session):
    assert tf.constant([1, 2, 3]).device == GPU.format(0)
    assert tf.constant([1.0]).backing_device == GPU.format(0)
    for name in ("/GPU:1", "gpu:1", "/device:GPU:1", GPU.format(1), tf.config.LogicalDevice("/device:GPU:1", "GPU")):
        with tf.device(name):
            assert tf.ones(3).device == GPU.format(1)
    with tf.device("/CPU:0"):
        assert tf.ones(3).device == CPU
        with tf.device(None):
            assert tf.ones(3).device == GPU.format(0)
    assert tf.Variable([1.0]).device == GPU.format(0)


def test_other_threads_have_the_same_default(session):
    found = []
    thread = threading.Thread(target=lambda: found.append(tf.ones(3).device))
    thread.start()
    thread.join()
    assert found == [GPU.format(0)]


# mission 28, 34, 35
def test_copies_between_devices_are_silent_and_seen(session):
    with tf.device("/GPU:0"):
        x = tf.ones(1024)
    with tf.device("/GPU:1"):
        y = tf.ones(1024)
        z = tf.identity(x)
        same = x
    assert same is x
    assert z.device == GPU.format(1)
    begin = len(kinds(session, Kind.COPY))
    assert (x + y).device == GPU.format(0)
    copied = kinds(session, Kind.COPY)[begin:]
    assert [(record.signature.name, record.value) for record in copied] == [("Memcpy PtoP (Device -> Device)", 4096)]


# mission 46
@pytest.mark.parametrize("read", [lambda x: x.numpy(), np.asarray, repr, lambda x: np.stack([x])])
def test_reading_values_is_a_blocking_copy(session, read):
    x = tf.ones(1024)
    begin = len(kinds(session, Kind.COPY))
    read(x)
    copied = kinds(session, Kind.COPY)[begin:]
    assert [(record.signature.name, record.value) for record in copied] == [("Memcpy DtoH (Device -> Pageable)", 4096)]
    assert kinds(session, Kind.SYNCHRONIZE)[-1].site.file.endswith("test_seam.py")


def test_operations_and_functions_are_kernels(session):
    x = tf.ones((64, 64))
    begin = len(kinds(session, Kind.KERNEL))
    tf.matmul(x, x)
    product = kinds(session, Kind.KERNEL)[begin]
    assert (product.signature.name, product.signature.flops) == ("MatMul", 2 * 64**3)

    @tf.function
    def step(x):
        return tf.tanh(x @ x) + 1.0

    begin = len(kinds(session, Kind.KERNEL))
    step(x)
    step(x)
    assert names(session, Kind.KERNEL, begin) == [(0, "MatMul"), (0, "Tanh"), (0, "AddV2")] * 2


def test_a_functions_own_devices_are_kept(session):
    @tf.function
    def both(x):
        with tf.device("/GPU:0"):
            a = x * 2.0
        with tf.device("/GPU:1"):
            b = tf.exp(x)
        return a, b

    begin = len(kinds(session, Kind.KERNEL))
    _, b = both(tf.ones(8))
    np.testing.assert_allclose(b.numpy(), np.exp(np.ones(8)), rtol=1e-6)
    assert {(0, "Mul"), (1, "Exp")} <= set(names(session, Kind.KERNEL, begin))


# mission 32
def test_memory_follows_tensors_and_variables(session):
    before = tf.config.experimental.get_memory_info("GPU:1")["current"]
    with tf.device("/GPU:1"):
        x = tf.ones((1000, 1000))
        v = tf.Variable(x * 2)
    assert tf.config.experimental.get_memory_info("GPU:1")["current"] - before >= 8_000_000
    del x
    assert 4_000_000 <= tf.config.experimental.get_memory_info("GPU:1")["current"] - before < 8_000_000
    del v
    assert tf.config.experimental.get_memory_info("GPU:1")["current"] - before < 4_000_000
    assert tf.config.experimental.get_memory_info("GPU:1")["peak"] >= 8_000_000


# mission 33
def test_too_large_is_tensorflows_own_error(session):
    with pytest.raises(tf.errors.ResourceExhaustedError, match=r"shape\[100000,100000\] and type float on .*GPU:0 by"):
        tf.ones((100_000, 100_000))


# mission 128
def test_memory_settings_are_kept(session):
    gpus = tf.config.list_physical_devices("GPU")
    assert tf.config.experimental.get_memory_growth(gpus[0]) is None
    tf.ones(1)
    with pytest.raises(RuntimeError, match="cannot be modified after being initialized"):
        tf.config.experimental.set_memory_growth(gpus[0], True)
    part = tf.config.LogicalDeviceConfiguration(memory_limit=1024)
    with pytest.raises(UnsupportedError, match="splitting an emulated GPU"):
        tf.config.set_logical_device_configuration(gpus[0], [part, part])
    tf.config.set_logical_device_configuration(gpus[0], [part])
    with pytest.raises(tf.errors.ResourceExhaustedError):
        tf.ones((20_000, 20_000))


def test_gradients_are_those_of_the_cpu(session):
    data = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)

    def gradient(device):
        with tf.device(device):
            x = tf.Variable(data)
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(tf.nn.softmax(x @ x) ** 2)
            return tape.gradient(y, x)

    on_gpu = gradient("/GPU:1")
    assert on_gpu.device == GPU.format(1)
    np.testing.assert_array_equal(on_gpu.numpy(), gradient("/CPU:0").numpy())


# mission 50, 54, 120
def test_mirrored_strategy_trains_on_both(session):
    # One strategy in a process: TensorFlow gives the collectives of a second one the same keys, on CPUs at least.
    strategy = Trainer(max_epochs=1, num_gpus=2).strategy
    assert strategy.num_replicas_in_sync == 2
    inputs = np.random.default_rng(0).normal(size=(128, 4)).astype(np.float32)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1)])
        model.compile(optimizer=tf.keras.optimizers.Adam(0.05), loss="mse")
    history = model.fit(inputs, inputs.sum(1, keepdims=True), batch_size=32, epochs=5, verbose=0).history["loss"]
    assert history[-1] < history[0]
    assert {device for device, name in names(session, Kind.KERNEL) if name == "MatMul"} == {0, 1}
    devices = [value.device for value in model.weights[0].value.values]
    assert devices == [GPU.format(0), GPU.format(1)]


def test_a_plain_keras_fit_uses_the_first_gpu(session):
    inputs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    begin = len(kinds(session, Kind.KERNEL))
    model.fit(inputs, inputs.sum(1, keepdims=True), batch_size=16, epochs=2, verbose=0)
    products = [record for record in kinds(session, Kind.KERNEL)[begin:] if record.signature.name == "MatMul"]
    assert {record.lane.device for record in products} == {0}
    assert products[0].signature.shapes[0] == (16, 4)


def test_everything_is_put_back():
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager import context
    from tensorflow.python.framework import constant_op, ops

    owners = [context.Context, context._EagerDeviceContext, ops.EagerTensor, ops._EagerTensorBase, ops.Operation]
    owners += [ops._UserDeviceSpec, constant_op, pywrap_tfe, threading.Thread]
    before = [dict(vars(owner)) for owner in owners]
    session = Session(Options(gpus="2xV100", clock="real"))
    session.attach("tensorflow")
    tf.ones(3).numpy()
    session.end()
    changed = [
        (owner, name)
        for owner, old in zip(owners, before, strict=True)
        for name in vars(owner).keys() | old.keys()
        if vars(owner).get(name) is not old.get(name)
    ]
    assert not changed
    assert tf.ones(3).device == CPU
    assert tf.config.list_physical_devices("GPU") == []


def test_too_many_gpus_after_the_start_are_refused():
    tf.ones(1)
    session = Session(Options(gpus="8xV100", clock="real"))
    with pytest.raises(InstallError, match="TensorFlow has already started with 3 logical CPUs"):
        session.attach("tensorflow")
    session.end()


def test_nothing_of_this_version_is_misread(monkeypatch):
    met = []
    monkeypatch.setattr(signatures, "_guarded", lambda ours, known, stock, wanted: met.append(stock) or ours)
    session = Session(Options(gpus="2xV100", clock="real"))
    session.attach("tensorflow")
    session.end()
    assert met == []
