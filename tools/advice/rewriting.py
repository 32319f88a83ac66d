"""Rewriting a program's text: a longer run of it, and fixes that can be tried on any program."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

from tools.advice.rehearsal import MARK
from windtunnel.trace.finding import Fix

AGAIN = "_again"
"""The variable of the loop that makes a program longer."""
OPTIMIZERS = ("Adam", "AdamW", "SGD", "NAdam", "RAdam", "RMSprop", "Adagrad")
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


def lengthened(program: ast.Module, times: int) -> ast.Module:
    """The program with its last loop at top level run `times` times over; raises ValueError where it has none.

    Lines keep their numbers, so that findings name those of the file.
    """
    index = _last_loop(program)
    outer = ast.For(
        ast.Name(AGAIN, ast.Store()),
        ast.Call(ast.Name("range", ast.Load()), [ast.Constant(times)], []),
        [program.body[index]],
        [],
    )
    body = [*program.body]
    body[index] = ast.copy_location(outer, program.body[index])
    return ast.fix_missing_locations(ast.Module(body, []))


def _last_loop(program: ast.Module) -> int:
    for index in range(len(program.body) - 1, -1, -1):
        statement = program.body[index]
        loops = [one for one in ast.walk(statement) if isinstance(one, (ast.For, ast.While))]
        if loops and isinstance(statement, (ast.For, ast.While, ast.With)):
            return index
    raise ValueError("the program has no loop at top level")


def marked(program: ast.Module) -> ast.Module:
    """The program with a mark after each round of its last innermost loop."""
    program = copy.deepcopy(program)
    loop = _innermost(program)
    if loop is not None:
        mark = ast.Expr(ast.Call(ast.Name(MARK, ast.Load()), [], []))
        loop.body.append(ast.copy_location(mark, loop.body[-1]))
    return ast.fix_missing_locations(program)


def _innermost(program: ast.Module) -> ast.For | None:
    """The last loop of the program that holds no other one."""
    found = [one for one in ast.walk(program) if isinstance(one, ast.For)]
    found = [one for one in found if not any(isinstance(inner, ast.For) for inner in ast.walk(one) if inner is not one)]
    return max(found, key=lambda one: one.lineno, default=None)


class _NoWaits(ast.NodeTransformer):
    """Numbers stay on the device, and nobody synchronizes."""

    def __init__(self) -> None:
        self.changed = False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """`x.item()` becomes `x.detach()`, `torch.cuda.synchronize()` nothing."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args:
            self.changed = True
            node.func.attr = "detach"
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "synchronize":
            self.changed = True
            return ast.copy_location(ast.Constant(None), node)
        return node


def without_waits(program: ast.Module) -> ast.Module | None:
    """The program without `item()` and `synchronize()`; None where it has none."""
    change = _NoWaits()
    program = change.visit(copy.deepcopy(program))
    return ast.fix_missing_locations(program) if change.changed else None


HOST = (
    MARK, "print", "item", "tolist", "cpu", "numpy", "append", "format", "synchronize", "perf_counter", "time",
    "is_nan", "pin_memory",
)  # fmt: skip
"""Names by which a statement of a loop is known to need the host: to read a result, or to prepare what is copied."""


