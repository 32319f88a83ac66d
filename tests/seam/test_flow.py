"""One flow: from the call to the machine an operation passes few functions and files, and walks the stack once."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

import windtunnel
from windtunnel.seam.torch import install

SOURCE = str(Path(windtunnel.__file__).parent) + "/"
SOMETIMES = ("host_work.py", "leaks.py")
"""They look at what comes after more than 100 us of the program's own work, and at a sample of the allocations."""
TRIES = 5
"""The shortest counts: what those call is elsewhere."""
WALKS = {"Sites.caller", "Sites.number", "Sites.frame"}


def followed(call: Callable[[], object]) -> list[tuple[str, str]]:
    """The (file, function) of each call within windtunnel, in order, at its shortest and not for the first time."""
    counter = torch.zeros(1, device="cuda:0")
    for _ in range(150):
        counter.add_(1)  # until accesses are no longer watched
    for _ in range(20):
        call()
    work = install.ACTIVE[-1].work
    assert work is not None
    with work.apart():
        return min((once(call) for _ in range(TRIES)), key=len)


def once(call: Callable[[], object]) -> list[tuple[str, str]]:
    """The (file, function) of each call within windtunnel, in order."""
    seen: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE) and not code.co_filename.endswith(SOMETIMES):
            seen.append((code.co_filename.removeprefix(SOURCE), code.co_qualname))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


def changes(seen: list[tuple[str, str]]) -> int:
    """How often the file changes on the way."""
    return sum(one[0] != other[0] for one, other in itertools.pairwise(seen))


def test_arithmetic_in_place_takes_3_calls() -> None:
    with windtunnel.emulate("V100"):
        tensor = torch.ones(3, device="cuda:0")
        for call in (lambda: tensor.add_(1), lambda: tensor.add_(tensor), lambda: tensor.mul_(2), tensor.relu_):
            seen = followed(call)
            assert [name for _, name in seen if name != "throttle"] == [
                "Dispatch.__torch_dispatch__",
                "Dispatch.plain",
                "Machine.launch",
            ]


def test_a_factory_takes_at_most_18_calls() -> None:
    kept: list[torch.Tensor] = []
    with windtunnel.emulate("2xV100"):
        seen = followed(lambda: kept.append(torch.ones(3, device="cuda:0")))
    assert len(seen) <= 18, seen
    assert changes(seen) <= 14, seen


def test_a_copy_between_devices_takes_at_most_42_calls() -> None:
    kept: list[torch.Tensor] = []
    with windtunnel.emulate("2xV100"):
        tensor = torch.ones(3, device="cuda:0")
        seen = followed(lambda: kept.append(tensor.to("cuda:1", non_blocking=True)))
    assert len(seen) <= 42, seen
    assert changes(seen) <= 30, seen


def test_operations_walk_the_stack_once() -> None:
    with windtunnel.emulate("2xV100") as session:
        second = torch.device("cuda", len(session.machine.devices) - 1)
        tensor = torch.ones(3, device="cuda:0")
        for call in (lambda: tensor.to(second), lambda: tensor.to("cpu"), tensor.cpu, tensor[0].item):
            assert sum(function in WALKS for _, function in followed(call)) == 1


def test_a_move_says_its_target_to_a_mode_of_the_program() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    targets = []

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func is torch.ops.aten._to_copy.default:
                targets.append(kwargs["device"])
            return func(*args, **(kwargs or {}))

    with windtunnel.emulate("2xV100"):
        tensor = torch.ones(3, device="cuda:0", requires_grad=True)
        with Listening():
            moved = tensor.to("cuda:1")
            back = moved.to("cpu")
        assert (moved.device.index, back.device.type) == (1, "cpu")
        back.sum().backward()
        assert tensor.grad is not None
        assert tensor.grad.device.index == 0
    assert [target.type for target in targets] == ["cuda", "cpu"]
    assert targets[0].index == 1
