"""windtunnel.mxnet: the vocabulary on emulated GPUs and without any; and the Trainer."""

import mxnet as mx
import numpy
import pytest
from mxnet import gluon, np, npx
from mxnet.gluon import nn

from windtunnel import mxnet as wt
from windtunnel.errors import UsageError
from windtunnel.train.mxnet import Module, Trainer

npx.set_np()


# mission 21, 22, 23, 24
def test_gpus_are_counted_and_tried(session):
    assert wt.num_gpus() == 2
    assert wt.try_gpu() == wt.gpu() == npx.gpu(0)
    assert wt.try_gpu(10) == wt.cpu()
    assert wt.try_all_gpus() == wt.require_gpus(2) == [npx.gpu(0), npx.gpu(1)]
    with pytest.raises(UsageError, match="3 GPUs needed, 2 found"):
        wt.require_gpus(3)


def test_without_gpus_everything_falls_back():
    assert (wt.num_gpus(), wt.try_gpu(), wt.try_all_gpus()) == (0, wt.cpu(), [wt.cpu()])
    with pytest.raises(UsageError, match=r"0 found: MXNet 1.9.1 is a build for the CPU"):
        wt.require_gpus(1)


# mission 37, 38, 39, 50
def test_batches_and_blocks_move(session):
    batch = {"x": np.ones((4, 3)), "y": [np.zeros(4)]}
    moved = wt.to(batch, wt.gpu(1))
    assert wt.device_of(moved) == wt.gpu(1)
    assert wt.to(moved, wt.gpu(1)) is moved
    duplicate = wt.copy(moved["x"], wt.gpu(1))
    assert duplicate is not moved["x"]
    net = nn.Dense(2)
    net.initialize()
    net(batch["x"])
    assert wt.device_of(wt.to(net, wt.gpu(1))) == wt.gpu(1)
    with pytest.raises(UsageError, match=r"arrays on cpu\(0\), gpu\(1\)"):
        wt.device_of((batch, moved))


# mission 41
def test_the_policy_watches_copies(session):
    x = np.ones(3, ctx=wt.gpu(0))
    with wt.policy("error"), pytest.raises(UsageError, match=r"copies 12 bytes from gpu\(0\) to gpu\(1\)"):
        wt.to(x, wt.gpu(1))
    with wt.policy("warn"), pytest.warns(wt.DeviceCopyWarning):
        wt.to(x, wt.gpu(1))


def test_memory_and_time(session):
    before = wt.memory(wt.gpu(1)).allocated_bytes
    x = np.ones(1 << 20, ctx=wt.gpu(1))
    memory = wt.memory(wt.gpu(1))
    assert memory.allocated_bytes - before == 4 << 20
    assert memory.total_bytes - memory.free_bytes == memory.allocated_bytes
    assert wt.timer().measure(lambda: x * 2, repeats=3).median_s > 0


INPUTS = numpy.random.RandomState(0).normal(size=(60, 3)).astype("float32")


class Linear(Module):
    """One layer."""

    def __init__(self):
        super().__init__()
        self.net = nn.Dense(1)
        self.net.initialize(mx.init.Constant(0.1))


# mission 57, 58, 59, 60, 62, 117
def test_the_trainer_learns_the_same_everywhere(session):
    batches = [(np.array(x), np.array(x.sum(1, keepdims=True))) for x in numpy.split(INPUTS, [16, 32, 48])]

    def losses(num_gpus, **options):
        model = Linear()
        trainer = Trainer(max_epochs=5, num_gpus=num_gpus, **options)
        history = trainer.fit(model, batches)
        assert trainer.model is model
        assert model.trainer is trainer
        assert model.board.xlim == [0, 5]
        return [record["train_loss"] for record in history]

    alone = losses(0)
    numpy.testing.assert_allclose(losses(1), alone, rtol=1e-4)
    assert losses(8)[-1] < alone[0] / 2
    assert alone[-1] < alone[0] / 2
    assert losses(1, gradient_clip_val=1e-6)[-1] > alone[-1] * 2  # clipped to next to nothing


def test_a_plain_block_needs_an_optimizer(session):
    batches = [(np.array(INPUTS), np.array(INPUTS.sum(1, keepdims=True)))]
    net = nn.Dense(1)
    net.initialize()
    with pytest.raises(UsageError, match="has no optimizer"):
        Trainer(max_epochs=1).fit(net, batches)
    history = Trainer(max_epochs=10, num_gpus=1).fit(
        net, batches, loss=gluon.loss.L2Loss(), optimizer=("sgd", {"learning_rate": 0.2})
    )
    assert history[-1]["train_loss"] < history[0]["train_loss"] / 2
