"""Which ranks a program's source sets apart: expressions of the rank, evaluated for every rank of the cluster.

`rank == 3`, `rank % 4` and `sizes[rank]` sort the ranks by their values, and one rank of each value is to be compared
with the others. An expression with a value of its own for each rank (`seed + rank`) sorts nobody: where it matters, the
first rank and the last one differ. Where it seeds random numbers of Python's or NumPy's, by which ranks may choose, any
two may differ or not: further ones are compared. What depends on values that only the running program has is named.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

VARIABLES = {"RANK": 0, "SLURM_PROCID": 0, "LOCAL_RANK": 1, "SLURM_LOCALID": 1, "GROUP_RANK": 2, "SLURM_NODEID": 2}
"""Environment variables by what they number: the ranks of the job, those of a node, the nodes."""
WORLD = frozenset({"world_size", "WORLD_SIZE", "num_processes", "get_world_size", "nranks", "n_ranks"})
PER_NODE = frozenset({"LOCAL_WORLD_SIZE", "local_world_size", "device_count", "nproc_per_node"})
SORTING = (ast.Mod, ast.FloorDiv, ast.BitAnd, ast.BitOr, ast.BitXor, ast.RShift, ast.LShift, ast.Mult, ast.Pow)
KEEPING = (ast.Add, ast.Sub, ast.Mult, ast.Div)
"""Operators that keep ranks apart whatever the other side is."""
FUNCTIONS: dict[str, Callable[..., object]] = {
    "int": int, "abs": abs, "min": min, "max": max, "bool": bool, "range": range, "len": len, "str": str, "set": set,
    "tuple": tuple, "list": list, "sum": sum, "divmod": divmod, "frozenset": frozenset, "bin": bin, "pow": pow,
    "hash": hash, "round": round, "float": float,
}  # fmt: skip
OPERATORS: dict[type[ast.AST], Callable[..., object]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Pow: operator.pow, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.RShift: operator.rshift, ast.LShift: operator.lshift,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_,
    ast.Invert: operator.invert, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda one, many: one in many, ast.NotIn: lambda one, many: one not in many,
}  # fmt: skip
SEEDS = frozenset({"seed", "default_rng", "Random", "RandomState", "SeedSequence", "set_seed", "seed_everything"})
"""Functions that seed random numbers which a program has on the host."""
LIBRARIES = frozenset({"dist", "distributed", "c10d", "hvd"})
MOST_VALUES = 64
MOST_FEW = 16
DEEPEST = 40


@dataclass
class Uses:
    """What a source does with the rank.

    `ranks` are to be compared with the first and the last, `few` may differ from all others, `kinds` are periods and
    blocks of ranks that may; what the lines of `unknown` do is not known before they run. Those of `seeded` give each
    rank random numbers of its own.
    """

    ranks: set[int] = field(default_factory=set)
    few: set[int] = field(default_factory=set)
    kinds: set[tuple[int, int]] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)
    seeded: list[str] = field(default_factory=list)


class UnreadableError(Exception):
    """An expression depends on what only the running program knows."""


def uses(texts: Mapping[str, str], world: int, per_node: int) -> Uses:
    """What the source texts of a program, by file, do with the rank."""
    found = Uses()
    for file, text in texts.items():
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        source = _Source(tree, world, per_node)
        for node in source.sorting():
            _sort(found, source, node, f"{file}:{getattr(node, 'lineno', 0)}")
        found.seeded += [f"{file}:{line}" for line in source.seeds()]
    if found.seeded:
        found.ranks |= {1, world // 2, world - 2} & {*range(world)}
    return found


def imports(text: str) -> list[str]:
    """The modules that a source text imports, by their names from the folder of the file or a package's top.

    Raises:
        SyntaxError: it is no Python.
    """
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            found += [base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)]
    return [name for name in dict.fromkeys(found) if name]


def _sort(found: Uses, source: _Source, node: ast.AST, place: str) -> None:
    try:
        values = source.values(node)
    except UnreadableError:
        if place not in found.unknown:
            found.unknown.append(place)
        return
    first: dict[str, int] = {}
    for rank, value in enumerate(values):
        first.setdefault(repr(value), rank)
    numbered = ([rank % source.per_node for rank in range(source.world)],
                [rank // source.per_node for rank in range(source.world)])  # fmt: skip
    if len(first) == 1 or len(first) == len(values) or values in numbered:
        return
    if len(first) > MOST_VALUES:
        found.unknown.append(place)
        return
    shown = [*map(repr, values)]
    found.ranks |= {rank for value, rank in first.items() if value not in (shown[0], shown[-1])}
    if (kind := _regular(shown)) is not None:
        found.kinds.add(kind)
        return
    usual = Counter(shown).most_common(1)[0][0]
    few = {rank for rank, value in enumerate(shown) if value != usual}
    if len(few) <= MOST_FEW:
        found.few |= few


def _regular(values: Sequence[str]) -> tuple[int, int] | None:
    """A stride and a count by which ranks have these values: a period, or blocks."""
    world = len(values)
    for period in range(2, min(MOST_VALUES, world // 2) + 1):
        if world % period == 0 and all(values[rank] == values[rank % period] for rank in range(world)):
            return 1, period
    blocks = next((rank for rank in range(1, world) if values[rank] != values[0]), world)
    if world % blocks or blocks in (1, world):
        return None
    return (
        (blocks, world // blocks)
        if all(values[rank] == values[rank // blocks * blocks] for rank in range(world))
        else None
    )


class _Source:
    """One file: which names hold the rank, and what they are."""

    def __init__(self, tree: ast.Module, world: int, per_node: int) -> None:
        self.tree = tree
        self.world = world
        self.per_node = per_node
        self.assigned: dict[str, list[ast.expr | None]] = {}
        self.functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(tree):
            self._assign(node)
        self.ranked = self._spread()

    def _assign(self, node: ast.AST) -> None:
        """What an assignment, a loop or a call of one of the file's own functions gives to names."""
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(target, value)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._bind(target, value)
            case ast.NamedExpr(target=target, value=value):
                self._bind(target, value)
            case ast.AugAssign(target=target):
                self._bind(target, None)
            case ast.For(target=target) | ast.comprehension(target=target):
                self._bind(target, None)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in self.functions:
                parameters = self.functions[name].args.args
                for parameter, argument in zip(parameters, args, strict=False):
                    self.assigned.setdefault(parameter.arg, []).append(argument)
                for keyword in keywords:
                    if keyword.arg:
                        self.assigned.setdefault(keyword.arg, []).append(keyword.value)

    def _bind(self, target: ast.AST, value: ast.expr | None) -> None:
        match target:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                self.assigned.setdefault(name, []).append(value)
            case ast.Tuple(elts=several) | ast.List(elts=several):
                parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [None] * len(several)
                for one, part in zip(several, parts, strict=False):
                    self._bind(one, part)

    def _spread(self) -> set[str]:
        """The names to which the rank is given, by however many steps."""
        ranked: set[str] = set()
        while True:
            self.ranked = ranked
            more = {
                name
                for name, values in self.assigned.items()
                if any(value is not None and self._carries(value) for value in values)
            }
            more |= {name for name, function in self.functions.items() if self._returns(function)}
            if more <= ranked:
                return ranked
            ranked = ranked | more

    def _returns(self, function: ast.FunctionDef) -> bool:
        found = (node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None)
        return any(self._carries(value) for value in found)

    def _carries(self, node: ast.expr) -> bool:
        """Whether an expression's value is the rank or made of it by arithmetic."""
        match node:
            case ast.Compare() | ast.BoolOp() | ast.JoinedStr() | ast.Lambda():
                return False
            case ast.BinOp(left=left, right=right):
                return self._carries(left) or self._carries(right)
            case ast.UnaryOp(operand=operand):
                return self._carries(operand)
            case ast.IfExp(body=body, orelse=orelse):
                return self._carries(body) or self._carries(orelse)
            case ast.Call(func=ast.Name(id=name), args=args) if name in FUNCTIONS:
                return any(map(self._carries, args))
        return self.is_rank(node)

    def is_rank(self, node: ast.AST) -> bool:
        """Whether a name, a call or a variable of the environment is the rank."""
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="get_local_rank")) if not _is_library(owner):
                return True  # a coordinate of a mesh
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return name in self.ranked or _numbers(name) is not None
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                return _variable(node) in (0, 1, 2) or name in self.ranked or _numbers(name) is not None
            case ast.Subscript():
                return _variable(node) in (0, 1, 2)
        return False

    def sorting(self) -> Iterator[ast.expr]:
        """The largest expressions that may give several ranks one value."""
        found: list[ast.AST] = [self.tree]
        while found:
            node = found.pop()
            if isinstance(node, ast.Match) and self._carries(node.subject):
                values = (one.value for one in ast.walk(node) if isinstance(one, ast.MatchValue))
                yield from (ast.copy_location(ast.Compare(node.subject, [ast.Eq()], [one]), one) for one in values)
            if isinstance(node, ast.expr) and self._sorts(node) and not self._only_keeps(node):
                yield node
            else:
                found += ast.iter_child_nodes(node)

    def seeds(self) -> list[int]:
        """The lines that seed random numbers of the host by the rank."""
        return sorted(
            node.lineno
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) in SEEDS
            and any(map(self._carries, (*node.args, *(keyword.value for keyword in node.keywords))))
        )

    def _only_keeps(self, node: ast.expr) -> bool:
        """Whether an expression cannot be read, but what it does itself gives no two ranks one value."""
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, KEEPING):
            return False
        try:
            self.values(node)
        except UnreadableError:
            return True
        return False

    def _sorts(self, node: ast.expr) -> bool:
        match node:
            case ast.Compare(left=left, comparators=others):
                return any(map(self._carries, (left, *others)))
            case ast.BinOp(left=ast.Constant(value=str())):
                return False  # a text with the rank in it
            case ast.BinOp():
                parts = (one.op for one in ast.walk(node) if isinstance(one, ast.BinOp))
                return self._carries(node) and any(isinstance(one, SORTING) for one in parts)
            case ast.Subscript(slice=index):
                return _variable(node) is None and self._carries(index)
            case ast.Call(func=ast.Name(id="abs" | "min" | "max" | "range" | "divmod"), args=args):
                return any(map(self._carries, args))
            case ast.Call(func=ast.Attribute(attr="get"), args=[key, *_]):
                return self._carries(key)
        return False

    # ------------------------------------------------------------------ values

    def values(self, node: ast.AST) -> list[object]:
        """The value of an expression on each rank.

        Raises:
            UnreadableError: it depends on something else.
        """
        return [self._value(node, rank) for rank in range(self.world)]

    def _value(self, node: ast.AST, rank: int, depth: int = 0) -> object:
        if depth > DEEPEST:
            raise UnreadableError
        try:
            return self._computed(node, rank, depth + 1)
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise UnreadableError from error

    def _computed(self, node: ast.AST, rank: int, depth: int) -> object:
        def of(part: ast.AST) -> object:
            return self._value(part, rank, depth)

        match node:
            case ast.Constant(value=value):
                return value
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return [*map(of, parts)]
            case ast.Set(elts=parts):
                return {*map(of, parts)}
            case ast.Dict(keys=keys, values=values) if None not in keys:
                return {of(key): of(value) for key, value in zip(keys, values, strict=True) if key is not None}
            case ast.UnaryOp(op=op, operand=operand):
                return OPERATORS[type(op)](of(operand))
            case ast.BinOp(left=left, op=op, right=right):
                return OPERATORS[type(op)](of(left), of(right))
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [*map(of, (left, *others))]
                return all(OPERATORS[type(op)](*sides[at : at + 2]) for at, op in enumerate(ops))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return of(body) if of(test) else of(orelse)
        return self._named(node, rank, of)

    def _named(self, node: ast.AST, rank: int, of: Callable[[ast.AST], object]) -> object:
        """The value of a name, a call or an item."""
        variable = _variable(node)
        if variable is not None:
            return self._number(variable, rank) if variable >= 0 else [self.world, self.per_node][variable + 2]
        match node:
            case ast.Subscript(value=value, slice=index) if not isinstance(index, ast.Slice):
                return of(value)[of(index)]  # type: ignore[index]
            case ast.Call(func=ast.Attribute(value=value, attr="get"), args=args):
                return of(value).get(*map(of, args))  # type: ignore[attr-defined]
            case ast.Call(func=ast.Name(id=name), args=args) if name in FUNCTIONS:
                return FUNCTIONS[name](*map(of, args))
            case ast.Call(func=ast.Attribute(value=owner, attr="get_local_rank")) if not _is_library(owner):
                raise UnreadableError
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[], keywords=[]):
                return self._said(name, rank, of)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return self._said(name, rank, of)
        raise UnreadableError

    def _said(self, name: str, rank: int, of: Callable[[ast.AST], object]) -> object:
        """The value of a name: what the file assigns to it, once, else what its name says."""
        given = self.assigned.get(name, [])
        if not given and name in self.functions:
            given = [node.value for node in ast.walk(self.functions[name]) if isinstance(node, ast.Return)]
        texts = Counter(ast.dump(value) if value is not None else "" for value in given)
        if len(texts) == 1 and given[0] is not None:
            return of(given[0])
        number = _numbers(name)
        if given or (number is None and name not in WORLD | PER_NODE):
            raise UnreadableError
        if number is None:
            return self.world if name in WORLD else self.per_node
        return self._number(number, rank)

    def _number(self, what: int, rank: int) -> int:
        return [rank, rank % self.per_node, rank // self.per_node][what]


def _is_library(owner: ast.expr) -> bool:
    """Whether a function is one of torch.distributed, and no method of a mesh."""
    return (
        isinstance(owner, (ast.Name, ast.Attribute)) and getattr(owner, "id", getattr(owner, "attr", "")) in LIBRARIES
    )


def _numbers(name: str) -> int | None:
    """What a name says that it numbers, as in `VARIABLES`; None if it is no rank's."""
    short = name.lower().removeprefix("get_").removesuffix("()")
    if short in ("local_rank", "node_local_rank", "local_process_index", "localrank"):
        return 1
    if short in ("node_rank", "group_rank", "machine_rank"):
        return 2
    return 0 if short in ("rank", "global_rank", "process_index", "world_rank", "dist_rank", "my_rank") else None


def _variable(node: ast.AST) -> int | None:
    """What a variable of the environment numbers; -2 for the size of the job, -1 for that of a node."""
    match node:
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))):
            pass
        case ast.Call(func=ast.Attribute(attr="get" | "getenv"), args=[ast.Constant(value=str(name)), *_]):
            pass
        case _:
            return None
    return {**VARIABLES, "WORLD_SIZE": -2, "LOCAL_WORLD_SIZE": -1}.get(name)
