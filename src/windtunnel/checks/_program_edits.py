"""Fixes that need more of a program than the finding's line: a function for each finding, by its code."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Sequence
from typing import cast

from windtunnel.checks._program import (
    Edit,
    Loop,
    Program,
    loads,
    name_of,
    names,
    own_name,
    pairs,
    root_of,
    scope_of,
    stored,
    uses,
)
from windtunnel.trace.finding import Finding

MOVES = ("to", "cuda")
LOSS = re.compile("loss|Loss|criterion")
DEVICE = re.compile(r"""'cuda(:\d+)?'|(\w+\.)*device""")
MADE = re.compile(r"torch\.(arange|cat|empty|eye|from_numpy|full|linspace|ones|rand|randint|randn|stack|tensor|zeros)")
NO_TENSOR = {
    "size",
    "tolist",
    "numpy",
    "item",
    "split",
    "chunk",
    "unbind",
    "max",
    "min",
    "sort",
    "topk",
    "dim",
    "numel",
}
TO_DEVICE = "from pageable memory"
"""In the message of a finding on copies to a device."""
TAKES_NO_GRAPH = {"float", "print", "len", "isinstance", "str", "format", "item", "tolist", "numpy", "detach"}
NUMBERED = re.compile(r"cuda:(\d+)|\.cuda\((\d+)\)")


def waiting(program: Program, finding: Finding) -> Edit | None:
    """The host waits for all devices before the line that comes too early, which is always enough."""
    statement = program.statement(finding.site.line)
    return None if statement is None else program.before(statement, "torch.cuda.synchronize()")


def used_before_it_is_freed(program: Program, finding: Finding) -> Edit | None:
    """The host waits after the last use on the other stream: whatever frees the memory comes later."""
    statement = program.statement(finding.other.line) if finding.other.file == program.file else None
    simple = isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr)
    return program.after(statement, "torch.cuda.synchronize()") if statement is not None and simple else None


def at_once(program: Program, finding: Finding) -> Edit | None:
    """The optimizer's default implementation, which updates all tensors together."""
    found = [
        (call, keyword)
        for call in program.calls(finding.message.partition(" ")[0])
        for keyword in call.keywords
        if keyword.arg == "foreach" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
    ]
    return program.without(*found[0]) if len(found) == 1 else None


def searching_unused(program: Program, finding: Finding) -> Edit | None:
    """DistributedDataParallel that looks for parameters without a gradient."""
    calls = program.calls("DistributedDataParallel")
    if len(calls) != 1 or "or pass `find_unused_parameters=True`" not in finding.advice:
        return None
    if any(keyword.arg in ("find_unused_parameters", None) for keyword in calls[0].keywords):
        return None
    return program.with_keyword(calls[0], "find_unused_parameters=True")


def on_its_own_device(program: Program, finding: Finding) -> Edit | None:
    """The rank's device is its current one before DistributedDataParallel is built for it."""
    statement = program.statement(finding.site.line)
    for call in program.calls("DistributedDataParallel"):
        ids = [keyword.value for keyword in call.keywords if keyword.arg == "device_ids"]
        if statement is not None and call in ast.walk(statement) and ids and isinstance(ids[0], ast.List):
            return program.before(statement, f"torch.cuda.set_device({ast.unparse(ids[0].elts[0])})")
    return None


def set_in_time(program: Program, finding: Finding) -> Edit | None:
    """The variable before the first import, where the line names its value and all that follows finds its devices."""
    statement = program.statement(finding.site.line)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Constant):
        return None
    shown = [part for part in str(statement.value.value).split(",") if part.strip()]
    numbers = [int("".join(found)) for found in NUMBERED.findall("".join(program.lines))]
    if not shown or any(number >= len(shown) for number in numbers):
        return None
    first = next((one for one in program.tree.body if isinstance(one, ast.Import | ast.ImportFrom)), None)
    if first is None or (isinstance(first, ast.ImportFrom) and first.module == "__future__"):
        return None
    value = ast.unparse(statement.value)
    return program.before(first, f'import os\n\nos.environ["CUDA_VISIBLE_DEVICES"] = {value}')


def moved_once(program: Program, finding: Finding) -> Edit | None:
    """`x = x.to(device)` before the loop, where nothing else is done with `x`: the moves in it then do nothing."""
    holders = program.holders(finding.site.line)
    calls = [one for one in ast.walk(holders[-1]) if isinstance(one, ast.Call) and one.lineno == finding.site.line]
    moves = [call for call in calls if _moved(call)]
    if len(moves) != 1:
        return None
    move, name, scope = moves[0], _moved(moves[0]), scope_of(holders)
    alike = {id(call.func.value) for call in ast.walk(scope) if isinstance(call, ast.Call)
             and isinstance(call.func, ast.Attribute) and ast.unparse(call) == ast.unparse(move)}  # fmt: skip
    loop = _outermost(holders, lambda one: not stored(one) & names(move))
    if loop is None or not program.begins_line(loop) or not own_name(scope, name):
        return None
    within = any(isinstance(one, Loop) and loop in ast.walk(one) for one in holders if one is not loop)
    others = [one for one in loads(scope, name) if id(one) not in alike and (within or one.lineno >= loop.lineno)]
    return None if others else program.before(loop, f"{name} = {ast.unparse(move)}")


