"""What a generated wrapper does to the machine, written down at one call and done again at later ones of the same form.

A wrapper whose inputs are tensors and sizes, and which asks for no values, takes memory, gives it back and launches
kernels in the same way at each call with the same sizes and tensors that lie alike. Its own code runs for the first
calls of a form. After that its recipe does, which gives the same rows, times and memory without PyTorch. A recipe is
neither written nor followed while somebody watches accesses, placements or operators.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch

from windtunnel.machine.clock import HostThread
from windtunnel.machine.device import Device
from windtunnel.machine.machine import Cost
from windtunnel.machine.stream import Stream
from windtunnel.operators.card import CUBLAS, CUDNN
from windtunnel.seam.torch.compiled.answers import Answers
from windtunnel.seam.torch.plans.plan import Plan
from windtunnel.seam.torch.state import cublas
from windtunnel.seam.torch.state.kernel_buffers import choices
from windtunnel.seam.torch.state.observers import VERBS
from windtunnel.seam.torch.state.reuse import reusing_whole
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import HOST_TAG, Storage, Tag, storage_of

Tensor = torch.Tensor
LAUNCH, TAKE, LEAVE, BORROW, BOUND, END = range(6)
"""Kinds of steps: a kernel is launched, a storage gets memory, a storage ends, a kernel takes memory and gives it back,
a bound of such memory is told, and the end of the recipe."""
MOST_FORMS = 8
"""Of how many forms of calls one wrapper keeps recipes."""
TRIES = 4
"""How often a recipe of a form is tried: the first calls take memory from the driver, or a library's workspace."""
PYTORCHS = ("aten", "inductor")
"""Namespaces of operators that do nothing but compute."""
OTHERS = tuple(verb for verb in VERBS if verb != "launch")
"""What a wrapper with a recipe does not ask of the machine."""


class RecipeStep(NamedTuple):
    """One thing that a wrapper does, `wait_ns` of the host after the one before it.

    `device` is a device's index, `number` a storage's (those of the inputs come first), `size` its bytes, `sizes` those
    that a kernel takes (`spare` if it can do without), `touched` the storages that a launch reads or writes, `name` an
    operator's.
    """

    kind: int
    wait_ns: int
    device: int = 0
    number: int = 0
    size: int = 0
    cost: Cost | None = None
    touched: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    spare: bool = False
    name: str = ""


class ResultPlace(NamedTuple):
    """Where a result of a wrapper lies, without its values: `tag` is its storage's, which has `nbytes`."""

    tag: Tag
    nbytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class RecipeResult(NamedTuple):
    """A result in a recipe: the number of its storage, -1 on the host, and its place but for the tag."""

    number: int
    place: ResultPlace


class Form(NamedTuple):
    """What of a call decides what its wrapper does, and the tags of the inputs' storages on devices."""

    key: Hashable
    tags: list[Tag]


def place_of(tensor: Tensor) -> ResultPlace:
    """The place of a dense tensor."""
    storage = storage_of(tensor)
    stride, offset = tensor.stride(), int(tensor.storage_offset())
    return ResultPlace(storage._wt, storage.nbytes(), tensor.dtype, tuple(tensor.shape), stride, offset)


def form_of(state: State, inputs: Sequence[object]) -> Form | None:
    """The form of a call; None where an input is neither a dense tensor nor a size, or lies in page-locked memory."""
    key: list[Hashable] = [state.local.device]
    tags: list[Tag] = []
    numbers: dict[int, int] = {}
    for value in inputs:
        if value.__class__ is int:
            key.append(value)
            continue
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            return None
        tag = storage_of(value)._wt
        if tag is HOST_TAG:
            number = -1
        elif tag.device < 0:
            return None
        else:
            number = numbers.setdefault(id(tag), len(tags))
            if number == len(tags):
                tags.append(tag)
        key += (tag.device, number, value.dtype, value.shape, value.stride(), value.storage_offset())
    return Form(tuple(key), tags)


