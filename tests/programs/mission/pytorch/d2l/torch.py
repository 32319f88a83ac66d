"""The part of `d2l.torch` that the Trainer listings extend. Test-only; the names are the book's, the code is ours."""

import inspect

import torch
from torch import nn


def cpu():
    """The CPU."""
    return torch.device("cpu")


def gpu(i=0):
    """GPU number `i`."""
    return torch.device(f"cuda:{i}")


def num_gpus():
    """How many GPUs there are."""
    return torch.cuda.device_count()


def add_to_class(Class):
    """Make the decorated function a method of `Class`, which exists already."""

    def wrapper(function):
        setattr(Class, function.__name__, function)
        return function

    return wrapper


class HyperParameters:
    """Something whose arguments become its attributes."""

    def save_hyperparameters(self, ignore=()):
        """Set the caller's arguments as attributes of `self`."""
        names, _, _, values = inspect.getargvalues(inspect.currentframe().f_back)
        for name in names:
            if name != "self" and name not in ignore:
                setattr(self, name, values[name])


class ProgressBoard:
    """A board that keeps its points and draws nothing."""

    def __init__(self):
        self.xlim = None
        self.points = []

    def draw(self, x, y):
        """Keep one point."""
        self.points.append((x, y))


class Module(nn.Module, HyperParameters):
    """A network with its loss, its optimizer and its board."""

    def __init__(self):
        super().__init__()
        self.board = ProgressBoard()
        self.trainer = None

    def forward(self, X):
        """Apply the network."""
        return self.net(X)

    def training_step(self, batch):
        """The mean squared error of one batch (inputs, targets)."""
        return nn.functional.mse_loss(self(*batch[:-1]), batch[-1])

    def configure_optimizers(self):
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Trainer(HyperParameters):
    """Trains a model; the listings add the GPUs."""

    def __init__(self, max_epochs, num_gpus=0, gradient_clip_val=0):
        self.save_hyperparameters()
        if num_gpus:
            raise NotImplementedError("no GPU support yet: the listing adds it")

    def prepare_batch(self, batch):
        """The batch as it is."""
        return batch

    def prepare_model(self, model):
        """Know the model."""
        model.trainer = self
        self.model = model

    def fit(self, model, batches):
        """Train for `max_epochs` over `batches`, clip the gradients' norm when asked to."""
        self.prepare_model(model)
        optimizer = model.configure_optimizers()
        for _ in range(self.max_epochs):
            for batch in batches:
                loss = model.training_step(self.prepare_batch(batch))
                optimizer.zero_grad()
                loss.backward()
                if self.gradient_clip_val > 0:
                    nn.utils.clip_grad_norm_(model.parameters(), self.gradient_clip_val)
                optimizer.step()
