"""The values of operators that take operators, in a graph that Inductor compiles: a row of `EVALUATE` for each.

Each one is given the parts of its graph (branches, bodies, score functions) as modules that compute on the CPU, and
writes down what the wrapper will ask for: which branch was taken, whether a loop goes on, how full a mask is.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from windtunnel.errors import UnsupportedError
from windtunnel.seam.torch.compiled.answers import Answers, about
from windtunnel.seam.torch.dispatch.bits import WIDTHS
from windtunnel.seam.torch.dispatch.generators import Emulated
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.arguments import OpOverload
from windtunnel.seam.torch.tags import is_physically_meta

Tensor = torch.Tensor
Function = Callable[..., object]


class Evaluation(NamedTuple):
    """What an operator's evaluation needs: `key` is its node's, `resolve` gives what computes an operator."""

    dispatch: Dispatch
    answers: Answers
    key: str
    resolve: Callable[[OpOverload], Function]


def _truth(context: Evaluation, predicate: object) -> bool:
    """What a predicate is on the host; a rehearsal without data says what it takes it for, or refuses."""
    if isinstance(predicate, Tensor) and is_physically_meta(predicate):
        assumptions = context.dispatch.state.assumptions
        assert assumptions is not None
        return bool(assumptions.value(predicate))
    return bool(predicate)


def _cond(
    context: Evaluation, predicate: object, true: Function, false: Function, operands: Sequence[object]
) -> object:
    taken = _truth(context, predicate)
    context.answers.learn(context.key, taken)
    return (true if taken else false)(*operands)


def _while_loop(
    context: Evaluation,
    condition: Function,
    body: Function,
    carried: Sequence[object],
    additional: Sequence[object],
    stacked: bool = False,
    **_: object,
) -> tuple[object, ...]:
    values = tuple(carried)
    turns: list[tuple[object, ...]] = []
    while True:
        found = _only(condition(*values, *additional))
        if isinstance(found, Tensor) and is_physically_meta(found):
            raise UnsupportedError(
                "how often torch.while_loop runs depends on values, and a rehearsal without data has none: "
                "run with data, or loop a fixed number of times"
            )
        goes_on = bool(found)
        context.answers.learn(context.key, goes_on)
        if not goes_on:
            break
        made = body(*values, *additional)
        assert isinstance(made, (tuple, list))
        values = tuple(made)
        turns.append(values)
    if not turns:
        return tuple(
            (value.unsqueeze(0) if stacked else value).clone() if isinstance(value, Tensor) else value
            for value in values
        )
    if not stacked:
        return values
    return tuple(torch.stack([turn[at] for turn in turns]) for at in range(len(values)))  # type: ignore[misc]


def _only(value: object) -> object:
    """A subgraph's one result."""
    return value[0] if isinstance(value, (tuple, list)) else value


def _invoke_subgraph(context: Evaluation, subgraph: Function, identifier: str, *operands: object) -> object:
    return subgraph(*operands)


def _associative_scan(
    context: Evaluation, combine: Function, xs: Sequence[Tensor], additional: Sequence[object] = ()
) -> object:
    """The scan along the first dimension."""
    module = importlib.import_module("torch._higher_order_ops.associative_scan")
    return module.generic_associative_scan(combine, list(xs), additional_inputs=tuple(additional))


def _flex_attention(name: str, context: Evaluation, *args: object, **kwargs: object) -> object:
    """Flex attention by its definition, all scores at once; notes the operations in blocks that the mask keeps."""
    module = importlib.import_module("torch._higher_order_ops.flex_attention")
    masks = next(value for value in args if isinstance(value, tuple) and len(value) > 2 and callable(value[-1]))
    query, _, value = args[:3]
    assert isinstance(query, Tensor)
    assert isinstance(value, Tensor)
    scores = query.numel() // query.shape[-1] * value.shape[-2]
    by_query, by_value = PRODUCTS[name]
    widths = by_query * query.shape[-1] + by_value * value.shape[-1]
    context.answers.learn(about(name), round(2 * scores * widths * _density(masks)))
    compute: Function = getattr(module, FLEX[name])
    return compute(*args, **kwargs)


FLEX = {"flex_attention": "sdpa_dense", "flex_attention_backward": "sdpa_dense_backward"}
"""Functions of torch/_higher_order_ops/flex_attention.py that give the values."""
PRODUCTS = {"flex_attention": (1, 1), "flex_attention_backward": (3, 2)}
"""How many products of all scores with rows of the width of queries, and of values (torch/utils/flop_counter.py)."""


def _density(mask: Sequence[object]) -> float:
    """What part of all blocks of scores a block mask has: (lengths, numbers of blocks, their indices, full ones, ...).

    A mask of one block stands for none (`_create_empty_block_mask`).
    """
    partial_blocks, indices, full_blocks = mask[2], mask[3], mask[4]
    if not isinstance(partial_blocks, Tensor) or not isinstance(indices, Tensor) or is_physically_meta(partial_blocks):
        return 1.0
    blocks = int(partial_blocks.sum()) + (int(full_blocks.sum()) if isinstance(full_blocks, Tensor) else 0)
    return min(1.0, blocks / max(1, partial_blocks.numel() * indices.shape[-1]))