def _outermost(holders: Sequence[ast.AST], fits: Callable[[ast.AST], bool]) -> Loop | None:
    """The outermost loop around a line, in its own function, that fits."""
    scope = holders.index(scope_of(holders))
    return next((one for one in holders[scope:] if isinstance(one, Loop) and fits(one)), None)


def _moved(node: ast.AST) -> str:
    """The name `x` of `x.to(device)` or `x.cuda()`, whose arguments are names and constants; "" of all else."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in MOVES:
        return ""
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    plain = all(isinstance(one, ast.Constant | ast.Name | ast.Attribute) for one in given)
    return node.func.value.id if plain and isinstance(node.func.value, ast.Name) else ""


def left_on_device(program: Program, finding: Finding) -> Edit | None:
    """What a line takes to the host only to be moved back stays where it is."""
    if finding.other.file != program.file:
        return None
    holders = program.holders(finding.other.line)
    statement, scope = holders[-1], scope_of(holders)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return None
    name, value = statement.targets[0].id, statement.value
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or value.func.attr != "cpu":
        return None
    again = [one for one in ast.walk(scope) if isinstance(one, ast.Name) and one.id == name
             and not isinstance(one.ctx, ast.Load)]  # fmt: skip
    back = {id(cast(ast.Attribute, call.func).value) for call in ast.walk(scope)
            if isinstance(call, ast.Call) and _moved(call) == name}  # fmt: skip
    if len(again) != 1 or not own_name(scope, name) or any(id(one) not in back for one in loads(scope, name)):
        return None
    (line, column), (end_line, end_column) = program.end(value.func.value), program.end(value)
    return Edit(program.file, line, column, end_line, end_column, "")


def pinned(program: Program, finding: Finding) -> Edit | None:
    """A loader that pins its batches; of a tensor of the program's own, a pinned copy that nobody need wait for."""
    moves = _moves(program, finding.site.line)
    if TO_DEVICE not in finding.message or not moves:
        return made_there(program, finding)
    loaders = [one for one in program.calls("DataLoader") if not _has(one, "pin_memory")]
    if all(program.loop_target(root_of(source)) for source, _ in moves):
        return program.with_keyword(loaders[0], "pin_memory=True") if len(loaders) == 1 else None
    if not all(_is_tensor(source, program.tree) for source, _ in moves):
        return None
    return _without_wait(program, moves, ".pin_memory()")


def without_waiting(program: Program, finding: Finding) -> Edit | None:
    """A batch of a loader that pins is moved without waiting for it, where nothing writes into it."""
    moves, loaders = _moves(program, finding.site.line), program.calls("DataLoader")
    if not moves or len(loaders) != 1 or not _has(loaders[0], "pin_memory"):
        return read_after_the_loop(program, finding)
    for source, _ in moves:
        name = root_of(source)
        form = {"tuple": ast.Name, "name": ast.Subscript}.get(program.loop_target(name))
        if form is None or not isinstance(source, form) or program.written(name):
            return None
    return _without_wait(program, moves, "")


def _moves(program: Program, line: int) -> list[tuple[ast.expr, ast.Call]]:
    """What `x.to(...)` and `x.cuda(...)` of a line move, from the left to the right."""
    calls = [one for one in ast.walk(program.holders(line)[-1]) if isinstance(one, ast.Call) and one.lineno == line]
    moves = [(one.func.value, one) for one in calls if isinstance(one.func, ast.Attribute) and one.func.attr in MOVES]
    return sorted(moves, key=lambda move: program.end(move[1]))


def _without_wait(program: Program, moves: list[tuple[ast.expr, ast.Call]], before: str) -> Edit | None:
    """All moves of a line with `non_blocking=True`."""
    edits = []
    for source, call in moves:
        (line, column), (end_line, end_column) = program.end(source), program.end(call)
        if not (unblocked := _unblocked(call)):
            return None
        edits.append(Edit(program.file, line, column, end_line, end_column, before + unblocked))
    return functools.reduce(program.joined, edits)


