"""The values of a compiled program: the graph that Inductor was given, computed on the CPU below the emulation.

Each operator gives what it gives in a CUDA graph's replay: the CPU's kernel, or ours where the CPU has none. Random
numbers follow Inductor's rule: the seeds are drawn from the device's generator, once a call of the compiled graph, and
the numbers of a seed are a function of that seed and the shape, so that the backward pass makes them again. They are
those of a CPU generator with that seed, not those of Triton's Philox.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TypeGuard

import torch
from torch import fx
from torch._ops import HigherOrderOperator

from windtunnel.errors import UnsupportedError
from windtunnel.seam.torch.compiled.answers import Answers, about, keyed, shape_of
from windtunnel.seam.torch.compiled.higher_order import EVALUATE, WITHOUT_WRAPPING, Evaluation
from windtunnel.seam.torch.dispatch.conversions import BOUNDS, CONVERSION, convert
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.arguments import Arguments, OpOverload, tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.halves import FULL, HALVES
from windtunnel.seam.torch.plans.plan import BUILT_IN
from windtunnel.seam.torch.rehearsal.assumptions import KEEP_SHAPES, refusal
from windtunnel.seam.torch.tags import device_of, is_physically_meta

Tensor = torch.Tensor
C = torch._C
aten = torch.ops.aten
CPU_DEVICE, META = torch.device("cpu"), torch.device("meta")
SEED_END = 2**63 - 1
"""The seeds that `inductor_seeds` draws lie below it (torch/_inductor/inductor_prims.py)."""
PYTORCHS = (*BUILT_IN, "prims", "inductor", "inductor_prims")
"""Namespaces of operators that PyTorch brings: all others are the program's."""
SYMBOLIC = ("_operator", "math", "builtins", "torch", "torch.utils._sympy.functions")
"""Modules of Python functions in a graph that work on sizes alone."""
HALF = frozenset({*HALVES, torch.complex32})
ITEM = "aten::_local_scalar_dense"


class UnsupportedGraph(Exception):  # noqa: N818 - it is no error of the program's
    """A graph has something that is not computed here: it runs operator by operator instead."""


def computed_from(dispatch: Dispatch, answers: Answers, module: fx.GraphModule, plain: bool = False) -> fx.GraphModule:
    """A copy of a graph whose operators compute values on the CPU, wherever its tensors are said to lie.

    `answers` hears what the wrapper will ask for when the copy runs. A `plain` copy keeps PyTorch's operators.

    Raises:
        UnsupportedGraph: the graph has an operator that takes operators, and that nothing here computes.
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    moved = partial(_placed, META if dispatch.state.no_data else CPU_DEVICE)
    parts: dict[str, bool] = {}
    for node, copy in zip(module.graph.nodes, graph.nodes, strict=True):
        if copy.op == "call_function":
            if isinstance(node.target, HigherOrderOperator) and str(node.target) in WITHOUT_WRAPPING:
                parts.update(dict.fromkeys(_subgraphs(node), True))
            if not (plain and isinstance(node.target, OpOverload)):
                copy.target = _target(dispatch, answers, node)
            copy.args, copy.kwargs = moved(copy.args), moved(copy.kwargs)
        elif copy.op not in ("placeholder", "get_attr", "output"):
            raise UnsupportedGraph(str(copy.target))
    _recompose(dispatch, module.graph, graph)
    made = fx.GraphModule(module, graph)
    _call_directly(made)
    for name, part in list(made.named_children()):
        if isinstance(part, fx.GraphModule):
            setattr(made, name, computed_from(dispatch, answers, part, plain or parts.get(name, False)))
    return made


def _recompose(dispatch: Dispatch, module: fx.Graph, copied: fx.Graph) -> None:
    """Let the gradient of `relu` be the one operator again that Inductor took apart, where the values are the same.

    The CPU chooses by a mask between a tensor and a number ten times as slowly as its own kernel for that.
    """
    for node, copy in zip(list(module.nodes), list(copied.nodes), strict=True):
        if node.target is not aten.where.self:
            continue
        mask, zero, gradient = node.args
        if not (_calls(mask, aten.le.Scalar) and _calls(zero, aten.full.default) and zero.args == ([], 0.0)):
            continue
        value, threshold = mask.args
        if _alike(value, gradient) and _dtype(value) == _dtype(zero):
            copied_mask, copied_zero, copied_gradient = copy.args
            copy.target = _operator(dispatch, aten.threshold_backward.default, _is_full(node))
            copy.args = (copied_gradient, copied_mask.args[0], threshold)
            for unused in (copied_mask, copied_zero):
                if not unused.users:
                    copied.erase_node(unused)


def _call_directly(module: fx.GraphModule) -> None:
    """Let a graph's code call what it computes with, instead of the functions that only have the names for it."""
    names = module.forward.__globals__
    for name, value in list(names.items()):
        if isinstance(value, Named):
            names[name] = value.function