def _with_effects(context: Evaluation, token: Tensor, operator: OpOverload, *args: object, **kwargs: object) -> object:
    out = context.resolve(operator)(*args, **kwargs)
    fresh = torch.empty(0)
    results = operator._schema.returns
    if not results:
        return fresh, None
    return (fresh, *out) if len(results) > 1 and isinstance(out, tuple) else (fresh, out)


def _auto_functionalized(name: str, context: Evaluation, *args: object, **kwargs: object) -> object:
    """An operator that writes its arguments, made one that gives them anew."""
    module = importlib.import_module("torch._higher_order_ops.auto_functionalize")
    compute: Function = getattr(module, f"{name}_dense")
    return compute(*args, **kwargs)


def _kernel(context: Evaluation, *, kernel_idx: int, **kwargs: object) -> None:
    """A Triton kernel of the program's own, which Triton's interpreter computes (`triton.launches`)."""
    module = importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")
    apart = context.dispatch.local.apart
    assert apart is not None
    before = len(apart)
    module.triton_kernel_wrapper_mutation_dense(kernel_idx=kernel_idx, **kwargs)
    kernel = module.kernel_side_table.get_kernel(kernel_idx)
    while hasattr(kernel, "fn") and not hasattr(kernel, "__name__"):  # an autotuner's, or heuristics'
        kernel = kernel.fn
    context.answers.learn(about(kernel.__name__), apart[before:])


def _kernel_on_copies(context: Evaluation, tensors_to_clone: Sequence[str], **kwargs: object) -> object:
    module = importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")
    given = kwargs.pop("kwargs")
    assert isinstance(given, dict)
    given = {
        name: module.clone_preserve_strides(value) if name in tensors_to_clone else value
        for name, value in given.items()
    }
    _kernel(context, kwargs=given, **kwargs)  # type: ignore[arg-type]
    return {name: value for name, value in given.items() if name in tensors_to_clone}


def _drawing_apart(
    context: Evaluation, operator: OpOverload, *args: object, rng_state: Emulated, **kwargs: object
) -> object:
    """A random operator that draws from a generator of the graph's own: the backward pass has one at the same place."""
    generator = context.dispatch.state.generators[rng_state._wt_device]
    before = generator.graphsafe_get_state()
    generator.graphsafe_set_state(rng_state)
    try:
        return context.resolve(operator)(*args, **kwargs)
    finally:
        generator.graphsafe_set_state(before)


def _drawing(context: Evaluation, operator: OpOverload, *args: object, **kwargs: object) -> object:
    """A random operator, and where the generator was before it."""
    return torch.cuda.get_rng_state(), context.resolve(operator)(*args, **kwargs)


def _drawing_again(context: Evaluation, state: Tensor, operator: OpOverload, *args: object, **kwargs: object) -> object:
    """A random operator that begins where the generator once was."""
    before = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state)
    try:
        return context.resolve(operator)(*args, **kwargs)
    finally:
        torch.cuda.set_rng_state(before)


def _inline_assembly(
    context: Evaluation,
    *inputs: Tensor,
    asm_str: str,
    constraints: str,
    dtype: torch.dtype,
    is_pure: bool = True,
    pack: int = 1,
) -> Tensor:
    """PTX over elements, which a graph has where torchao casts to MXFP8 on Blackwell."""
    from windtunnel.ptx import inline  # a compiler, which few programs need

    given = torch.broadcast_tensors(*inputs)
    out = torch.empty_like(given[0], dtype=dtype)
    if out.is_meta:
        return out
    arrays = [np.asarray(one.reshape(-1).view(WIDTHS[one.itemsize])) for one in given]
    (found,) = inline.elementwise(asm_str, constraints, arrays, [np.dtype(f"u{dtype.itemsize}")], pack)
    return out.copy_(torch.from_numpy(found.view(f"i{dtype.itemsize}")).view(dtype).view(given[0].shape))


EVALUATE: dict[str, Callable[..., object]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "while_loop_stack_output": partial(_while_loop, stacked=True),
    "invoke_subgraph": _invoke_subgraph,
    "associative_scan": _associative_scan,
    "inline_asm_elementwise": _inline_assembly,
    "with_effects": _with_effects,
    "graphsafe_run_with_rng_state": _drawing_apart,
    "run_and_save_rng_state": _drawing,
    "run_with_rng_state": _drawing_again,
    "triton_kernel_wrapper_mutation": _kernel,
    "triton_kernel_wrapper_functional": _kernel_on_copies,
    **{name: partial(_flex_attention, name) for name in FLEX},
    **{name: partial(_auto_functionalized, name) for name in ("auto_functionalized", "auto_functionalized_v2")},
}
"""By the operator's name. The first argument is the context, the others are the operator's own."""
WITHOUT_WRAPPING = frozenset(FLEX)
"""Operators whose subgraphs run under `torch.vmap`, so that these must be operators of PyTorch's throughout."""