def _unblocked(call: ast.Call) -> str:
    """`.to("cuda", non_blocking=True)` for `.to("cuda")` and `.cuda()`; "" of other forms."""
    if call.keywords or len(call.args) > 1:
        return ""
    name = cast(ast.Attribute, call.func).attr
    device = ast.unparse(call.args[0]) if call.args else ""
    if name == "to" and not DEVICE.fullmatch(device):
        return ""
    return f".{name}({device}{device and ', '}non_blocking=True)"


def _has(call: ast.Call, name: str) -> bool:
    return any(keyword.arg in (name, None) for keyword in call.keywords)


def _is_tensor(node: ast.expr, tree: ast.Module) -> bool:
    """Whether an expression is surely a tensor: what functions of torch make, parts of it, and names of such."""
    if isinstance(node, ast.Subscript):
        return _is_tensor(node.value, tree)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return bool(MADE.fullmatch(ast.unparse(node.func))) or (
            node.func.attr not in NO_TENSOR and _is_tensor(node.func.value, tree)
        )
    if not isinstance(node, ast.Name):
        return False
    assigned = [one for one in ast.walk(tree) if isinstance(one, ast.Assign) and node.id in stored(one)]
    values = [
        value for one in assigned for target, value in pairs(one.targets[0], one.value) if name_of(target) == node.id
    ]
    given = [one for one in uses(tree, node.id) if not isinstance(one.ctx, ast.Load)]
    return len(values) == len(given) > 0 and all(
        _is_tensor(value, tree) for value in values if name_of(value) != node.id
    )


def read_after_the_loop(program: Program, finding: Finding) -> Edit | None:
    """What a line reads and only collects is collected on the device, and read once, behind the loop."""
    holders = program.holders(finding.site.line)
    kept, scope = _kept_by(holders[-1]), scope_of(holders)
    if kept is None:
        return None
    target, what = kept
    if (
        not isinstance(what, ast.Call)
        or what.args
        or not isinstance(what.func, ast.Attribute)
        or not isinstance(target, ast.Name)
    ):
        return None
    name, tensor = target.id, what.func.value
    loop = _outermost(holders, lambda one: len(uses(one, name)) == 1)
    if what.func.attr != "item" or loop is None or not own_name(scope, name) or not program.ends_line(loop):
        return None
    listed = isinstance(holders[-1], ast.Expr)
    if listed and not _begins_empty(scope, name):
        return None
    exact = "" if listed else _exact(tensor)
    if exact is None:
        return None
    (line, column), (end_line, end_column) = program.end(tensor), program.end(what)
    collected = Edit(program.file, line, column, end_line, end_column, f".detach(){exact}")
    read = (
        f"torch.stack({name}).tolist() if {name} else []"
        if listed
        else f"{name}.item() if torch.is_tensor({name}) else {name}"
    )
    return program.joined(collected, program.after(loop, f"{name} = {read}"))


def _exact(tensor: ast.expr) -> str | None:
    """What makes a sum on the device that of Python's numbers: floats are doubles there; None where it is not sure."""
    if any(isinstance(one, ast.Compare) or name_of(one) == "eq" for one in ast.walk(tensor)):
        return ""  # whole numbers
    return ".double()" if LOSS.search(ast.unparse(tensor)) else None


def _begins_empty(scope: ast.AST, name: str) -> bool:
    """Whether a list begins empty, and nothing else is ever assigned to its name."""
    found = [one for one in ast.walk(scope) if isinstance(one, ast.Assign) and name in stored(one)]
    plain = [one for one in found if isinstance(one.value, ast.List) and not one.value.elts]
    return (
        len(found) == len(plain) == 1 and len([one for one in uses(scope, name) if isinstance(one.ctx, ast.Store)]) == 1
    )


def made_there(program: Program, finding: Finding) -> Edit | None:
    """`torch.full((), number, device=...)` for `torch.tensor(number, ...)`: it passes the number to a kernel."""
    statement = program.holders(finding.site.line)[-1]
    found = [
        call
        for call in program.calls("tensor")
        if call in ast.walk(statement) and len(call.args) == 1 and call.lineno == finding.site.line
    ]
    if len(found) != 1 or not _is_number(found[0].args[0], program.tree):
        return None
    (call,) = found
    given = ", ".join(ast.unparse(one) for one in [*call.args, *call.keywords])
    return program.instead(call, f"torch.full((), {given})")


