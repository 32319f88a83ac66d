import numpy
from mxnet.gluon import nn


class Scratch(d2l.Module):
    """Linear regression from scratch: plain arrays, a plain update."""

    def __init__(self):
        super().__init__()
        self.w = np.zeros((3, 1))
        self.b = np.zeros(1)
        self.w.attach_grad()
        self.b.attach_grad()

    def forward(self, x):
        return np.dot(x, self.w) + self.b

    def configure_optimizers(self):
        return self

    def step(self, _):
        for parameter in (self.w, self.b):
            parameter -= 0.1 * parameter.grad


class Concise(d2l.Module):
    """The same with a layer."""

    def __init__(self):
        super().__init__()
        self.net = nn.Dense(1)
        self.net.initialize()


inputs = numpy.random.RandomState(0).normal(size=(64, 3)).astype("float32")
batches = [(np.array(x), np.array(x.sum(1, keepdims=True))) for x in numpy.split(inputs, 4)]
for model in (Scratch(), Concise()):
    trainer = d2l.Trainer(max_epochs=20, num_gpus=1)
    history = trainer.fit(model, batches)
    print(model.trainer is trainer, trainer.model is model, model.board.xlim, [a.ctx for a in trainer.prepare_batch(batches[0])])
    print(history[-1]["train_loss"] < history[0]["train_loss"] / 10)
print(Scratch.__name__, model.net.weight.data().ctx)
print(d2l.Trainer(max_epochs=1, num_gpus=8, gradient_clip_val=1).gpus, d2l.Trainer(max_epochs=1).gpus)
