"""windtunnel.train.jax: the same numbers on one GPU, on two, and on the CPU."""

import jax
import numpy as np
import optax
import pytest
from flax import linen as nn

from windtunnel import jax as wt
from windtunnel.errors import UsageError
from windtunnel.trace.operation import Kind
from windtunnel.train.jax import Trainer

INPUTS = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
BATCHES = [(x, x.sum(1, keepdims=True)) for x in np.split(INPUTS, [16, 32, 48])]  # the last one is smaller
MODEL = nn.Sequential([nn.Dense(8), nn.relu, nn.Dense(1)])


def loss(outputs, targets):
    """The mean squared error."""
    return ((outputs - targets) ** 2).mean()


def train(num_gpus, **options):
    """Losses by epoch after training."""
    trainer = Trainer(max_epochs=5, num_gpus=num_gpus, **options)
    history = trainer.fit(MODEL, BATCHES, BATCHES[:1], loss=loss, optimizer=optax.adam(0.05))
    return trainer, [record["train_loss"] for record in history], [record["val_loss"] for record in history]


# mission 57, 58, 59, 62, 117
def test_one_two_and_no_gpus_learn_the_same(session):
    trainer, none, _ = train(0)
    assert wt.device_of(trainer.params) == wt.cpu()
    trainer, one, validation = train(1)
    assert wt.device_of(trainer.params) == wt.gpu(0)
    both, two, _ = train(8)
    assert len(both.gpus) == 2
    np.testing.assert_allclose(one, none, rtol=1e-4)
    np.testing.assert_allclose(two, none, rtol=1e-4)
    assert one[-1] < one[0] / 2
    assert validation[-1] < validation[0]
    assert both.predict(INPUTS).shape == (60, 1)


# mission 48, 49
def test_an_epoch_reads_from_the_device_once(session):
    trainer = Trainer(max_epochs=3, num_gpus=1)
    trainer.fit(MODEL, BATCHES, loss=loss, optimizer=optax.sgd(0.1))
    waits = [record for record in session.trace if record.kind == Kind.SYNCHRONIZE]
    assert len(waits) == 3 * 2  # the sum and the number of losses


def test_clipping_bounds_an_update(session):
    trainer = Trainer(max_epochs=1, num_gpus=1, gradient_clip_val=1e-3)
    before = MODEL.init(jax.random.split(jax.random.PRNGKey(0))[1], INPUTS[:1])
    trainer.fit(MODEL, BATCHES[:1], loss=loss, optimizer=optax.sgd(1.0))
    change = jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), trainer.params, before)
    assert 0 < float(optax.tree.norm(change)) <= 1.001e-3


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(UsageError, match="no batch to train on"):
        Trainer(max_epochs=1).fit(MODEL, [], loss=loss, optimizer=optax.sgd(0.1))
    normalised = nn.Sequential([nn.Dense(2), nn.BatchNorm(use_running_average=False)])
    with pytest.raises(UsageError, match="batch_stats"):
        Trainer(max_epochs=1).fit(normalised, BATCHES, loss=loss, optimizer=optax.sgd(0.1))