def _on_host(statement: ast.stmt) -> bool:
    """Whether a statement does something that no graph can hold."""
    if isinstance(statement, (ast.If, ast.While, ast.Break, ast.Continue, ast.Return)):
        return True
    names = {node.attr for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
    return bool((names | _names(statement)) & set(HOST))


def as_graph(program: ast.Module) -> ast.Module | None:
    """The program with the body of its last loop captured once and replayed; None where that cannot be written.

    What the loop's variable or a branch decides cannot be captured, and what the host does with a result, or with what
    the blocks around the loop are of, runs after each replay. The capture comes before a longer run's own loop.
    """
    program = copy.deepcopy(program)
    loop = _innermost(program)
    if loop is None:
        return None
    around = [one for one in ast.walk(program) if isinstance(one, (ast.For, ast.With)) and loop in ast.walk(one)]
    bound: set[str] = set()
    for one in around:
        bindings = [one.target] if isinstance(one, ast.For) else [item.optional_vars for item in one.items]
        bound.update(*(_names(binding) for binding in bindings if binding is not None))
    targets = _names(loop.target)
    of_host = [_on_host(one) or bool((bound - targets) & _names(one)) for one in loop.body]
    inside, after = _split(loop.body, of_host)
    used = {name for one in inside for name in _names(one)}
    if not inside or targets & used or any(isinstance(one, (ast.If, ast.While)) for one in after):
        return None
    inside = _joined(inside)
    pieces = ast.parse(CAPTURE).body
    for node in ast.walk(ast.Module(pieces, [])):
        if isinstance(node, (ast.For, ast.With)) and isinstance(node.body[0], ast.Pass):
            node.body = copy.deepcopy(inside)
    loop.body = [*ast.parse("_graph.replay()").body, *after]
    longer = [one for one in around if isinstance(one, ast.For) and _names(one.target) == {AGAIN}]
    _insert_before(program, longer[0] if longer else loop, pieces)
    return ast.fix_missing_locations(program)


def _split(body: list[ast.stmt], of_host: list[bool]) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """What is captured, and what the host does after a replay: its reading of results comes last where it can."""
    inside = [one for one, host in zip(body, of_host, strict=True) if not host]
    after = [one for one, host in zip(body, of_host, strict=True) if host]
    made = {node.id for one in after for node in ast.walk(one) if _stores(node)}
    if of_host[:1] == [True] or made & {name for one in inside for name in _names(one)}:
        first = of_host.index(True) if any(of_host) else len(body)
        return body[:first], body[first:]
    return inside, after


def _stores(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _joined(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements of which every stream begins after the one that is captured, which goes on after all of them."""
    calls = [one for statement in body for one in ast.walk(statement) if isinstance(one, ast.Call)]
    streams = {
        name.id
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "stream"
        for name in call.args
        if isinstance(name, ast.Name)
    }
    before = [f"{stream}.wait_stream(torch.cuda.current_stream())" for stream in sorted(streams)]
    after = [f"torch.cuda.current_stream().wait_stream({stream})" for stream in sorted(streams)]
    return [*ast.parse("\n".join(before)).body, *body, *ast.parse("\n".join(after)).body]


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def in_autocast(program: ast.Module) -> ast.Module | None:
    """The program with the body of its last loop in autocast; None where it has no loop."""
    program = copy.deepcopy(program)
    loop = _innermost(program)
    if loop is None:
        return None
    block = ast.parse('with torch.autocast("cuda", torch.float16):\n    pass').body[0]
    assert isinstance(block, ast.With)
    block.body = loop.body
    loop.body = [block]
    return ast.fix_missing_locations(program)


CAPTURE = """
_side = torch.cuda.Stream()
_side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(_side):
    for _warm in range(3):
        pass
torch.cuda.current_stream().wait_stream(_side)
_graph, _kept = torch.cuda.CUDAGraph(), {**globals(), **locals()}
with torch.cuda.graph(_graph):
    pass
"""


def _insert_before(tree: ast.Module, loop: ast.For, statements: list[ast.stmt]) -> None:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and loop in body:
                at = body.index(loop)
                body[at:at] = statements
                return


@dataclass(frozen=True)
class Anywhere:
    """A fix that can be tried on any program: a text that runs before it, or another text of it.

    `applies` says whether a program could profit at all, so that the others are not run for nothing; one that takes
    long is tried only where a finding `promised` something.
    """

    prelude: str = ""
    rewrite: Callable[[ast.Module], ast.Module | None] | None = None
    applies: Callable[[str, str], bool] = lambda source, gpus: True
    promised: bool = False


_FUSED = f"""
import functools, torch
for name in {FUSED!r}:
    kind = getattr(torch.optim, name)
    def begin(self, *args, _begin=kind.__init__, **options):
        options.pop("foreach", None)
        _begin(self, *args, **{{"fused": True, **options}})
    kind.__init__ = begin
"""
_CAPTURABLE = f"""
import torch
for name in {OPTIMIZERS!r}:
    kind = getattr(torch.optim, name)
    if "capturable" in kind.__init__.__code__.co_varnames:
        def begin(self, *args, _begin=kind.__init__, **options):
            _begin(self, *args, **{{"capturable": True, **options}})
        kind.__init__ = begin
"""
_TF32 = """
import torch
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.allow_tf32 = True
"""
_LOADER = """
import torch
begin = torch.utils.data.DataLoader.__init__
def changed(self, *args, **options):
    begin(self, *args, **{{**options, {option}}})
torch.utils.data.DataLoader.__init__ = changed
"""
_ONE = """
import torch
torch.nn.DataParallel = lambda module, *args, **options: module
"""


def _ampere(gpus: str) -> bool:
    return any(name in gpus for name in ("A100", "H100", "H200", "L4", "RTX30", "RTX40", "A10"))


def _loads(source: str, gpus: str) -> bool:
    return "DataLoader" in source


ANYWHERE: dict[Fix, tuple[Anywhere, ...]] = {
    "fused optimizer": (Anywhere(_FUSED, applies=lambda source, gpus: "optim" in source),),
    "half precision": (
        Anywhere(_TF32, applies=lambda source, gpus: _ampere(gpus)),
        Anywhere(rewrite=in_autocast, applies=lambda source, gpus: not _ampere(gpus) and "autocast" not in source),
    ),
    "workers": (Anywhere(_LOADER.format(option='"num_workers": 4'), applies=_loads, promised=True),),
    "pin": (Anywhere(_LOADER.format(option='"pin_memory": True'), applies=_loads),),
    "one GPU": (Anywhere(_ONE, applies=lambda source, gpus: "DataParallel(" in source),),
    "no wait": (
        Anywhere(rewrite=without_waits, applies=lambda source, gpus: ".item()" in source or "synchronize" in source),
    ),
    "graphs": (Anywhere(_CAPTURABLE + _FUSED, as_graph, lambda source, gpus: "foreach=False" not in source),),
}


def tries(program: ast.Module, gpus: str, rewriting: bool = True) -> Iterator[tuple[Fix, Anywhere, ast.Module]]:
    """Fixes that a program may profit from: the fix, the way to it, and the program's text.

    Without `rewriting` only those that leave the program's text alone.
    """
    source = ast.unparse(program)
    for fix, ways in ANYWHERE.items():
        for way in ways:
            if way.applies(source, gpus) and (rewriting or way.rewrite is None):
                rewritten = program if way.rewrite is None else way.rewrite(program)
                if rewritten is not None:
                    yield fix, way, rewritten
