"""What a user writes: data, loaders, a model, losses, optimizers, schedules. Both loops get it, built anew for each."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from tools.differential.trainer.space import Config

FEATURES = 4
Pair = collections.namedtuple("Pair", "x y")


@dataclasses.dataclass
class Batch:
    """A dataclass that prepares itself once, and carries what its `__init__` does not know."""

    x: torch.Tensor
    y: torch.Tensor
    names: list[str]
    weight: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.x = self.x * 2
        self.weight = torch.ones(len(self.x))


class Doubling(TensorDataset):
    """A TensorDataset whose samples are not its rows."""

    def __getitem__(self, index: Any) -> Any:
        x, y = super().__getitem__(index)
        return x * 2, y


class Records(Dataset[Any]):
    """Samples in the form that a configuration asks for; with `by` whole batches of so many rows."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, form: str, by: int = 0) -> None:
        self.x, self.y, self.form, self.by = x, y, form, by

    def __len__(self) -> int:
        return -(-len(self.x) // self.by) if self.by else len(self.x)

    def __getitem__(self, index: int) -> Any:
        if self.by:
            rows = slice(index * self.by, (index + 1) * self.by)
            return batch_of([record(self.x, self.y, self.form, i) for i in range(len(self.x))[rows]], self.form)
        return record(self.x, self.y, self.form, index)


class Stream(IterableDataset[Any]):
    """The records as a stream, shuffled by PyTorch's generator where `shuffle` is set."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, form: str, shuffle: bool) -> None:
        self.x, self.y, self.form, self.shuffle = x, y, form, shuffle

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(len(self.x)).tolist() if self.shuffle else range(len(self.x))
        return (record(self.x, self.y, self.form, i) for i in order)


def record(x: torch.Tensor, y: torch.Tensor, form: str, index: int) -> Any:
    if form in ("dict", "dataclass"):
        return {"x": x[index], "y": y[index], "names": str(index)}
    return Pair(x[index], y[index]) if form == "namedtuple" else (x[index], y[index])


def batch_of(records: list[Any], form: str) -> Any:
    joined = default_collate(records)
    if form == "dict":
        joined["share"] = 0.5 + 0.25 * (len(records) % 3)  # a number, not a tensor
    return Batch(**joined) if form == "dataclass" else joined


class Collate:
    def __init__(self, form: str) -> None:
        self.form = form

    def __call__(self, records: list[Any]) -> Any:
        return batch_of(records, self.form)


class Reversed(SequentialSampler):
    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self) - 1, -1, -1))


class Rotated(RandomSampler):
    def __iter__(self) -> Iterator[int]:
        order = list(range(len(self)))
        return iter(order[len(order) // 3 :] + order[: len(order) // 3])


class ByEpoch(Sampler[int]):
    """An order that depends on the epoch alone, as DistributedSampler has it."""

    def __init__(self, rows: int) -> None:
        self.rows, self.epoch, self.told = rows, 0, []

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.told.append(epoch)

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(self.epoch))
        return iter(order.tolist())


class FixedBatches(Sampler[list[int]]):
    """Batches of uneven sizes."""

    def __init__(self, rows: int, size: int, shuffle: bool) -> None:
        self.rows, self.size, self.shuffle = rows, size, shuffle

    def __len__(self) -> int:
        return len(self._cuts())

    def _cuts(self) -> list[range]:
        cuts, begin = [], 0
        while begin < self.rows:
            size = self.size + len(cuts) % 2
            cuts.append(range(begin, min(begin + size, self.rows)))
            begin += size
        return cuts

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.rows).tolist() if self.shuffle else list(range(self.rows))
        return iter([[order[i] for i in cut] for cut in self._cuts()])


class BatchesOfOurs(BatchSampler):
    """A subclass that changes nothing but its class."""


class ShufflingObject:
    """Batches in another order each time, drawn from PyTorch's generator."""

    def __init__(self, batches: list[Any], shuffle: bool) -> None:
        self.batches, self.shuffle = batches, shuffle

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(len(self.batches)).tolist() if self.shuffle else range(len(self.batches))
        return iter([self.batches[i] for i in order])


class OneBuffer:
    """Yields the same two tensors again and again, filled anew, as readers of large files do."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, size: int, pinned: bool) -> None:
        self.x, self.y, self.size, self.pinned = x, y, size, pinned

    def __iter__(self) -> Iterator[Any]:
        x, y = self.x[: self.size].clone(), self.y[: self.size].clone()
        if self.pinned:
            x, y = x.pin_memory(), y.pin_memory()
        for begin in range(0, len(self.x), self.size):
            rows = min(self.size, len(self.x) - begin)
            x[:rows].copy_(self.x[begin : begin + rows])
            y[:rows].copy_(self.y[begin : begin + rows])
            yield x[:rows], y[:rows]


class Data:
    """The user's data of one configuration. `source` is what is handed to the loop; the parts serve the comparison."""

    def __init__(self, config: Config, rank: int = 0) -> None:
        self.config = config
        generator = torch.Generator().manual_seed(config.seed)
        self.x = torch.randn(config.rows, FEATURES, generator=generator)
        self.y = self.x[:, :1] * 0.5 + 0.1 * torch.randn(config.rows, 1, generator=generator)
        self.val_x = torch.randn(7, FEATURES, generator=generator)
        self.val_y = self.val_x[:, :1] * 0.5
        self.original = [tensor.clone() for tensor in self.tensors()]
        self.generator: torch.Generator | None = None
        self.rank = rank
        self.held: list[Any] = []  # batches that the user keeps, so that it shows who wrote into them

    def tensors(self) -> list[torch.Tensor]:
        return [self.x, self.y, self.val_x, self.val_y]

    def training(self) -> Any:
        """What the plain loop iterates over: a DataLoader, batches, or the two tensors."""
        config, x, y = self.config, self.x, self.y
        if config.data in ("Tensors", "raw tensors", "TensorDataset"):
            return x, y
        if config.data == "TensorDataset subclass":
            return DataLoader(Doubling(x, y), config.batch_size, shuffle=True)
        if config.data == "iterable data set":
            stream = Stream(x, y, config.form, config.shuffle)
            return DataLoader(stream, config.batch_size, collate_fn=Collate(config.form))
        if config.data in ("list", "object that shuffles", "generator"):
            self.held = self.batches(x, y, config.batch_size)
            if config.data == "generator":
                return (batch for batch in self.held)
            return self.held if config.data == "list" else ShufflingObject(self.held, config.shuffle)
        if config.data == "object with one buffer":
            return OneBuffer(x, y, config.batch_size, config.pinned and config.num_gpus > 0)
        return self._loader()

    def batches(self, x: torch.Tensor, y: torch.Tensor, size: int) -> list[Any]:
        records = [record(x, y, self.config.form, i) for i in range(len(x))]
        return [batch_of(records[i : i + size], self.config.form) for i in range(0, len(x), size)]

    def _loader(self) -> DataLoader[Any]:
        config = self.config
        plain = config.form == "tuple" and config.seed % 2
        data: Any = TensorDataset(self.x, self.y) if plain else Records(self.x, self.y, config.form)
        options: dict[str, Any] = {"num_workers": config.workers, "collate_fn": Collate(config.form)}
        if plain:
            del options["collate_fn"]
        if config.data == "batches of the data set":
            whole = Records(self.x, self.y, config.form, config.batch_size)
            return DataLoader(whole, batch_size=None, shuffle=config.shuffle)
        if config.data == "batch sampler":
            return DataLoader(data, batch_sampler=self._batch_sampler(), **options)
        options |= {"batch_size": config.batch_size, "drop_last": config.drop_last}
        if config.data == "distributed sampler":
            sampler = DistributedSampler(data, config.world, self.rank, shuffle=config.shuffle, seed=3)
            return DataLoader(data, sampler=sampler, **options)
        return DataLoader(data, **options, **self._sampler())

    def _batch_sampler(self) -> Any:
        config = self.config
        if config.sampler == "subclass":
            return BatchesOfOurs(RandomSampler(self.x), config.batch_size, config.drop_last)
        return FixedBatches(config.rows, config.batch_size, config.sampler == "shuffling")

    def _sampler(self) -> dict[str, Any]:
        rows = self.config.rows
        kind = self.config.sampler
        if kind == "shuffle, own generator":
            self.generator = torch.Generator().manual_seed(self.config.seed + 5)
            return {"shuffle": True, "generator": self.generator}
        if kind in ("none", "shuffle"):
            return {"shuffle": kind == "shuffle"}
        samplers = {
            "replacement": lambda: RandomSampler(self.x, replacement=True),
            "num_samples": lambda: RandomSampler(self.x, num_samples=max(1, rows // 2)),
            "subset": lambda: SubsetRandomSampler(range(0, rows, 2)),
            "weighted": lambda: WeightedRandomSampler(torch.arange(1.0, rows + 1), rows + 1),
            "RandomSampler subclass": lambda: Rotated(self.x),
            "SequentialSampler subclass": lambda: Reversed(self.x),
            "set_epoch": lambda: ByEpoch(rows),
        }
        return {"sampler": samplers[kind]()}

    def validating(self) -> Any:
        kind = self.config.validation
        if kind == "loader":
            data = Records(self.val_x, self.val_y, self.config.form)
            return DataLoader(data, 3, collate_fn=Collate(self.config.form))
        if kind == "list":
            return self.batches(self.val_x, self.val_y, 3)
        return None if kind == "none" else (self.val_x, self.val_y)

    def predicting(self) -> Any:
        kind = self.config.predict
        if kind == "loader":
            return DataLoader(TensorDataset(self.val_x), 3)
        if kind == "distributed sampler":
            data = TensorDataset(self.val_x)
            return DataLoader(data, 3, sampler=DistributedSampler(data, self.config.world, self.rank, shuffle=False))
        if kind == "list":
            return [self.val_x[i : i + 3] for i in range(0, len(self.val_x), 3)]
        return self.val_x


class KnownLinear(nn.Linear):
    """What a lazy layer becomes: its weights depend on its shape alone."""

    def reset_parameters(self) -> None:
        if self.in_features:
            with torch.no_grad():
                generator = torch.Generator().manual_seed(self.in_features)
                self.weight.copy_(torch.randn(self.weight.shape, generator=generator) * 0.3)
                self.bias.zero_()


class LazyKnownLinear(nn.LazyLinear):
    cls_to_become = KnownLinear

    def reset_parameters(self) -> None:
        if not self.has_uninitialized_params() and self.in_features:
            KnownLinear.reset_parameters(self)


class Net(nn.Module):
    """A network of a few dozen weights, with the parts that a configuration asks for."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        super().__init__()
        self.parts = parts
        wide = 6
        if "sparse" in parts:
            self.table = nn.Embedding(7, FEATURES, sparse=True)
        if "conv" in parts:
            self.conv = nn.Conv2d(1, 1, (1, 3), padding=(0, 1))
        self.first = LazyKnownLinear(wide) if "lazy" in parts else nn.Linear(FEATURES, wide)
        if "norm" in parts:
            self.norm = nn.BatchNorm1d(wide)
        self.drop = nn.Dropout(0.3 if "dropout" in parts else 0.0)
        self.middle = nn.Linear(wide, wide)
        self.again = nn.Linear(wide, wide)
        if "shared" in parts:
            self.again.weight = self.middle.weight
        self.last = nn.Linear(wide, 1)
        if "buffer" in parts:
            self.register_buffer("calls", torch.zeros(()))
        if "frozen" in parts:
            self.middle.requires_grad_(False)
        if "eval norm" in parts:
            self.norm.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "in place" in self.parts:
            x.mul_(0.5)
        if "buffer" in self.parts and self.training:
            self.calls += 1
        hidden = x
        if "sparse" in self.parts:
            hidden = hidden + self.table((x[:, 0].abs() * 10).long() % 7)
        if "conv" in self.parts:
            hidden = self.conv(hidden.reshape(-1, 1, 1, FEATURES)).reshape(-1, FEATURES)
        hidden = torch.tanh(self.first(hidden))
        if "norm" in self.parts:
            hidden = self.norm(hidden)
        hidden = self.drop(hidden)
        hidden = torch.tanh(self.middle(hidden) + self.again(hidden))
        return self.last(hidden)


def make_net(config: Config, other: bool = False) -> Net:
    """The network, with weights drawn from the seed; `other` draws different ones, as a new process would."""
    torch.manual_seed(config.seed + 1000 * other)
    return Net(config.parts)


class Learned(nn.Module):
    """A loss with a parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        return (torch.exp(-self.log_scale) * (outputs - target) ** 2).mean() + self.log_scale


def large(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A loss whose scaled gradients overflow in half precision until the scale has come down."""
    return ((outputs - target) ** 2).mean() * 8


def make_loss(config: Config) -> Any:
    losses = {"mse": nn.MSELoss, "l1": nn.L1Loss, "learned": Learned, "large": lambda: large}
    return losses[config.loss]()


def step_values(net: nn.Module, batch: Any, config: Config) -> dict[str, torch.Tensor]:
    """The training step of a model with steps of its own: a loss and values beside it."""
    if isinstance(batch, dict):
        x, y, share, names = batch["x"], batch["y"], batch["share"], batch["names"]
    elif isinstance(batch, Batch):
        x, y, share, names = batch.x, batch.y, batch.weight.mean(), batch.names
    else:
        (x, y), share, names = batch, 1.0, None
    if names is not None and len(names) != len(x):
        raise ValueError(f"{len(names)} names for {len(x)} rows")
    outputs = net(x)
    loss = make_loss(config)(outputs, y) * share
    return {"loss": loss, "twice": loss * 2, "first": outputs.detach().mean(), "weight": net_weight(net)}


def net_weight(net: nn.Module) -> torch.Tensor:
    """A view of a weight, which the step then changes."""
    return net.last.bias.detach()[0]


KEYWORDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.05}),
    "momentum": (torch.optim.SGD, {"lr": 0.03, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {"lr": 0.02, "eps": 1e-2}),
    "adamw": (torch.optim.AdamW, {"lr": 0.02, "eps": 1e-2, "weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.005, "eps": 1e-2}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.05, "eps": 1e-2}),
}


def make_optimizer(config: Config, net: nn.Module, loss: Any) -> torch.optim.Optimizer:
    """An optimizer over the network and the loss, in two groups where that is asked for."""
    parameters = list(net.parameters()) + (list(loss.parameters()) if isinstance(loss, nn.Module) else [])
    if "frozen" in config.parts and config.callback == "unfreeze":
        parameters = [p for p in parameters if p.requires_grad]
    groups: Any = parameters
    if config.optimizer_as == "groups":
        groups = [{"params": parameters[:2], "lr": 0.01}, {"params": parameters[2:]}]
    kind, options = KEYWORDS[config.optimizer]
    return kind(groups, **options)


def make_scheduler(config: Config, optimizer: torch.optim.Optimizer) -> Any:
    from torch.optim import lr_scheduler

    makers = {
        "step": lambda: lr_scheduler.StepLR(optimizer, 2, 0.5),
        "lambda": lambda: lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n)),
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, 5),
        "plateau": lambda: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5),
        "one cycle": lambda: lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=200, cycle_momentum=False),
    }
    return makers[config.scheduler]() if config.scheduler in makers else None


class Keep:
    """A metric that keeps what it is given, as many of torchmetrics' own do."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(self, outputs: torch.Tensor, target: torch.Tensor) -> None:
        self.kept.append((outputs.detach(), target))

    def compute(self) -> torch.Tensor:
        return torch.stack([((outputs - target).abs()).sum() for outputs, target in self.kept]).sum()


def mae(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (outputs - target).abs().mean()


def view(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return outputs[0, 0]


CLIP_NORM, CLIP_VALUE = 0.3, 0.02


def clip_values(net: nn.Module) -> None:
    """Gradients within ± CLIP_VALUE, by hooks on the parameters."""
    for parameter in net.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient.clamp(-CLIP_VALUE, CLIP_VALUE))