class Recipe(NamedTuple):
    """The steps of one form of calls, of so many storages, and their results: a `RecipeResult`, or an object as it is.

    `products` are the devices of matrix products, whose workspaces must be there, `choices` those of the program that
    decide what libraries do.
    """

    steps: list[RecipeStep]
    storages: int
    results: list[object]
    products: frozenset[int]
    choices: tuple[object, ...]

    def fits(self, state: State) -> bool:
        """Whether libraries would do now what they did then."""
        streams = state.local.streams
        held = all(cublas.is_held(state, index, streams[index].index) for index in self.products)
        return held and self.choices == _choices(state)

    def follow(self, state: State, tags: list[Tag]) -> list[object]:
        """Do the steps for inputs with these tags, a list that is emptied; the places of the results."""
        local, machine, kernels = state.local, state.machine, state.kernels
        host, streams, devices, launch, take = local.host, local.streams, machine.devices, machine.launch, state.place
        slots: list[Tag | None] = [*tags, *[None] * (self.storages - len(tags))]
        tags.clear()
        for kind, wait_ns, device, number, size, cost, touched, sizes, spare, name in self.steps:
            host.now_ns += wait_ns
            if kind == LAUNCH:
                stream = streams[device]
                assert cost is not None  # a launch has one
                launch(host, stream, reusing_whole(machine, stream, cost, [slots[one] for one in touched]))
                for one in touched:
                    slots[one].epoch = stream.epoch  # type: ignore[union-attr]  # it has not ended
            elif kind == TAKE:
                slots[number] = take(None, device, size)
            elif kind == LEAVE:
                slots[number] = None
            elif kind == BORROW:
                kernels.take(devices[device], streams[device], sizes, spare)
            elif kind == BOUND:
                found = devices[device]
                found.at_most(found.allocator.memory_allocated() + size, name)
        return [_placed(result, slots) if isinstance(result, RecipeResult) else result for result in self.results]


def _placed(result: RecipeResult, slots: list[Tag | None]) -> ResultPlace:
    tag = HOST_TAG if result.number < 0 else slots[result.number]
    assert tag is not None
    return result.place._replace(tag=tag)


def _choices(state: State) -> tuple[object, ...]:
    return (state.tf32(CUBLAS), state.tf32(CUDNN), *choices())


class End:
    """Hangs on a storage, and tells of its end."""

    def __init__(self, told: Callable[[int], None], number: int) -> None:
        self.told = told
        self.number = number

    def __del__(self) -> None:
        self.told(self.number)


