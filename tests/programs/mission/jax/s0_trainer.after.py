import numpy as np
import optax
from flax import linen as nn

trainer = d2l.Trainer(max_epochs=20, num_gpus=1, gradient_clip_val=1)
print(trainer.max_epochs, trainer.num_gpus, trainer.gradient_clip_val, len(trainer.gpus))
inputs = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
batches = [(x, x.sum(1, keepdims=True)) for x in np.split(inputs, 4)]
history = trainer.fit(nn.Dense(1), batches, loss=lambda y, t: ((y - t) ** 2).mean(), optimizer=optax.sgd(0.1))
places = {device.platform for leaf in jax.tree.leaves(trainer.params) for device in leaf.devices()}
print(places, [jax.numpy.asarray(a).devices() == {d2l.try_gpu()} for a in trainer.prepare_batch(batches[0])])
print(history[-1]["train_loss"] < history[0]["train_loss"] / 10, trainer.board.xlim)
print(d2l.Trainer(max_epochs=1, num_gpus=8).gpus == [d2l.gpu(i) for i in range(d2l.num_gpus())])
print(d2l.Trainer(max_epochs=1).gpus)