def _calls(node: object, operator: OpOverload) -> TypeGuard[fx.Node]:
    return isinstance(node, fx.Node) and node.target is operator


def _alike(one: object, other: object) -> bool:
    """Whether two nodes give floating-point tensors of one type, shape and layout."""
    if not (isinstance(one, fx.Node) and isinstance(other, fx.Node)):
        return False
    first, second = one.meta.get("val"), other.meta.get("val")
    if not (isinstance(first, Tensor) and isinstance(second, Tensor) and first.is_floating_point()):
        return False
    # As text, since to compare sizes that are symbols would tie them together.
    facts = [(str(tensor.dtype), str(tensor.shape), str(tensor.stride())) for tensor in (first, second)]
    return facts[0] == facts[1]


def _dtype(node: object) -> object:
    return getattr(node.meta.get("val"), "dtype", None) if isinstance(node, fx.Node) else None


def _subgraphs(node: fx.Node) -> list[str]:
    return [str(used.target) for used in node.all_input_nodes if used.op == "get_attr"]


def run(dispatch: Dispatch, module: fx.GraphModule, inputs: Arguments) -> list[object]:
    """The results of such a graph."""
    local = dispatch.local
    inner, local.inner = local.inner, True
    apart, local.apart = local.apart, []
    autocast = C._DisableAutocast()
    try:
        with torch.no_grad(), C._DisableTorchDispatch(), C.DisableTorchFunctionSubclass():
            results: list[object] = list(module.forward(*inputs))
    finally:
        local.inner, local.apart = inner, apart
        del autocast  # its end is the end of the guard
    return results


def _placed(place: torch.device, value: object) -> object:
    """The arguments of a node with a place for values, or for shapes alone, instead of every GPU."""
    if isinstance(value, torch.device):
        return CPU_DEVICE if value.type == "cpu" else place
    if isinstance(value, dict):
        return {key: _placed(place, part) for key, part in value.items() if key != "pin_memory"}
    if isinstance(value, (list, tuple)):
        return type(value)(_placed(place, part) for part in value)
    return value


def _target(dispatch: Dispatch, answers: Answers, node: fx.Node) -> Callable[..., object]:
    """What computes an operator of a graph."""
    target = node.target
    if isinstance(target, HigherOrderOperator):
        evaluate = EVALUATE.get(target.name())
        if evaluate is None:
            raise UnsupportedGraph(target.name())
        answers.needed = True
        context = Evaluation(dispatch, answers, keyed(node), partial(_operator, dispatch))
        return Named(partial(evaluate, context), target.name())
    if isinstance(target, OpOverload):
        special = RANDOM.get(target.name())
        if special is not None:
            return Named(special(dispatch), target.name())
        if target is CONVERSION and _dtype(node) in BOUNDS:
            return Named(convert, target.name())
        compute = _operator(dispatch, RESHAPED.get(target.name(), target), _is_full(node))
        answers.needed |= bool(node.meta.get("unbacked_bindings"))
        if target.namespace not in PYTORCHS:
            answers.needed = True
            compute = Named(_own(dispatch, answers, target, compute), target.name())
        if node.meta.get("unbacked_bindings"):
            return Named(_telling(dispatch, answers, node, target, compute), target.name())
        return compute
    if callable(target) and getattr(target, "__module__", "") in SYMBOLIC:
        return target
    raise UnsupportedGraph(getattr(target, "__name__", str(target)))


def _own(
    dispatch: Dispatch, answers: Answers, target: OpOverload, compute: Callable[..., object]
) -> Callable[..., object]:
    """An operator of the program's own, which may launch kernels of Triton's."""

    def own(*args: object, **kwargs: object) -> object:
        apart = dispatch.local.apart
        assert apart is not None
        before = len(apart)
        out = compute(*args, **kwargs)
        if len(apart) > before:
            answers.learn(about(target, kernels=True), apart[before:])
        return out

    return own


def _telling(
    dispatch: Dispatch, answers: Answers, node: fx.Node, target: OpOverload, compute: Callable[..., object]
) -> Callable[..., object]:
    """An operator whose result, or its size, the wrapper will ask for."""
    if target.name().startswith(ITEM):
        key = keyed(node)

        def item(tensor: Tensor) -> object:
            value = compute(tensor) if not is_physically_meta(tensor) else _assumed(dispatch, tensor)
            answers.learn(key, value)
            return value

        return item

    def sized(*args: object, **kwargs: object) -> object:
        unknown = any(map(is_physically_meta, tensors_in((*args, *kwargs.values()))))
        out = _all_selected(dispatch, target, args) if unknown else compute(*args, **kwargs)
        answers.learn(about(target, shape=True), tuple(shape_of(tensor) for tensor in tensors_in((out,))))
        return out

    return sized


