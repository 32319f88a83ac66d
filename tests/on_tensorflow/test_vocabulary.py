"""windtunnel.tensorflow: the vocabulary on emulated GPUs and without any; and the Trainer."""

import numpy as np
import pytest
import tensorflow as tf

from windtunnel import tensorflow as wt
from windtunnel.errors import UsageError
from windtunnel.train.tensorflow import Trainer


# mission 21, 22, 23, 24
def test_gpus_are_counted_and_tried(session):
    assert wt.num_gpus() == 2
    assert wt.try_gpu() == wt.gpu() == tf.config.list_logical_devices("GPU")[0]
    assert wt.try_gpu(10) == wt.cpu() == wt.cpu(5)
    assert wt.try_all_gpus() == wt.require_gpus(2) == tf.config.list_logical_devices("GPU")
    with pytest.raises(UsageError, match="3 GPUs needed, 2 found"):
        wt.require_gpus(3)


def test_without_gpus_everything_falls_back():
    assert (wt.num_gpus(), wt.try_gpu(), wt.try_all_gpus()) == (0, wt.cpu(), [wt.cpu()])
    with pytest.raises(UsageError, match="1 GPU needed, 0 found"):
        wt.require_gpus(1)


# mission 37, 38
def test_batches_move_and_variables_do_not(session):
    with tf.device("/CPU:0"):
        batch = {"x": tf.ones((4, 3)), "y": [tf.zeros(4)]}
        v = tf.Variable(1.0)
    moved = wt.to(batch, wt.gpu(1))
    assert wt.device_of(moved) == wt.gpu(1)
    assert wt.to(moved, wt.gpu(1)) is moved
    duplicate = wt.copy(moved["x"], wt.gpu(1))
    assert duplicate is not moved["x"]
    assert wt.device_of(duplicate) == wt.gpu(1)
    assert wt.to(v, wt.cpu()) is v
    with pytest.raises(UsageError, match=r"cannot be moved: make it inside `with tf.device\('/device:GPU:0'\):`"):
        wt.to(v, wt.gpu(0))
    with pytest.raises(UsageError, match="no tensor"):
        wt.device_of([1])


# mission 41
def test_the_policy_watches_copies(session):
    with tf.device(wt.gpu(0)):
        x = tf.ones(3)
    with wt.policy("error"), pytest.raises(UsageError, match="copies 12 bytes from /device:GPU:0 to /device:GPU:1"):
        wt.to(x, wt.gpu(1))
    with wt.policy("warn"), pytest.warns(wt.DeviceCopyWarning):
        wt.to(x, wt.gpu(1))
    assert tf.config.experimental.get_device_policy() == "silent"


def test_memory_and_time(session):
    x = wt.to(tf.ones((1 << 20,)), wt.gpu(1))
    assert wt.memory(wt.gpu(1)).allocated_bytes >= 4 << 20
    assert wt.memory(wt.gpu(1)).total_bytes is None
    assert wt.memory(wt.cpu()).total_bytes > 0
    assert wt.timer().measure(lambda: x * 2, repeats=3).median_s > 0


# mission 57, 58, 62
@pytest.mark.parametrize("num_gpus", [0, 1, 8])
def test_the_trainer_trains_where_it_is_told(session, num_gpus):
    inputs = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((inputs, inputs.sum(1, keepdims=True))).batch(16)
    trainer = Trainer(max_epochs=5, num_gpus=num_gpus, gradient_clip_val=1)
    assert len(trainer.gpus) == min(num_gpus, 2)
    history = trainer.fit(
        lambda: tf.keras.Sequential([tf.keras.layers.Dense(1)]),
        data,
        data,
        loss="mse",
        optimizer=lambda: tf.keras.optimizers.SGD(0.1),
    )
    assert history[-1]["loss"] < history[0]["loss"]
    assert len(history) == 5
    assert "val_loss" in history[0]
