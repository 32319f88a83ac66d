"""Random numbers of emulated devices: one generator a device, whose state is a seed and an offset, as CUDA's is.

CUDA's Philox generator makes the numbers of each kernel from (seed, offset) alone and then moves the offset on
(ATen/cuda/CUDAGeneratorImpl.h). Here a CPU generator seeded with the two together makes them, so a state of 16 bytes
that a program saves, moves by hand (DTensor does) or gives to another process stands for the same numbers. While a
graph is captured, a state's offset counts from the graph's beginning (CUDAGeneratorImpl.cpp).
"""

from __future__ import annotations

import struct
from typing import Self

import torch

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.plan import RANDOM_STATE
from windtunnel.seam.torch.state.positions import MASK, UNROLL, Generator, Position
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import CPU


def patches(state: State) -> list[Patch]:
    """`torch.Generator` and the default generators of the emulated devices."""
    generator_class = _generator_class(state)
    state.new_generators = lambda: [
        generator_class(device) for device in state.cuda_devices[: len(state.machine.devices)]
    ]
    return [
        Patch(torch, "Generator", generator_class),
        *(Patch(owner, "set_rng_state", _set_rng_state) for owner in (torch, torch.random)),
    ]


def _set_rng_state(new_state: torch.Tensor) -> None:
    """`torch.set_rng_state`, whose C++ would take a device's tensor for the CPU's."""
    _check(new_state)
    stock_set_rng_state(new_state)


def fits(state: State, generator: Generator, target: int) -> None:
    """Raise PyTorch's error for a generator of another kind of device than `target`."""
    if (state.generator_devices.get(generator._cdata, CPU) >= 0) != (target >= 0):
        wanted, given = ("cuda", "cpu") if target >= 0 else ("cpu", "cuda")
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{given}'")


def draw(state: State, call: Call) -> object:
    """Run an operator that draws random numbers, with the device's generator; with PyTorch's own on the host."""
    plan, args, kwargs = call.plan, call.args, call.kwargs
    if call.device < 0:
        return call.func(*args, **kwargs)
    # Some (`poisson`, `binomial`) take it by place, too.
    place = plan.names.index("generator") if plan.random != RANDOM_STATE else len(args)
    given = args[place] if place < len(args) else kwargs.get("generator")
    if given is not None and state.generator_devices.get(given._cdata, CPU) < 0:
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    generator = given or state.generators[call.device]
    position = state.positions[generator._cdata]
    if plan.random != RANDOM_STATE:
        position.start(generator)
        if place < len(args):
            out = call.func(*args[:place], generator, *args[place + 1 :], **kwargs)
        else:
            out = call.func(*args, **{**kwargs, "generator": generator})
    else:
        default = torch.default_generator
        saved = default.get_state()
        position.start(default)
        try:
            out = call.func(*args, **kwargs)
        finally:
            default.set_state(saved)
    gpu = state.device(call.device).gpu
    drawn = next(iter(tensors_in((out,))), None)
    position.advance(0 if drawn is None else drawn.numel(), gpu.sm_count * gpu.max_threads_per_sm)
    return out


STATE = struct.Struct("<Qq")
UNREGISTERED = "Attempt to increase offset for a CUDA generator not in capture mode."


