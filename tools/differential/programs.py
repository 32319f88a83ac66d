"""Random programs of views, writes and copies across devices, beside the same program on plain PyTorch.

A program is a list of steps over a growing list of tensors. It is made while plain PyTorch runs it: where a tensor
would live is a label only, and a copy to another label is a copy. Then it runs on two emulated GPUs. A step that raises
there must raise here. At the end all tensors are compared, with their places, strides, offsets, shared memory and, in
every third program, the gradients of those that it began with.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

import windtunnel
from tools.differential.outcomes import Leaf, memory, of_values

PLACES = ("cpu", "cuda:0", "cuda:1")
STEPS = 40
LARGEST = 4096
"""Elements of the largest tensor; a step that would make a larger one is left out."""


@dataclass
class World:
    """Where a program runs: its tensors, and on plain PyTorch the label of each one's place."""

    emulated: bool
    tensors: list[torch.Tensor] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    waits: list[Callable[[], Any]] = field(default_factory=list)

    def add(self, tensor: torch.Tensor, place: str) -> None:
        """A new tensor of the program."""
        self.tensors.append(tensor)
        self.places.append(place)

    def moved(self, tensor: torch.Tensor, here: str, there: str, **options: Any) -> torch.Tensor:
        """`Tensor.to` another place."""
        if self.emulated:
            return tensor.to(there, **options)
        return tensor if here == there else tensor.to("cpu", copy=True)


@dataclass(frozen=True)
class ProgramStep:
    """One step: its name in `STEP`, the tensors that it takes, its numbers; whether plain PyTorch raised."""

    name: str
    chosen: tuple[int, ...]
    numbers: tuple[int, ...]
    error: str = ""


