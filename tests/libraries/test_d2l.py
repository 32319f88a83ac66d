"""The stand-in for d2l: what programs that extend the book's classes compute, on the CPU and on emulated GPUs."""

import pytest
import torch
from torch import nn

from windtunnel import emulate
from windtunnel.libraries.d2l import torch as d2l


class Line(d2l.Module):
    """Linear regression, as the book's readers write it."""

    def __init__(self, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Linear(3, 1)
        nn.init.zeros_(self.net.weight)
        nn.init.zeros_(self.net.bias)

    def loss(self, y_hat, y):
        return nn.functional.mse_loss(y_hat, y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Numbers(d2l.DataModule):
    """Sums of three numbers."""

    def __init__(self, batch_size=8):
        super().__init__()
        self.save_hyperparameters()
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(48, 3, generator=generator)
        self.y = self.x.sum(1, keepdim=True)

    def get_dataloader(self, train):
        return self.get_tensorloader((self.x, self.y), False, slice(0, 32) if train else slice(32, None))


def by_hand(clip):
    """The weights of the same training without d2l."""
    data, weight, bias = Numbers(), torch.zeros(1, 3, requires_grad=True), torch.zeros(1, requires_grad=True)
    for _ in range(2):
        for x, y in data.train_dataloader():
            loss = nn.functional.mse_loss(x @ weight.T + bias, y)
            gradients = torch.autograd.grad(loss, (weight, bias))
            norm = torch.sqrt(sum((gradient**2).sum() for gradient in gradients))
            scale = clip / norm if clip and norm > clip else 1.0
            with torch.no_grad():
                weight -= 0.1 * gradients[0] * scale
                bias -= 0.1 * gradients[1] * scale
    return weight.detach()


@pytest.mark.parametrize("clip", [0, 0.5])
def test_training_is_that_of_a_loop_by_hand(clip):
    model, trainer = Line(), d2l.Trainer(max_epochs=2, gradient_clip_val=clip)
    trainer.fit(model, Numbers())
    torch.testing.assert_close(model.net.weight.detach(), by_hand(clip))
    assert (trainer.epoch, trainer.train_batch_idx, trainer.val_batch_idx) == (1, 8, 4)
    assert [len(model.board.curves[label]) for label in ("train_loss", "val_loss")] == [4, 2]
    assert model.board.xlim == [0, 2]


def test_training_on_an_emulated_gpu_is_the_same():
    with emulate("2xV100"):
        model, trainer = Line(), d2l.Trainer(max_epochs=2, num_gpus=8, gradient_clip_val=0.5)
        assert trainer.gpus == [d2l.gpu(0), d2l.gpu(1)]
        trainer.fit(model, Numbers())
        assert str(model.net.weight.device) == "cuda:0"
        torch.testing.assert_close(model.net.weight.detach().cpu(), by_hand(0.5))


def test_what_a_model_must_define():
    for name in ("loss", "configure_optimizers"):
        with pytest.raises(NotImplementedError):
            getattr(d2l.Module(), name)(*[None] * (2 if name == "loss" else 0))