class Emulated(Generator):
    """torch.Generator; for a CUDA device it is a CPU generator that says it is the device's."""

    _wt_state: State
    _wt_device: int

    def __new__(cls, device: str | int | torch.device = "cpu") -> Self:
        """A generator of a device; a bare number is a CUDA device."""
        state = cls._wt_state
        index = state.index(device)
        where = torch.device(device) if not isinstance(device, int) else torch.device("cuda", device)
        if index >= 0:
            _refuse_in_capture(state, "construct a new CUDAGeneratorImpl")
        self = stock.__new__(cls, "cpu" if index >= 0 or where.type == "cpu" else device)  # type: ignore[call-arg]
        self._wt_device = index
        # C++ gives its generators back in new Python objects: the address tells them apart.
        state.generator_devices.pop(self._cdata, None)
        state.positions.pop(self._cdata, None)
        if index >= 0:
            state.generator_devices[self._cdata] = index
            state.positions[self._cdata] = Position(DEFAULT_SEED)
        return self

    def __init__(self, device: object = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that it makes numbers for."""
        index = self._wt_device
        found: torch.device = self._wt_state.cuda_devices[index] if index != CPU else stock.device.__get__(self)
        return found

    @property
    def _wt_position(self) -> Position | None:
        return self._wt_state.positions.get(self._cdata)

    def manual_seed(self, seed: int) -> torch._C.Generator:
        """Begin again at a seed."""
        position = self._wt_position
        if position is None:
            return stock.manual_seed(self, seed)
        if _capturing(self._wt_state):
            _keep_seed(position, int(seed) & MASK)
        else:
            position.go_to(int(seed) & MASK)
        return self

    def seed(self) -> int:
        """Begin again at a seed that the system draws."""
        if self._wt_position is not None:
            _refuse_in_capture(self._wt_state, "call CUDAGeneratorImpl::seed")
        made = int(stock.seed(self))
        if self._wt_position is not None:
            self.manual_seed(made)
        return made

    def initial_seed(self) -> int:
        """The seed that it began at."""
        position = self._wt_position
        return int(stock.initial_seed(self)) if position is None else position.seed

    def get_state(self) -> torch.Tensor:
        """Seed and offset as 16 bytes; the CPU's generator has a longer state."""
        position = self._wt_position
        if position is None:
            found: torch.Tensor = stock.get_state(self)
            return found
        start = _start_of_graph(position) if _capturing(self._wt_state) else 0
        return _bytes_of(position.seed, position.offset - start)

    def set_state(self, new_state: torch.Tensor) -> torch._C.Generator:
        """Go on from a state."""
        position = self._wt_position
        _check(new_state)
        if position is None:
            return stock.set_state(self, new_state)
        seed, offset = _place_in(new_state)
        if _capturing(self._wt_state):
            _start_of_graph(position)
            _keep_seed(position, seed)
            position.go_to_in_graph(offset)
        else:
            position.go_to(seed, offset)
        return self

    def __reduce__(self) -> tuple[type, tuple[torch.device], torch.Tensor]:  # type: ignore[override]
        return torch.Generator, (self.device,), self.get_state()

    def __setstate__(self, saved: torch.Tensor) -> None:  # type: ignore[override]
        self.set_state(saved)

    def clone_state(self) -> Self:
        """Another generator at the same place; compilers ask for it where tensors are fake."""
        made = type(self)(self.device)
        position = self._wt_position
        if position is None:
            made.set_state(self.get_state())
        else:
            made._wt_state.positions[made._cdata].go_to(position.seed, position.offset)
        return made

    def graphsafe_get_state(self) -> Self:
        """Another generator that shares this one's place."""
        return type(self)(self.device).graphsafe_set_state(self)

    def graphsafe_set_state(self, state: Generator) -> Self:  # type: ignore[override]
        """Share another generator's place from now on."""
        positions = self._wt_state.positions
        positions[self._cdata] = positions[state._cdata]
        return self

    def get_offset(self) -> int:
        """How far it has been moved on."""
        position = self._wt_position
        if position is None:
            return int(stock.get_offset(self))
        _refuse_in_capture(self._wt_state, "call CUDAGeneratorImpl::get_offset")
        return position.offset

    def set_offset(self, offset: int) -> torch._C.Generator:
        """Move it, by hand; CUDA wants a multiple of four."""
        position = self._wt_position
        if position is None:
            return stock.set_offset(self, offset)
        _refuse_in_capture(self._wt_state, "call CUDAGeneratorImpl::set_offset")
        if offset % UNROLL:
            raise RuntimeError("offset must be a multiple of 4")
        position.offset = offset
        return self


stock = torch._C.Generator
stock_set_rng_state = torch.random.set_rng_state


def _generator_class(state: State) -> type[Emulated]:
    names = {"__module__": "torch", "__qualname__": "Generator", "__doc__": stock.__doc__, "_wt_state": state}
    return type("Generator", (Emulated,), names)


DEFAULT_SEED = 67280421310721
"""c10::detail's default seed of every generator (c10/core/GeneratorImpl.h: default_rng_seed_val)."""


def _bytes_of(seed: int, offset: int) -> torch.Tensor:
    return torch.tensor(list(STATE.pack(seed, offset)), dtype=torch.uint8, device="cpu")


def _capturing(state: State) -> bool:
    return state.visible is not None and state.capturing(state.local.streams[state.local.device])


def _refuse_in_capture(state: State, what: str) -> None:
    """Raise what `assertNotCapturing` of ATen/cuda/CUDAGraphsUtils.cuh does."""
    if _capturing(state):
        raise RuntimeError(
            f"Cannot {what} during CUDA graph capture. If you need this call to be captured, please file an issue. "
            "Current cudaStreamCaptureStatus: cudaStreamCaptureStatusActive"
        )


def _keep_seed(position: Position, seed: int) -> None:
    if seed != position.seed:
        raise RuntimeError(
            "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as "
            "the original seed."
        )


def _start_of_graph(position: Position) -> int:
    if position.start_of_graph is None:
        raise RuntimeError(UNREGISTERED)
    return position.start_of_graph


def _check(saved: object) -> None:
    """What PyTorch asks of every state (`check_rng_state` of ATen/core/Generator.h, `THPGenerator_setState`)."""
    if not isinstance(saved, torch.Tensor):
        raise TypeError(f"expected a torch.ByteTensor, but got {type(saved).__name__}")
    if saved.layout is not torch.strided or saved.device.type != "cpu" or saved.dtype != torch.uint8:
        raise TypeError("RNG state must be a torch.ByteTensor")
    if not saved.is_contiguous():
        raise RuntimeError("RNG state must be contiguous")


def _place_in(saved: torch.Tensor) -> tuple[int, int]:
    if saved.numel() != STATE.size:
        raise RuntimeError("RNG state is wrong size")
    seed, offset = STATE.unpack(bytes(saved.tolist()))
    return seed, offset
