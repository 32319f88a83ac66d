"""`d2l.torch`: the interface of the book's section "Object-Oriented Design for Implementation", with GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, Protocol

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from windtunnel.libraries import refuse
from windtunnel.libraries.d2l import INSTEAD
from windtunnel.torch import cpu, gpu, num_gpus, try_all_gpus, try_gpu
from windtunnel.train.board import Board as ProgressBoard
from windtunnel.train.hooks import HyperParameters, add_to_class

__all__ = [
    "DataModule",
    "HyperParameters",
    "Module",
    "ProgressBoard",
    "Trainer",
    "add_to_class",
    "cpu",
    "gpu",
    "num_gpus",
    "try_all_gpus",
    "try_gpu",
]

Batch = Sequence[torch.Tensor]


class Batches(Protocol):
    """A DataLoader, or a sequence of batches."""

    def __iter__(self) -> Iterator[Batch]: ...
    def __len__(self) -> int: ...


def __getattr__(name: str) -> NoReturn:
    refuse("d2l 1.0.3", "d2l.torch", name, INSTEAD)


class Module(nn.Module, HyperParameters):
    """A network `net` with its loss, its optimizer and its board."""

    trainer: Trainer
    net: Callable[..., torch.Tensor]

    def __init__(self, plot_train_per_epoch: int = 2, plot_valid_per_epoch: int = 1) -> None:
        super().__init__()
        self.plot_train_per_epoch = plot_train_per_epoch
        self.plot_valid_per_epoch = plot_valid_per_epoch
        self.board = ProgressBoard()

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Apply the network."""
        return self.net(X)

    def loss(self, y_hat: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of a batch, which each model defines."""
        raise NotImplementedError

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer, which each model defines."""
        raise NotImplementedError

    def plot(self, key: str, value: torch.Tensor, train: bool) -> None:
        """Add a value to the board, which reads it on the host."""
        trainer = self.trainer
        if train:
            x = trainer.train_batch_idx / trainer.num_train_batches
            every = trainer.num_train_batches / self.plot_train_per_epoch
        else:
            x = trainer.epoch + 1
            every = trainer.num_val_batches / self.plot_valid_per_epoch
        self.board.draw(x, value.detach().cpu().item(), f"{'train' if train else 'val'}_{key}", every_n=int(every))

    def training_step(self, batch: Batch) -> torch.Tensor:
        """The loss of a batch (inputs..., targets)."""
        value = self.loss(self(*batch[:-1]), batch[-1])
        self.plot("loss", value, train=True)
        return value

    def validation_step(self, batch: Batch) -> None:
        """The same of a batch that is not trained on."""
        self.plot("loss", self.loss(self(*batch[:-1]), batch[-1]), train=False)


class DataModule(HyperParameters):
    """Data for training and validation; a subclass sets `batch_size` and defines `get_dataloader`."""

    batch_size: int

    def __init__(self, root: str = "../data", num_workers: int = 4) -> None:
        self.save_hyperparameters()

    def get_dataloader(self, train: bool) -> Batches:
        """The batches for training, or those for validation."""
        raise NotImplementedError

    def train_dataloader(self) -> Batches:
        """The batches for training."""
        return self.get_dataloader(train=True)

    def val_dataloader(self) -> Batches:
        """The batches for validation."""
        return self.get_dataloader(train=False)

    def get_tensorloader(
        self, tensors: Sequence[torch.Tensor], train: bool, indices: slice = slice(0, None)
    ) -> Batches:
        """Batches of these rows of tensors."""
        rows = TensorDataset(*(tensor[indices] for tensor in tensors))
        return DataLoader(rows, self.batch_size, shuffle=train)


class Trainer(HyperParameters):
    """Trains a `Module` with the batches of a `DataModule`, or of any sequence."""

    max_epochs: int
    gradient_clip_val: float
    gpus: list[torch.device]
    model: Module
    epoch = train_batch_idx = val_batch_idx = 0

    def __init__(self, max_epochs: int, num_gpus: int = 0, gradient_clip_val: float = 0) -> None:
        self.save_hyperparameters()
        self.gpus = [gpu(i) for i in range(min(num_gpus, torch.cuda.device_count()))]

    def prepare_data(self, data: DataModule | Sequence[Batch]) -> None:
        """Ask for the batches."""
        self.train_dataloader: Batches = data if isinstance(data, Sequence) else data.train_dataloader()
        self.val_dataloader: Batches | None = None if isinstance(data, Sequence) else data.val_dataloader()
        self.num_train_batches = len(self.train_dataloader)
        self.num_val_batches = len(self.val_dataloader) if self.val_dataloader is not None else 0

    def prepare_model(self, model: Module) -> None:
        """Keep the model, on the first GPU in use."""
        model.trainer = self
        model.board.xlim = [0, self.max_epochs]
        if self.gpus:
            model.to(self.gpus[0])
        self.model = model

    def prepare_batch(self, batch: Batch) -> Batch:
        """The batch on the first GPU in use."""
        return [part.to(self.gpus[0]) for part in batch] if self.gpus else batch

    def fit(self, model: Module, data: DataModule | Sequence[Batch]) -> None:
        """Train for `max_epochs`."""
        self.prepare_data(data)
        self.prepare_model(model)
        self.optim = model.configure_optimizers()
        self.epoch = self.train_batch_idx = self.val_batch_idx = 0
        for epoch in range(self.max_epochs):
            self.epoch = epoch
            self.fit_epoch()

    def fit_epoch(self) -> None:
        """Train on each batch once, then validate."""
        self.model.train()
        for batch in self.train_dataloader:
            loss = self.model.training_step(self.prepare_batch(batch))
            self.optim.zero_grad()
            with torch.no_grad():
                loss.backward()
                if self.gradient_clip_val > 0:
                    self.clip_gradients(self.gradient_clip_val, self.model)
                self.optim.step()
            self.train_batch_idx += 1
        if self.val_dataloader is None:
            return
        self.model.eval()
        for batch in self.val_dataloader:
            with torch.no_grad():
                self.model.validation_step(self.prepare_batch(batch))
            self.val_batch_idx += 1

    def clip_gradients(self, grad_clip_val: float, model: nn.Module) -> None:
        """Scale the gradients so that their common norm is at most `grad_clip_val`, which the host looks at."""
        gradients = [one.grad for one in model.parameters() if one.requires_grad and one.grad is not None]
        norm = torch.sqrt(sum((torch.sum(gradient**2) for gradient in gradients), start=torch.zeros(())))
        if norm > grad_clip_val:
            for gradient in gradients:
                gradient[:] *= grad_clip_val / norm