def _is_number(node: ast.expr, tree: ast.Module) -> bool:
    """Whether an expression is surely a Python number: of constants, of counters of loops, and of what these make."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    if isinstance(node, ast.UnaryOp | ast.BinOp):
        parts = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
        return all(_is_number(one, tree) for one in parts)
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("int", "float", "len") or ast.unparse(node.func).startswith("math.")
    if not isinstance(node, ast.Name):
        return False
    loops = [one for one in ast.walk(tree) if isinstance(one, ast.For) and node.id in stored(one.target)]
    assigned = [one for one in ast.walk(tree) if isinstance(one, ast.Name) and one.id == node.id
                and isinstance(one.ctx, ast.Store)]  # fmt: skip
    return len(loops) == len(assigned) > 0 and all(_counts(one, node.id) for one in loops)


def _counts(loop: ast.For, name: str) -> bool:
    """Whether a loop gives whole numbers to a name: `for name in range(...)`, `for name, x in enumerate(...)`."""
    if not isinstance(loop.iter, ast.Call):
        return False
    if name_of(loop.iter.func) == "range":
        return isinstance(loop.target, ast.Name)
    first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else None
    return name_of(loop.iter.func) == "enumerate" and name_of(first or loop) == name


def without_graph(program: Program, finding: Finding) -> Edit | None:
    """What is kept from step to step is kept without its graph, where nothing that it reaches has a backward pass."""
    grown = {root_of(call.func.value) for call in program.calls("backward") if isinstance(call.func, ast.Attribute)}
    made = [one for one in ast.walk(program.tree) if isinstance(one, ast.Assign) and isinstance(one.value, ast.Call)]
    grown |= {name_of(one.targets[0]) for one in made if LOSS.search(name_of(cast(ast.Call, one.value).func))} - {""}
    for node in ast.walk(program.tree):
        kept = _kept_by(node)
        if kept is None or not name_of(kept[0]):
            continue
        what = _tensor_in(kept[1], grown)
        if what is not None and not _begins_backward(program.tree, reached(program.tree, {name_of(kept[0])})):
            return program.behind(what, ".detach()")
    return None


def _tensor_in(added: ast.expr, grown: set[str]) -> ast.Name | None:
    """The one tensor with a graph in what is added, where nothing is called with it; None where it is not so simple."""
    found = [
        one for one in ast.walk(added) if isinstance(one, ast.Name) and one.id in grown and holds_graph(added, {one.id})
    ]
    calls = [one for one in ast.walk(added) if isinstance(one, ast.Call)]
    given = [part for call in calls for one in (*call.args, *call.keywords) for part in ast.walk(one)]
    return found[0] if len(found) == 1 and found[0] not in given else None


def _kept_by(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """What a statement adds to what was there: the sum or list, and the expression that is added."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return node.target, node.value
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.BinOp):
        target, sides = ast.unparse(node.targets[0]), (node.value.left, node.value.right)
        if isinstance(node.value.op, ast.Add) and target in map(ast.unparse, sides):
            return node.targets[0], sides[ast.unparse(sides[0]) == target]
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append" and call.args:
        return call.func.value, call.args[0]
    return None


def _begins_backward(tree: ast.Module, grown: set[str]) -> bool:
    """Whether a backward pass may begin at one of some names, anywhere in the file."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        receiver = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        given = [*receiver, *call.args, *(keyword.value for keyword in call.keywords)]
        if name_of(call.func) in ("backward", "grad") and any(holds_graph(one, grown) for one in given):
            return True
    return False


def reached(tree: ast.Module, begun: set[str]) -> set[str]:
    """All names of a file that may hold the graph of some names, whatever the order; functions by what they return."""
    grown: set[str] = set()
    while grown != begun:
        grown, begun = begun, set(begun)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr | ast.For):
                value = node.iter if isinstance(node, ast.For) else node.value
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if value is not None and holds_graph(value, begun):
                    begun |= {name for target in targets for name in stored(target) | {name_of(target)} if name}
            elif isinstance(node, ast.FunctionDef) and any(
                isinstance(one, ast.Return) and one.value is not None and holds_graph(one.value, begun)
                for one in ast.walk(node)
            ):
                begun.add(node.name)
    return begun


def holds_graph(node: ast.AST, grown: set[str]) -> bool:
    """Whether an expression's value may hold the graph of one of some names."""
    if isinstance(node, ast.Call) and name_of(node.func) in TAKES_NO_GRAPH:
        return False
    if isinstance(node, ast.Name | ast.Attribute) and name_of(node) in grown:
        return True
    return any(holds_graph(one, grown) for one in ast.iter_child_nodes(node))


EDITS: dict[str, Callable[[Program, Finding], Edit | None]] = {
    "wrong-timing": waiting,
    "stale-read": waiting,
    "early-overwrite": waiting,
    "unsynchronized-access": waiting,
    "freed-in-use": used_before_it_is_freed,
    "unfused-optimizer": at_once,
    "unused-parameters": searching_unused,
    "current-device-elsewhere": on_its_own_device,
    "late-visible-devices": set_in_time,
    "repeated-copy": moved_once,
    "copy-back-and-forth": left_on_device,
    "host-sync": without_waiting,
    "pageable-copy": pinned,
    "growing-memory": without_graph,
}