class CallRecording:
    """Writes down what one call does. `spoilt` says that the call did something that recipes do not hold."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.host: HostThread = state.local.host
        self.thread = threading.get_ident()
        self.steps: list[RecipeStep] = []
        self.products: set[int] = set()
        self.spoilt = False
        self.open = True
        self._since_ns = self.host.now_ns
        self._asked_ns: int | None = None  # when the memory of a storage was asked for
        self._borrows = False
        self._launch: tuple[int, Stream] | None = None
        self._tags: list[weakref.ref[Tag]] = []

    def spoil(self) -> None:
        """The call does something that recipes do not hold."""
        self.spoilt = True

    def called(self, plan: Plan) -> None:
        """The wrapper calls an operator; one of the program's own may do anything."""
        if plan.func.namespace not in PYTORCHS or plan.mutated:
            self.spoil()

    def hang_on(self, storage: Storage, tag: Tag) -> None:
        """Give a storage the next number, and hear of its end."""
        storage._wt_end = End(self._ended, len(self._tags))
        self._tags.append(weakref.ref(tag))

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear of the machine's verbs, of memory, and of storages that get some."""
        state, machine = self.state, self.state.machine
        turns = machine.turns
        watched: list[tuple[object, tuple[str, ...], Callable[..., object]]] = [
            (machine, ("launch",), self._launched),
            (machine, OTHERS, self._other),
            (state.kernels, ("take",), self._borrowed),
        ]
        for device in machine.devices:
            watched.append((device.allocator, ("malloc",), self._asked))
            watched.append((device, ("at_most",), partial(self._bounded, device)))
        state.observers.join(placed=self._given)
        for part, names, around in watched:
            turns.watch(part, names, around)
        try:
            yield
        finally:
            for part, names, around in watched:
                turns.unwatch(part, names, around)
            state.observers.leave(placed=self._given)
            self._add(RecipeStep(END, 0))
            self.open = False

    def recipe(self, results: Sequence[object]) -> Recipe | None:
        """The recipe of a call that gave these results, None where there is none."""
        if self.spoilt:
            return None
        numbers = {id(tag()): number for number, tag in enumerate(self._tags) if tag() is not None}
        found: list[object] = []
        for result in results:
            if isinstance(result, Tensor):
                if result.layout is not torch.strided:
                    return None
                place = place_of(result)
                number = -1 if place.tag is HOST_TAG else numbers.get(id(place.tag), -2)
                if number < -1:
                    return None
                found.append(RecipeResult(number, place._replace(tag=HOST_TAG)))
            else:
                found.append(result)
        return Recipe(self.steps, len(self._tags), found, frozenset(self.products), _choices(self.state))

    def _add(self, step: RecipeStep, begin_ns: int | None = None) -> None:
        """A step begins, and what the host did before it was part of none."""
        if step.kind != TAKE and self._asked_ns is not None:
            self.spoil()  # the memory is no storage's
        self._stamp()
        begin_ns = self.host.now_ns if begin_ns is None else begin_ns
        self.steps.append(step._replace(wait_ns=begin_ns - self._since_ns))
        self._since_ns = begin_ns

    def _stamp(self) -> None:
        """Write down which storages the last launch has touched: they bear its number."""
        if self._launch is not None:
            at, stream = self._launch
            self._launch = None
            tags = [(number, tag()) for number, tag in enumerate(self._tags)]
            touched = [n for n, tag in tags if tag and tag.device == stream.device and tag.epoch == stream.epoch]
            self.steps[at] = self.steps[at]._replace(touched=tuple(touched))

    def _ours(self) -> bool:
        """Whether this thread makes the call; another one that works meanwhile spoils it."""
        if threading.get_ident() != self.thread:
            self.spoil()
            return False
        return True

    def _launched(self, verb: Callable[..., int], host: HostThread, stream: Stream, cost: Cost, site: int = 0) -> int:
        if not self._ours():
            return verb(host, stream, cost, site)
        self._add(RecipeStep(LAUNCH, 0, stream.device, cost=cost))
        end = verb(host, stream, cost, site)
        self._launch = len(self.steps) - 1, stream
        self._since_ns = host.now_ns
        return end

    def _other(self, verb: Callable[..., object], *args: object, **kwargs: object) -> object:
        self.spoil()
        return verb(*args, **kwargs)

    def _asked(self, verb: Callable[..., object], *args: object) -> object:
        if self._ours() and not self._borrows:
            if self._asked_ns is not None:
                self.spoil()
            self._asked_ns = self.host.now_ns
        return verb(*args)

    def _given(self, storage: Storage, index: int, tag: Tag) -> None:
        if self._ours():
            self._add(RecipeStep(TAKE, 0, index, len(self._tags), tag.size), self._asked_ns)
            self._asked_ns = None
            self._since_ns = self.host.now_ns
            self.hang_on(storage, tag)

    def _borrowed(
        self, verb: Callable[..., None], device: Device, stream: Stream, sizes: tuple[int, ...], spare: bool = False
    ) -> None:
        if not self._ours():
            return verb(device, stream, sizes, spare)
        self._add(RecipeStep(BORROW, 0, device.index, sizes=sizes, spare=spare))
        self._borrows = True
        try:
            verb(device, stream, sizes, spare)
        finally:
            self._borrows = False
            self._since_ns = self.host.now_ns

    def _bounded(self, device: Device, verb: Callable[..., None], size: int, name: str) -> None:
        if self._ours():
            self._add(RecipeStep(BOUND, 0, device.index, size=size - device.allocator.memory_allocated(), name=name))
        verb(size, name)

    def _ended(self, number: int) -> None:
        if self.open and self._ours():
            self._add(RecipeStep(LEAVE, 0, number=number))


class Recipes:
    """Those of one wrapper, by the forms of its calls."""

    def __init__(self, state: State, answers: Answers) -> None:
        self.state = state
        self.answers = answers
        self.calls: dict[Hashable, int] = {}
        self.known: dict[Hashable, Recipe] = {}

    def form(self, inputs: Sequence[object]) -> Form | None:
        """The form of a call, where it may have a recipe now."""
        return form_of(self.state, inputs) if not self.answers.needed and _unwatched(self.state) else None

    def of(self, form: Form) -> Recipe | None:
        """The recipe of a form, where it can be followed."""
        found = self.known.get(form.key)
        return found if found is not None and found.fits(self.state) else None

    def keep(self, form: Form, recipe: Recipe | None) -> None:
        """Let the next calls of a form follow a recipe."""
        if recipe is not None:
            self.known[form.key] = recipe

    def recording(self, form: Form) -> CallRecording | None:
        """What writes down the call that follows; None where none is to be written."""
        calls = self.calls.get(form.key, 0)
        if calls > TRIES or (not calls and len(self.calls) >= MOST_FORMS):
            return None
        self.calls[form.key] = calls + 1
        return CallRecording(self.state) if calls else None  # at the first call some things happen that do not later


def _unwatched(state: State) -> bool:
    """Whether nobody watches, and nothing on purpose goes wrong."""
    machine = state.machine
    return not (
        machine.watching
        or machine.blocking
        or state.placed
        or state.observers.profiled
        or state.meter is not None
        or state.strikes is not None
        or state.failure is not None
        or not state.memory.caching
    )
