"""The memory of a compiled step is that of Inductor's plan: its wrappers' text, read here without running it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code

from windtunnel.session import Session

ASSERTING = ("assert_size_stride", "assert_tensor_metadata")
"""What a wrapper says the sizes of a library's results with, up to PyTorch 2.13 and from 2.14 on."""
ITEM_BYTES = 4
"""Of float32, which all results of libraries are here."""


class Plan:
    """What the generated wrappers of one step hold at each line: names, and the storages behind them.

    Storages are numbers. Those that the program holds itself, its inputs and parameters, have no size here.
    """

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.holders: Counter[int] = Counter()
        self.peak = 0
        self._next = 0

    def run(self, code: str, given: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Go through a wrapper's lines; the storages of its results, which the caller holds."""
        call = next(node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef) and _is_call(node))
        lines = list(_lines(call.body))
        shapes = _asserted(lines)
        names: dict[str, tuple[int, ...]] = {}
        for line in lines:
            match line:
                case ast.Assign([ast.Tuple(targets)], ast.Name("args")):
                    names.update(zip((_name(target) for target in targets), given, strict=True))
                case ast.Assign([ast.Name(target)], value):
                    self._bind(names, target, self._value(names, target, value, shapes))
                case ast.Delete(targets):
                    for target in targets:
                        self._release(names.pop(_name(target)))
                case ast.Return(ast.Tuple(elements)):
                    results = [
                        names.get(element.id, ())
                        if isinstance(element, ast.Name)
                        else self._value(names, "", element, {})
                        for element in elements
                    ]
                    for storages in results:
                        self.holders.update(storages)
                    for storages in names.values():
                        self._release(storages)
                    return results
        raise AssertionError("a wrapper without results")

    def _result(self, names: dict[str, tuple[int, ...]], element: ast.expr) -> tuple[int, ...]:
        """A result: a buffer's storage, or that of a view, which is an expression."""
        return names.get(element.id, ()) if isinstance(element, ast.Name) else self._value(names, "", element, {})

    def hold(self, size: int) -> tuple[int, ...]:
        """A storage that autograd makes."""
        storages = self._allocated(size)
        self.holders.update(storages)
        return storages

    def _bind(self, names: dict[str, tuple[int, ...]], target: str, storages: tuple[int, ...]) -> None:
        self.holders.update(storages)
        self._release(names.get(target, ()))
        names[target] = storages

    def _value(
        self, names: dict[str, tuple[int, ...]], target: str, value: ast.expr, shapes: dict[str, list[int]]
    ) -> tuple[int, ...]:
        match value:
            case ast.Name(name):
                return names[name]
            case ast.Subscript(ast.Name(name), ast.Constant(int(place))):
                return names[name][place : place + 1]
            case ast.Call(ast.Name("empty_strided_cuda"), [size, stride, ast.Attribute(attr=dtype)]):
                return self._allocated(_elements(size, stride) * getattr(torch, dtype).itemsize)
            case ast.Call(ast.Name("reinterpret_tensor" | "copy_if_misaligned"), [ast.Name(name), *_]):
                return names[name]
            case ast.Call(ast.Attribute()):  # a library's operator, whose results it allocates
                return tuple(place for size in shapes.get(target, ()) for place in self._allocated(size))
        return ()

    def _allocated(self, size: int) -> tuple[int, ...]:
        self._next += 1
        self.sizes[self._next] = size
        self.peak = max(self.peak, sum(self.sizes.values()))
        return (self._next,)

    def _release(self, storages: tuple[int, ...]) -> None:
        for one in storages:
            self.holders[one] -= 1
            if not self.holders[one]:
                del self.sizes[one]


def _is_call(node: ast.FunctionDef) -> bool:
    return node.name == "call" and [argument.arg for argument in node.args.args] == ["self", "args"]


def _lines(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield from _lines(statement.body) if isinstance(statement, ast.With) else (statement,)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ast.unparse(node)


def _elements(size: ast.expr, stride: ast.expr) -> int:
    reach = sum((n - 1) * step for n, step in zip(ast.literal_eval(size), ast.literal_eval(stride), strict=True))
    return 1 + int(reach)


def _asserted(lines: list[ast.stmt]) -> dict[str, list[int]]:
    """The bytes of what libraries' operators give, by name, several where it is a tuple: the wrapper asserts them."""
    found: dict[str, list[int]] = {}
    parts: dict[str, str] = {}
    for line in lines:
        match line:
            case ast.Assign([ast.Name(target)], ast.Subscript(ast.Name(whole))):
                parts[target] = whole
            case ast.Expr(ast.Call(ast.Name(asserting), [ast.Name(name), size, stride, *_])) if asserting in ASSERTING:
                found.setdefault(parts.get(name, name), []).append(_elements(size, stride) * ITEM_BYTES)
    return found


def peak(events: list[dict[str, object]]) -> int:
    """The peak of allocations and frees, without the workspaces that libraries take for one kernel."""
    changes = [event for event in events if event["action"] in ("alloc", "free_completed")]
    held = highest = at = 0
    while at < len(changes):
        first, second = changes[at], changes[at + 1] if at + 1 < len(changes) else None
        taken = first["action"] == "alloc"
        if taken and second is not None and second["addr"] == first["addr"]:
            at += 2
            continue
        held += int(str(first["size"])) * (1 if taken else -1)
        highest = max(highest, held)
        at += 1
    return highest


def perceptron() -> tuple[nn.Module, Tensor]:
    """Linear layers, whose operands are saved as they are."""
    layers = (nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(3))
    return nn.Sequential(*layers), torch.randn(512, 256)


def convolutions() -> tuple[nn.Module, Tensor]:
    """Convolutions, whose operands Inductor copies to channels last and saves beside the program's own."""
    sizes = ((3, 128), (128, 256), (256, 256))
    layers = (nn.Sequential(nn.Conv2d(*pair, 3, bias=False), nn.ReLU()) for pair in sizes)
    return nn.Sequential(*layers), torch.randn(4, 3, 24, 24)


@pytest.mark.parametrize("make", [perceptron, convolutions])
def test_the_peak_is_that_of_inductors_wrappers(make: Callable[[], tuple[nn.Module, Tensor]], session: Session) -> None:
    module, x = make()
    module, x = module.cuda(), x.cuda()
    weights = list(module.parameters())
    compiled = torch.compile(lambda x: F.relu(module(x)).sum())

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(compiled(x), weights)

    _, (forward, backward) = run_and_get_code(step)
    step()
    torch.cuda.memory._record_memory_history()
    gradients = step()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    assert len(gradients) == len(weights)

    plan = Plan()
    given: list[tuple[int, ...]] = [()] * len(_given(forward))
    _loss, *saved = plan.run(forward, given)
    tangent = plan.hold(ITEM_BYTES)
    plan.holders.update(tangent)  # autograd keeps it until the end
    plan.run(backward, [*saved, tangent])
    assert plan.peak == peak(events)


def _given(code: str) -> list[ast.expr]:
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Assign([ast.Tuple(targets)], ast.Name("args")):
                return targets
    raise AssertionError("a wrapper without inputs")
