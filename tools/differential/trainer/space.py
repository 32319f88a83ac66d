"""The configurations that are compared: what one is made of, and how a seed draws it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

STRATEGIES = ("cpu", "gpu", "dp", "ddp", "fsdp")
WORLD = 2  # processes of ddp and fsdp

TENSOR_KINDS = ("Tensors", "raw tensors", "TensorDataset", "TensorDataset subclass")
LOADER_KINDS = ("loader", "batch sampler", "batches of the data set", "distributed sampler")
ITERABLE_KINDS = ("list", "iterable data set", "object that shuffles", "object with one buffer", "generator")
SAMPLERS = (
    "none",
    "shuffle",
    "shuffle, own generator",
    "replacement",
    "num_samples",
    "subset",
    "weighted",
    "RandomSampler subclass",
    "SequentialSampler subclass",
    "set_epoch",
)
BATCH_SAMPLERS = ("fixed", "shuffling", "subclass")


@dataclass(frozen=True)
class Config:
    """One training, as plain values. `seed` draws the data, the initial weights and every random number."""

    strategy: str = "cpu"
    seed: int = 0
    num_gpus: int = 0
    graph: bool = True
    # data
    data: str = "Tensors"
    sampler: str = "none"
    rows: int = 12
    batch_size: int = 4
    shuffle: bool = False
    drop_last: bool = False
    workers: int = 0
    pinned: bool = False
    form: str = "tuple"  # of a batch: tuple, namedtuple, dict, dataclass
    validation: str = "none"  # none, raw tensors, Tensors, loader, list
    # model
    own_steps: bool = False
    parts: tuple[str, ...] = ()  # norm, dropout, sparse, lazy, shared, frozen, in place, buffer, conv, eval norm
    loss: str = "mse"  # mse, l1, learned, large (overflows in fp16)
    # optimizer
    optimizer: str = "sgd"
    optimizer_as: str = "factory"  # factory, object, groups, configured
    clip: str = "none"  # none, norm, value
    precision: str = "fp32"
    accumulate: int = 1
    scheduler: str = "none"
    schedule_every: str = "epoch"
    # the run
    epochs: int = 2
    metrics: tuple[str, ...] = ()
    patience: int = 0  # of early stopping; 0 is none
    callback: str = "none"
    resume: str = "none"  # none, epochs, crash (after each step)
    save_every: int = 1
    log_every: int = 2
    predict: str = "none"

    @property
    def world(self) -> int:
        return WORLD if self.strategy in ("ddp", "fsdp") else 1

    @property
    def replicas(self) -> int:
        return self.num_gpus if self.strategy == "dp" else 1


def draw(strategy: str, index: int, seed: int) -> Config:
    """Configuration `index` of `strategy` under `seed`: the same on every machine."""
    rng = random.Random(f"{seed}/{strategy}/{index}")
    config = Config(strategy=strategy, seed=rng.randrange(1 << 20), num_gpus=_gpus(strategy, rng))
    for part in (_data, _model, _optimizer, _run):
        config = part(config, rng)
    return _possible(config)


def _gpus(strategy: str, rng: random.Random) -> int:
    if strategy == "dp":
        return rng.choice((2, 2, 3))
    if strategy in ("ddp", "fsdp"):
        return rng.choice((0, 1))
    return 1 if strategy == "gpu" else 0


def _often(rng: random.Random, value: str, others: tuple[str, ...], chance: float = 0.5) -> str:
    return value if rng.random() < chance else rng.choice(others)


def _data(config: Config, rng: random.Random) -> Config:
    kinds: tuple[str, ...] = TENSOR_KINDS + ("loader",) * 5 + LOADER_KINDS[1:3] + ITERABLE_KINDS
    if config.strategy in ("ddp", "fsdp"):
        kinds += ("distributed sampler",) * 2
    data = rng.choice(kinds)
    form = rng.choice(("tuple", "tuple", "namedtuple", "dict", "dataclass"))
    sampler = "none"
    if data == "loader":
        sampler = rng.choice(SAMPLERS)
    elif data == "batch sampler":
        sampler = rng.choice(BATCH_SAMPLERS)
    return replace(
        config,
        data=data,
        sampler=sampler,
        form="tuple" if data in TENSOR_KINDS else form,
        rows=rng.choice((1, 3, 7, 8, 12, 13, 20, 23)),
        batch_size=rng.choice((1, 2, 3, 4, 5, 8)),
        shuffle=rng.random() < 0.6,
        drop_last=rng.random() < 0.2,
        workers=2 if data == "loader" and rng.random() < 0.04 else 0,
        pinned=rng.random() < 0.2,
        validation=_often(rng, "none", ("raw tensors", "Tensors", "loader", "list"), 0.35),
        graph=rng.random() < 0.6,
    )


def _model(config: Config, rng: random.Random) -> Config:
    chances = {
        "norm": 0.25,
        "dropout": 0.2,
        "sparse": 0.08,
        "lazy": 0.1,
        "shared": 0.15,
        "frozen": 0.15,
        "in place": 0.1,
        "buffer": 0.15,
        "conv": 0.1,
        "eval norm": 0.08,
    }
    return replace(
        config,
        own_steps=config.form in ("dict", "dataclass") or rng.random() < 0.25,
        parts=tuple(part for part, chance in chances.items() if rng.random() < chance),
        loss=_often(rng, "mse", ("l1", "learned", "large"), 0.65),
    )


def _optimizer(config: Config, rng: random.Random) -> Config:
    ways = ("factory",) * 2 + ("object", "groups") * (config.strategy != "fsdp" or rng.random() < 0.1)
    ways += ("configured",) * 2 * config.own_steps
    return replace(
        config,
        optimizer=rng.choice(("sgd", "sgd", "momentum", "adam", "adam", "adamw", "rmsprop", "adagrad")),
        optimizer_as=rng.choice(ways),
        clip=_often(rng, "none", ("norm", "norm", "value"), 0.6),
        precision=_often(rng, "fp32", ("fp16", "bf16"), 0.7),
        accumulate=rng.choice((1, 1, 1, 2, 3)),
        scheduler=_often(rng, "none", ("step", "lambda", "cosine", "plateau", "one cycle"), 0.5),
        schedule_every=rng.choice(("epoch", "step")),
    )


def _run(config: Config, rng: random.Random) -> Config:
    resume = _often(rng, "none", ("epochs", "crash"), 0.7)
    return replace(
        config,
        epochs=rng.choice((1, 2, 2, 3)),
        metrics=tuple(name for name in ("mae", "view", "torchmetrics", "keep") if rng.random() < 0.2),
        patience=rng.choice((0, 0, 0, 0, 1, 2)),
        callback=_often(rng, "none", ("lr", "unfreeze", "freeze", "evaluate", "stop", "eval norm"), 0.65),
        resume=resume,
        save_every=rng.choice((1, 2, 3)),
        log_every=rng.choice((1, 2, 50)),
        predict=_often(rng, "none", ("raw tensors", "Tensors", "loader", "list", "distributed sampler"), 0.4),
    )


def _possible(config: Config) -> Config:
    """Without what no user could ask for, or what has no plain loop to agree with."""
    changes: dict[str, object] = {}
    parts = set(config.parts)
    if config.own_steps:
        changes |= {"loss": config.loss if config.loss != "learned" else "mse", "metrics": ()}
    if "eval norm" in parts or config.callback == "eval norm":
        parts.add("norm")
    if "sparse" in parts and config.strategy == "dp":  # PyTorch reduces no sparse gradient of one replica alone
        changes |= {"rows": 24, "batch_size": 12}
    if "norm" in parts:  # it wants more than one row, in every part of a batch
        parts.discard("conv")
        changes |= {"rows": 24, "batch_size": 12, "drop_last": False}
        if config.sampler in ("num_samples", "subset"):
            changes["sampler"] = "shuffle"
    if config.callback == "unfreeze" and config.resume != "none":
        changes["callback"] = "none"  # the second process would begin without the group
    if changes.get("callback", config.callback) == "unfreeze":
        parts |= {"frozen"}
        parts -= {"sparse", "shared", "lazy"}
        if config.optimizer_as != "configured":
            changes["optimizer_as"] = "object"  # a function is given the frozen parameters too
    if config.callback in ("stop", "eval norm", "freeze") and config.resume != "none":
        changes["resume"] = "none"
    if config.data == "generator":
        changes |= {"epochs": rng_free_epochs(config), "resume": "none"}
    if "in place" in parts and config.resume != "none" and config.data not in TENSOR_KINDS:
        parts.discard("in place")  # the second process would begin with fresh data
    if "in place" in parts and "norm" in parts:
        parts.discard("in place")
    if "lazy" in parts and changes.get("optimizer_as", config.optimizer_as) in ("object", "groups"):
        changes["optimizer_as"] = "factory"
    if "lazy" in parts and config.clip == "value":
        changes["clip"] = "norm"  # hooks want parameters that have a shape
    if "dropout" in parts and config.strategy == "dp":
        parts.discard("dropout")  # each GPU draws its own numbers
    if "sparse" in parts:
        parts.discard("frozen")
        changes |= {"optimizer": "sgd", "clip": "none", "precision": "fp32"}
    if config.data == "object with one buffer":  # a metric that keeps views of the buffer is wrong in any loop
        changes["metrics"] = tuple(name for name in config.metrics if name != "keep")
    if config.resume == "epochs" and changes.get("resume", "epochs") == "epochs":
        changes["epochs"] = max(config.epochs, 2)
    if config.scheduler in ("plateau",):
        changes["schedule_every"] = "epoch"
    if config.clip == "value" and (
        config.world * config.replicas * config.accumulate > 1 or config.precision == "fp16"
    ):
        changes["clip"] = "norm"  # hooks see the gradient of a part, scaled
    if config.predict == "distributed sampler" and config.world == 1:
        changes["predict"] = "loader"
    order = config.parts + tuple(sorted(parts - set(config.parts)))
    return replace(config, parts=tuple(part for part in order if part in parts), **changes)


def rng_free_epochs(config: Config) -> int:
    """A generator gives one epoch; every seventh is asked for more, which is refused."""
    return config.epochs if config.seed % 7 == 0 else 1