def _assumed(dispatch: Dispatch, tensor: Tensor) -> object:
    """What a rehearsal without data takes a value for."""
    assumptions = dispatch.state.assumptions
    assert assumptions is not None
    value = assumptions.value(tensor)
    return value if tensor.dtype.is_floating_point else bool(value) if tensor.dtype is torch.bool else int(value)


def _all_selected(dispatch: Dispatch, target: OpOverload, args: Arguments) -> object:
    """What an operator gives that picks elements by values that nobody knows: all of them, or a refusal."""
    assumptions = dispatch.state.assumptions
    assert assumptions is not None
    out = assumptions.selected(target._schema.name, args)
    if out is None:
        raise UnsupportedError(refusal(dispatch.state, f"the size of {target}'s result depends on values", KEEP_SHAPES))
    return out


def _operator(dispatch: Dispatch, func: OpOverload, is_full: bool = False) -> Callable[..., object]:
    """What computes an operator; `is_full` says that none of its tensors has half precision, or is sparse or nested."""
    plan = dispatch.plans.get(id(func)) or dispatch.plan(func)
    if plan.described is not None and not plan.described.parts:  # its library may have no kernel that loads here
        return Named(plan.described.values, plan.name)
    values = dispatch.deviations.values
    compute = values.get(func.name()) or values.get(plan.name)
    if compute is None and plan.builtin and not plan.random:
        return Named(FULL.get(plan.strided, plan.strided) if is_full else plan.run, plan.name)
    compute = compute or Dispatch.compute

    def computing(*args: object, **kwargs: object) -> object:
        device = max((device_of(tensor) for tensor in tensors_in((*args, *kwargs.values()))), default=0)
        return compute(dispatch, Call(plan, func, args, kwargs, max(device, dispatch.local.device)))

    return Named(computing, plan.name)


def _is_full(node: fx.Node) -> bool:
    """Whether all tensors that a node takes and gives are known, dense and of no half precision."""
    values = [one.meta.get("val") for one in (node, *node.all_input_nodes)]
    return all(value is not None for value in values) and all(
        tensor.layout is torch.strided and not tensor.is_nested and tensor.dtype not in HALF
        for tensor in tensors_in(values)
    )


class Named:
    """A function under a name that a graph's code may have."""

    def __init__(self, function: Callable[..., object], name: str) -> None:
        self.function = function
        self.__name__ = self.__qualname__ = re.sub(r"\W", "_", name)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """The function."""
        return self.function(*args, **kwargs)


# ---------------------------------------------------------------------------------------------- random numbers


def _seeds(dispatch: Dispatch) -> Callable[..., object]:
    draw = _operator(dispatch, aten.randint.default)
    return lambda count, device: draw(SEED_END, [count], dtype=torch.int64, device=CPU_DEVICE)


def _seed(dispatch: Dispatch) -> Callable[..., object]:
    draw = _operator(dispatch, aten.randint.default)
    return lambda device: draw(SEED_END, [], dtype=torch.int64, device=CPU_DEVICE)


def _lookup(dispatch: Dispatch) -> Callable[..., object]:
    return lambda seeds, index: seeds[index].clone()


def _random(dispatch: Dispatch) -> Callable[..., object]:
    def random(size: list[int], seed: Tensor, mode: str, *, align_dtype: object = None) -> Tensor:
        if align_dtype is not None:
            raise NotImplementedError("torch._inductor.config.align_random_eager is not emulated: turn it off")
        draw = torch.randn if mode == "randn" else torch.rand
        return draw(size, generator=_generator(seed), dtype=torch.float32, device=CPU_DEVICE)

    return random


def _randint(dispatch: Dispatch) -> Callable[..., object]:
    def randint(low: int, high: int, size: list[int], seed: Tensor) -> Tensor:
        return torch.randint(low, high, size, generator=_generator(seed), device=CPU_DEVICE)

    return randint


def _generator(seed: Tensor) -> torch.Generator:
    return torch.Generator(CPU_DEVICE).manual_seed(int(seed.item()))


RANDOM: dict[str, Callable[[Dispatch], Callable[..., object]]] = {
    "prims::inductor_seeds": _seeds,
    "prims::inductor_seed": _seed,
    "prims::inductor_lookup_seed": _lookup,
    "prims::inductor_random": _random,
    "prims::inductor_randint": _randint,
}
"""Inductor's own random numbers."""
RESHAPED = {"aten::view": aten.reshape.default, "aten::_unsafe_view": aten.reshape.default}
"""Inductor gives tensors other strides than the graph was traced with, so that views may have to copy."""