def _view(world: World, i: int, a: int, b: int) -> None:
    x = world.tensors[i]
    dim = a % max(1, x.dim())
    if x.dim() == 0:
        made = x.unsqueeze(0).expand(2 + b % 3)
    elif b % 9 == 0:
        made = x.transpose(dim, -1)
    elif b % 9 == 1:
        made = x.narrow(dim, 0, x.shape[dim] - x.shape[dim] // 3)
    elif b % 9 == 2:
        made = x[..., :: 1 + a % 3]
    elif b % 9 == 3:
        made = x.unsqueeze(dim).expand(*x.shape[:dim], 2, *x.shape[dim:])
    elif b % 9 == 4:
        made = x.flatten()
    elif b % 9 == 5:
        made = x.diagonal() if x.dim() > 1 else x.view(-1, 1)
    elif b % 9 == 6:
        made = x.select(dim, 0)
    elif b % 9 == 7:
        made = x.unfold(dim, 1 + x.shape[dim] // 2, 1)
    else:
        made = x.movedim(dim, 0)
    world.add(made, world.places[i])


def _as_strided(world: World, i: int, a: int, b: int) -> None:
    x = world.tensors[i]
    room = x.untyped_storage().nbytes() // x.element_size()
    offset = a % max(1, room // 2)
    rows = max(1, min(4, (room - offset) // 4))
    made = torch.as_strided(x, (rows, 2), (1 + b % 2, 1), offset)
    world.add(made, world.places[i])


def _arithmetic(world: World, i: int, a: int, b: int) -> None:
    x = world.tensors[i]
    ways: tuple[Callable[[], torch.Tensor], ...] = (
        lambda: x * 2 + 1,
        lambda: x.sum(dim=0),
        lambda: x.reshape(-1).cumsum(0),
        lambda: torch.cat([x, x], 0),
        lambda: x.t().contiguous() if x.dim() == 2 else x.contiguous(),
        lambda: x.where(x > 0, x - 1),
        lambda: x.clone(),
        lambda: torch.full_like(x, a),
        lambda: x.flip(0),
        lambda: x.sort(-1).values,
    )
    world.add(ways[b % len(ways)](), world.places[i])


def _pair(world: World, i: int, j: int, a: int, b: int) -> None:
    made = (torch.add, torch.mul, torch.maximum, torch.sub)[b % 4](world.tensors[i], world.tensors[j])
    world.add(made, world.places[j if world.places[i] == "cpu" else i])


def _write(world: World, i: int, a: int, b: int) -> None:
    x = world.tensors[i]
    ways: tuple[Callable[[], Any], ...] = (
        lambda: x.add_(a % 5),
        lambda: x.mul_(2).remainder_(17),
        lambda: x.fill_(a % 7),
        lambda: x[..., 0].zero_(),
        lambda: x.clamp_(-3, 3),
        lambda: x.masked_fill_(x > a % 3, 1),
        lambda: x.neg_(),
        lambda: x.__setitem__(slice(None, None, 2), a % 4),
    )
    ways[b % len(ways)]()


def _copy(world: World, i: int, j: int, a: int, b: int) -> None:
    world.tensors[i].copy_(world.tensors[j], non_blocking=b % 2 == 0)
    _wait(world)


def _move(world: World, i: int, a: int, b: int) -> None:
    here, there = world.places[i], PLACES[a % 3]
    made = world.moved(world.tensors[i], here, there, non_blocking=b % 2 == 0)
    _wait(world)
    world.add(made, there)


def _pinned(world: World, i: int, a: int, b: int) -> None:
    x = world.tensors[i].detach()
    options: dict[str, Any] = {"pin_memory": True} if world.emulated else {}
    target = torch.zeros(x.shape, dtype=x.dtype, **options)
    target.copy_(x, non_blocking=True)
    _wait(world)
    world.add(target, "cpu")


def _cast(world: World, i: int, a: int, b: int) -> None:
    kinds = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.float16)
    world.add(world.tensors[i].to(kinds[b % len(kinds)]), world.places[i])


def _index(world: World, i: int, a: int, b: int) -> None:
    x = world.tensors[i]
    index = torch.tensor([0, a % max(1, x.shape[0]), 0]) if x.dim() else torch.tensor(0)
    there = world.places[i] if b % 2 else "cpu"
    index = world.moved(index, "cpu", there)
    if b % 3 == 0:
        world.add(x[index], world.places[i])
    elif b % 3 == 1:
        x.index_put_((index,), torch.ones((), dtype=x.dtype), accumulate=b % 4 < 2)
    else:
        x[index] = x[0].clone()


def _stream(world: World, i: int, a: int, b: int) -> None:
    x = world.tensors[i]
    if not world.emulated or world.places[i] == "cpu":
        world.add(x + a % 4, world.places[i])
        return
    side, main = torch.cuda.Stream(world.places[i]), torch.cuda.current_stream(world.places[i])
    side.wait_stream(main)
    with torch.cuda.stream(side):
        made = x + a % 4
    main.wait_stream(side)
    world.add(made, world.places[i])


def _wait(world: World) -> None:
    if world.emulated:
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)


STEP: dict[str, tuple[int, Callable[..., None]]] = {
    "view": (1, _view), "view again": (1, _view), "as_strided": (1, _as_strided), "arithmetic": (1, _arithmetic),
    "pair": (2, _pair), "write": (1, _write), "write again": (1, _write), "copy": (2, _copy), "move": (1, _move),
    "pinned": (1, _pinned), "cast": (1, _cast), "index": (1, _index), "stream": (1, _stream),
}  # fmt: skip
"""Steps by name: how many tensors they take, and what they do."""


def begin(world: World, seed: int) -> None:
    """The tensors that a program begins with."""
    draw = random.Random(seed)
    for number in range(4):
        shape = [draw.randint(1, 5) for _ in range(draw.randint(0, 3))]
        count = 1
        for size in shape:
            count *= size
        values = torch.arange(count, dtype=torch.float32).remainder(11).sub(4).reshape(shape)
        place = PLACES[number % 3]
        made = world.moved(values, "cpu", place)
        if seed % 3 == 0:
            made = made.detach().requires_grad_()
        world.add(made, place)


def apply(world: World, step: ProgramStep) -> str:
    """Do one step; the class of its error, or nothing."""
    before = len(world.tensors)
    try:
        STEP[step.name][1](world, *step.chosen, *step.numbers)
    except Exception as error:  # noqa: BLE001  # which one it is, is compared
        return type(error).__name__
    if len(world.tensors) > before and world.tensors[-1].numel() > LARGEST:
        del world.tensors[-1], world.places[-1]
    return ""


def allowed(world: World, name: str, chosen: tuple[int, ...]) -> bool:
    """Whether the tensors of a step of two may meet: an operator refuses those of two devices."""
    if name != "pair":
        return True
    a, b = chosen
    lone = (world.tensors[a].dim() == 0 and world.places[a] == "cpu") or (
        world.tensors[b].dim() == 0 and world.places[b] == "cpu"
    )
    return world.places[a] == world.places[b] or lone


def written(seed: int) -> tuple[World, list[ProgramStep]]:
    """(plain PyTorch's end, steps) of a program."""
    draw = random.Random(seed)
    world = World(emulated=False)
    begin(world, seed)
    steps: list[ProgramStep] = []
    while len(steps) < STEPS:
        name = draw.choice(list(STEP))
        chosen = tuple(draw.randrange(len(world.tensors)) for _ in range(STEP[name][0]))
        step = ProgramStep(name, chosen, (draw.randrange(100), draw.randrange(100)))
        if allowed(world, name, chosen):
            steps.append(ProgramStep(name, chosen, step.numbers, apply(world, step)))
    return world, steps


def gradients(world: World) -> list[Leaf]:
    """The gradients of the sum of all tensors of floating point, of those that the program began with."""
    pairs = zip(world.tensors[:4], world.places, strict=False)
    leaves, places = [], []
    for tensor, place in pairs:
        if tensor.requires_grad and tensor.is_leaf:
            leaves.append(tensor)
            places.append(place)
    ends = [t.double() for t in world.tensors if t.requires_grad and t.grad_fn is not None]
    if not leaves or not ends:
        return []
    total = sum((world.moved(t.sum(), p, "cpu") for t, p in zip(ends, _places(world), strict=True)), torch.zeros(()))
    grads = torch.autograd.grad(total, leaves, allow_unused=True)
    found = []
    for grad, place in zip(grads, places, strict=True):
        if grad is not None:
            device = str(grad.device) if world.emulated else place
            found.append(Leaf(grad.detach(), device, grad.layout, False, None, None, False))
    return found


def _places(world: World) -> list[str]:
    pairs = zip(world.tensors, world.places, strict=True)
    return [place for tensor, place in pairs if tensor.requires_grad and tensor.grad_fn is not None]


def compare(seeds: Iterable[int]) -> list[str]:
    """One line for each program whose end differs, with its seed and the first difference."""
    found = []
    for batch in batched(seeds):
        plans = []
        for seed in batch:
            world, steps = written(seed)
            plans.append((seed, world, steps, caught(world)))
        with windtunnel.emulate("2xV100"):
            for seed, plain, steps, grads in plans:
                line = rerun(seed, plain, steps, grads)
                found += [f"seed {seed}: {line}"] if line else []
    return found


def batched(seeds: Iterable[int]) -> Iterator[list[int]]:
    """Programs that share an emulation, fifty at a time: to begin one takes longer than a program."""
    left = iter(seeds)
    while batch := list(islice(left, 50)):
        yield batch


def caught(world: World) -> list[Leaf] | str:
    """The gradients, or the class of the error of asking for them and what it says."""
    try:
        return gradients(world)
    except Exception as error:  # noqa: BLE001  # which one it is, is compared
        return f"{type(error).__name__}: {error}"


def rerun(seed: int, plain: World, steps: list[ProgramStep], grads: list[Leaf] | str) -> str:
    """Run a program on emulated GPUs; the first difference, or nothing."""
    world = World(emulated=True)
    begin(world, seed)
    for number, step in enumerate(steps):
        error = apply(world, step)
        if error != step.error:
            return f"step {number} ({step}): {step.error or 'no error'} -> {error or 'no error'}"
    owners = [[memory(t) for t in ts] for ts in (plain.tensors, world.tensors)]
    for i, (a, b) in enumerate(zip(plain.tensors, world.tensors, strict=True)):
        if str(b.device) != plain.places[i]:
            return f"tensor {i}: {plain.places[i]} -> {b.device}"
        for what in ("dtype", "shape", "requires_grad", "is_leaf"):
            if getattr(a, what) != getattr(b, what):
                return f"tensor {i}: {what} {getattr(a, what)} -> {getattr(b, what)}"
        if (a.stride(), a.storage_offset()) != (b.stride(), b.storage_offset()):
            return f"tensor {i}: strides {a.stride()} + {a.storage_offset()} -> {b.stride()} + {b.storage_offset()}"
        if owners[0].index(owners[0][i]) != owners[1].index(owners[1][i]):
            return (
                f"tensor {i} shares the memory of {owners[1].index(owners[1][i])}, not {owners[0].index(owners[0][i])}"
            )
        if difference := next(of_values(a.detach(), b.detach().cpu()), None):
            return f"tensor {i}: {difference.detail}"
    got = caught(world)
    if isinstance(grads, str) or isinstance(got, str):
        kinds = [g.partition(":")[0] if isinstance(g, str) else "no error" for g in (grads, got)]
        return "" if kinds[0] == kinds[1] else f"gradients: {kinds[0]} -> {got if isinstance(got, str) else kinds[1]}"
    if [g.device for g in grads] != [g.device for g in got]:
        return f"gradients on {[g.device for g in grads]} -> {[g.device for g in got]}"
    pairs = zip(grads, got, strict=True)
    return next((f"gradient: {d.detail}" for a, b in pairs for d in of_values(a.tensor, b.tensor.cpu())), "")
