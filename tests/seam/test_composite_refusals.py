"""Composite functions that are taken apart here refuse what PyTorch refuses, with its class and its text.

The oracle is the same PyTorch on the CPU. Where CUDA's own kernels refuse otherwise, `ON_CUDA` has what they say.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import windtunnel
from windtunnel.seam.torch.install import COMPOSITES

HALF, DOUBLE, LONG, BOOL, COMPLEX = torch.float16, torch.float64, torch.int64, torch.bool, torch.complex64
aten, linalg = torch.ops.aten, torch.linalg
Make = Callable[..., torch.Tensor]
"""Ones of a shape, on the device under test."""
Case = Callable[[Make], object]


def attend(make: Make, *dtypes: torch.dtype, dims: tuple[int, ...] = (4, 4, 4), **options: object) -> object:
    shape = (1, 2, 4, 8)
    given = [make(*shape[4 - dim :], dtype=dtype) for dtype, dim in zip(dtypes, dims, strict=True)]
    return F.scaled_dot_product_attention(*given, **options)


def masked(make: Make, dtype: torch.dtype, mask: torch.dtype, dims: int = 4, **options: object) -> object:
    return attend(make, dtype, dtype, dtype, dims=(dims,) * 3, attn_mask=make(4, 4, dtype=mask), **options)


SINGLE = torch.float32
ATTENTION: dict[str, Case] = {
    "key in half": lambda m: attend(m, SINGLE, HALF, SINGLE),
    "value in half": lambda m: attend(m, SINGLE, SINGLE, HALF),
    "query in half": lambda m: attend(m, HALF, SINGLE, SINGLE),
    "cache in bfloat16": lambda m: attend(m, HALF, torch.bfloat16, torch.bfloat16),
    "three dimensions, key in half": lambda m: attend(m, SINGLE, HALF, SINGLE, dims=(3, 3, 3)),
    "two dimensions, key in half": lambda m: attend(m, SINGLE, HALF, SINGLE, dims=(2, 2, 2)),
    "query of one dimension": lambda m: attend(m, SINGLE, SINGLE, SINGLE, dims=(1, 4, 4)),
    "key of one dimension": lambda m: attend(m, SINGLE, SINGLE, SINGLE, dims=(4, 1, 4)),
    "value without dimensions": lambda m: attend(m, SINGLE, SINGLE, SINGLE, dims=(4, 4, 0)),
    "key in half, value of one dimension": lambda m: attend(m, SINGLE, HALF, SINGLE, dims=(4, 4, 1)),
    **{
        f"mask of {mask} beside {dtype}": partial(masked, dtype=dtype, mask=mask)
        for dtype in (SINGLE, HALF)
        for mask in (LONG, torch.int32, torch.uint8, torch.bfloat16, DOUBLE, COMPLEX)
    },
    "mask in half": lambda m: masked(m, SINGLE, HALF),
    "mask in half, three dimensions": lambda m: masked(m, SINGLE, HALF, 3),
    "mask in half, causal": lambda m: masked(m, SINGLE, HALF, is_causal=True),
    "mask and causal": lambda m: masked(m, SINGLE, SINGLE, is_causal=True),
    "heads": lambda m: F.scaled_dot_product_attention(m(1, 2, 4, 8), m(1, 3, 4, 8), m(1, 2, 4, 8)),
    "widths": lambda m: F.scaled_dot_product_attention(m(1, 2, 4, 8), m(1, 2, 4, 16), m(1, 2, 4, 8)),
    "integers": lambda m: attend(m, LONG, LONG, LONG),
    "truth values": lambda m: attend(m, BOOL, BOOL, BOOL),
    "shared heads that do not divide": lambda m: F.scaled_dot_product_attention(
        m(1, 4, 4, 8), m(1, 3, 4, 8), m(1, 3, 4, 8), enable_gqa=True
    ),
    "float32 mask beside half": lambda m: masked(m, HALF, SINGLE),
    "a mask of other keys": lambda m: F.scaled_dot_product_attention(*[m(1, 2, 4, 8)] * 3, attn_mask=m(4, 5)),
    "values of another length": lambda m: F.scaled_dot_product_attention(
        m(1, 2, 4, 8), m(1, 2, 5, 8), m(1, 2, 6, 8)
    ),
    "values of another length, half": lambda m: F.scaled_dot_product_attention(
        m(1, 2, 4, 8, dtype=HALF), m(1, 2, 5, 8, dtype=HALF), m(1, 2, 6, 8, dtype=HALF)
    ),
    "dropout of one and a half": lambda m: attend(m, HALF, HALF, HALF, dropout_p=1.5),
}  # fmt: skip


def heads(make: Make, training: bool = True, mask: torch.dtype = SINGLE, **options: object) -> object:
    layer = nn.MultiheadAttention(8, 2, batch_first=True, device=make(1).device).train(training)
    x = make(2, 4, 8)
    return layer(x, x, x, attn_mask=make(4, 4, dtype=mask), **options)


HEADS: dict[str, Case] = {
    f"{mask}, training {training}, weights {weights}": partial(
        heads, training=training, mask=mask, need_weights=weights
    )
    for mask in (HALF, DOUBLE, LONG)
    for training in (True, False)
    for weights in (True, False)
}


def layer(kind: type[nn.RNNBase], *shape: int, dtype: torch.dtype = SINGLE, hidden: tuple[int, ...] = ()) -> Case:
    def called(make: Make) -> object:
        made = kind(4, 6, device=make(1).device)
        state = (make(*hidden),) * 2 if kind is nn.LSTM else make(*hidden)
        return made(make(*shape, dtype=dtype), state if hidden else None)

    return called


def recurrent(kind: type[nn.RNNBase]) -> dict[str, Case]:
    return {
        "width": layer(kind, 3, 2, 5),
        "half": layer(kind, 3, 2, 4, dtype=HALF),
        "double": layer(kind, 3, 2, 4, dtype=DOUBLE),
        "integers": layer(kind, 3, 2, 4, dtype=LONG),
        "four dimensions": layer(kind, 1, 3, 2, 4),
        "one dimension": layer(kind, 4),
        "no step": layer(kind, 0, 2, 4),
        "batch of the state": layer(kind, 3, 2, 4, hidden=(1, 3, 6)),
        "layers of the state": layer(kind, 3, 2, 4, hidden=(2, 2, 6)),
        "state of two dimensions": layer(kind, 3, 2, 4, hidden=(2, 6)),
    }


def one_state(make: Make) -> object:
    weights = [make(24, 4), make(24, 6), make(24), make(24)]
    return torch.lstm(make(3, 2, 4), [make(1, 2, 6)], weights, True, 1, 0.0, False, False, False)


def of_ctc(
    *, dtype: torch.dtype = SINGLE, targets: tuple[int, ...] = (2, 3), target_type: torch.dtype = LONG,
    inputs: tuple[int, ...] = (5, 5), lengths: tuple[int, ...] = (3, 3), blank: int = 0, tensors: bool = True,
) -> Case:  # fmt: skip
    def called(make: Make) -> object:
        counts = map(torch.tensor, (inputs, lengths)) if tensors else (inputs, lengths)
        return F.ctc_loss(make(5, 2, 4, dtype=dtype), make(*targets, dtype=target_type), *counts, blank=blank)

    return called


def ctc() -> dict[str, Case]:
    return {
        f"{name}, {'tensors' if tensors else 'lists'}": of_ctc(**given, tensors=tensors)
        for tensors in (True, False)
        for name, given in {
            "input longer than it is": {"inputs": (6, 5)},
            "target longer than it is": {"lengths": (4, 3)},
            "one input": {"inputs": (5,)},
            "one target": {"lengths": (3,)},
            "input of negative length": {"inputs": (-1, 5)},
            "target of negative length": {"lengths": (-1, 3)},
            "blank of no class": {"blank": 4},
            "floating targets": {"target_type": SINGLE},
            "targets of three dimensions": {"targets": (2, 3, 1)},
            "targets of another batch": {"targets": (3, 3)},
        }.items()
    }


def every(function: Callable[..., object], **inputs: object) -> dict[str, Case]:
    """Cases of a function whose first argument is a tensor: its shape, with its type and the other arguments."""

    def called(given: object, make: Make) -> object:
        shape, dtype, *rest = given  # type: ignore[misc]
        return function(make(*shape, dtype=dtype), *[make(*one) if isinstance(one, list) else one for one in rest])

    return {name: partial(called, given) for name, given in inputs.items()}


def matrices(function: Callable[..., object]) -> dict[str, Case]:
    return every(
        function, vector=((3,), SINGLE), number=((), SINGLE), integers=((3, 3), LONG), truth=((3, 3), BOOL),
        oblong=((3, 4), SINGLE), empty=((0, 3), SINGLE),
    )  # fmt: skip


TRANSFORM = partial(torch.stft, return_complex=True)
DROPOUT = {
    f"p of {p}": partial(lambda make, p: torch.dropout(make(4, 4), p, True), p=p) for p in (-0.1, 1.5, float("nan"))
} | {"of nothing": lambda m: torch.dropout(m(0), 2.0, True), "evaluating": lambda m: torch.dropout(m(4), 2.0, False)}

aten = torch.ops.aten
CASES: dict[str, dict[str, Case]] = {
    "scaled_dot_product_attention": ATTENTION,
    "MultiheadAttention": HEADS,
    "lstm": {**recurrent(nn.LSTM), "one state": one_state},
    "gru": recurrent(nn.GRU),
    "rnn_tanh": recurrent(nn.RNN),
    "rnn_relu": recurrent(partial(nn.RNN, nonlinearity="relu")),  # type: ignore[arg-type]
    **{
        f"{name}_cell": {
            "narrow input": lambda m, step=step, n=n: step(m(3, 4), m(n * 7, 5), m(n * 7, 7), [m(3, 7), m(3, 7)]),
            "other batch": lambda m, step=step, n=n: step(m(3, 5), m(n * 7, 5), m(n * 7, 7), [m(2, 7), m(3, 7)]),
            "narrow state": lambda m, step=step, n=n: step(m(3, 5), m(n * 7, 5), m(n * 7, 7), [m(3, 6), m(3, 6)]),
        }
        for name, n, step in (
            ("lstm", 4, lambda x, a, b, h: torch.lstm_cell(x, h, a, b)),
            ("gru", 3, lambda x, a, b, h: torch.gru_cell(x, h[0], a, b)),
        )
    },
    "value_selecting_reduction_backward": {
        "beyond": lambda m: aten.value_selecting_reduction_backward(m(3), 5, m(3, dtype=LONG), [3, 4], False),
        "floating": lambda m: aten.value_selecting_reduction_backward(m(3), 1, m(3), [3, 4], False),
    },
    "ctc_loss": ctc(),
    "dropout": DROPOUT,
    "group_norm": every(
        torch.group_norm, groups=((2, 6, 4), SINGLE, 4), none=((2, 6, 4), SINGLE, 0), negative=((2, 6, 4), SINGLE, -2),
        vector=((6,), SINGLE, 2), weight=((2, 6, 4), SINGLE, 2, [5]), flat=((2, 6, 4), SINGLE, 2, [6, 1]),
        bias=((2, 6, 4), SINGLE, 2, [6], [5]), integers=((2, 6, 4), LONG, 2),
    ),
    **{
        name: every(
            getattr(torch, name), beyond=((2, 3), SINGLE, 5), half=((2, 3), HALF, 5, SINGLE),
            integers=((2, 3), LONG, 0), number=((), HALF, 1, SINGLE), named=((2, 3), SINGLE, "a"),
            into=((2, 3), SINGLE, 0, LONG),
        )
        for name in ("softmax", "log_softmax")
    },
    "one_hot": every(
        F.one_hot, floating=((3,), SINGLE), narrow=((3,), torch.int32), none=((3,), LONG, 0), empty=((0,), LONG),
        negative=((0,), LONG, -5), truth=((3,), BOOL),
    ),
    "stft": every(
        TRANSFORM, window=((100,), SINGLE, 16, None, None, [8]), hop=((100,), SINGLE, 16, 0), wide=((8,), SINGLE, 32),
        window_length=((100,), SINGLE, 16, None, 20), dimensions=((1, 1, 100), SINGLE, 16),
    ),
    "istft": every(torch.istft, real=((9, 10), SINGLE, 16)),
    "take_along_dim": {
        "floating": lambda m: torch.take_along_dim(m(3, 4), m(3, 4), 1),
        "narrow": lambda m: torch.take_along_dim(m(3, 4), m(3, 4, dtype=torch.int32), 1),
        "dimensions": lambda m: torch.take_along_dim(m(3, 4), m(3, dtype=LONG), 1),
        "beyond": lambda m: torch.take_along_dim(m(3, 4), m(3, 4, dtype=LONG), 5),
        "shape": lambda m: torch.take_along_dim(m(3, 4), m(2, 4, dtype=LONG), 1),
    },
    "linalg_svdvals": matrices(linalg.svdvals),
    "linalg_eigvalsh": {
        **{name: case for name, case in matrices(linalg.eigvalsh).items() if name not in ("integers", "truth")},
        **every(linalg.eigvalsh, half_of=((3, 3), SINGLE, "X")),
    },
    "linalg_eigvals": matrices(linalg.eigvals),
    "linalg_matrix_rank": {
        **matrices(linalg.matrix_rank),
        "complex tolerance": lambda m: linalg.matrix_rank(m(3, 3), tol=m(3, dtype=COMPLEX)),
        "complex bound": lambda m: linalg.matrix_rank(m(3, 3), atol=m((), dtype=COMPLEX)),
        "out of truth": lambda m: linalg.matrix_rank(m(3, 3), out=m((), dtype=BOOL)),
    },
    "linalg_cond": {
        **matrices(linalg.cond),
        **every(linalg.cond, order=((3, 3), SINGLE, 5), name=((3, 3), SINGLE, "x"), oblong_too=((3, 4), SINGLE, "nuc")),
        "out": lambda m: linalg.cond(m(3, 3), out=m((), dtype=LONG)),
    },
    "linalg_matrix_norm": {
        **matrices(linalg.matrix_norm),
        **every(
            linalg.matrix_norm, order=((3, 3), SINGLE, 5), name=((3, 3), SINGLE, "x"),
            twice=((3, 3), SINGLE, "fro", (0, 0)), one=((3, 3), SINGLE, "fro", (0,)),
        ),
    },
    "linalg_tensorinv": {"indices": lambda m: linalg.tensorinv(m(4, 6, 8, 3), ind=0, out=m(1))},
    "linalg_tensorsolve": {"shape": lambda m: linalg.tensorsolve(m(2, 3, 4), m(2, 3), out=m(1))},
    "trapz": {"points": lambda m: torch.trapz(m(3), m(4)), "beyond": lambda m: torch.trapz(m(3), dim=4)},
    "trapezoid": {
        "points": lambda m: torch.trapezoid(m(3), m(4)),
        "beyond": lambda m: torch.trapezoid(m(3), dim=4),
        "number": lambda m: torch.trapezoid(m(())),
        "rows": lambda m: torch.trapezoid(m(2, 3), m(2, 4)),
    },
    "batch_norm": {
        "mean": lambda m: F.batch_norm(m(4, 3, 2, 2), m(4), m(3)),
        "variance": lambda m: F.batch_norm(m(4, 3, 2, 2), m(3), m(2)),
        "weight": lambda m: F.batch_norm(m(4, 3), m(3), m(3), m(5), m(3)),
        "nothing to evaluate with": lambda m: F.batch_norm(m(4, 3), None, None),
        "one value": lambda m: F.batch_norm(m(1, 3), m(3), m(3), training=True),
        "vector": lambda m: torch.batch_norm(m(3), None, None, None, None, True, 0.1, 1e-5, True),
        "integers": lambda m: F.batch_norm(m(4, 3, dtype=LONG), m(3), m(3)),
    },
    **{
        name: every(
            function, shape=((2, 4), SINGLE, (5,)), none=((2, 4), SINGLE, ()), weight=((2, 4), SINGLE, (4,), [5]),
            integers=((2, 4), LONG, (4,)), longer=((4,), SINGLE, (2, 4)),
        )
        for name, function in (("layer_norm", F.layer_norm), ("rms_norm", F.rms_norm))
    },
}  # fmt: skip
"""By composite, inputs that PyTorch refuses, and some near them that it does not."""

EXPECTED = "Expected {} to be true, but got false."
ON_CUDA: dict[tuple[str, str], str] = {
    ("scaled_dot_product_attention", "float32 mask beside half"): "invalid dtype for bias - should match query's dtype",
    (
        "scaled_dot_product_attention",
        "a mask of other keys",
    ): "The expanded size of the tensor (4) must match the",
    ("scaled_dot_product_attention", "values of another length"): EXPECTED.format("key.size(1) == value.size(1)"),
    ("scaled_dot_product_attention", "values of another length, half"): "v must have shape (batch_size, seqlen_k",
    ("scaled_dot_product_attention", "dropout of one and a half"): EXPECTED.format("p_dropout < 1.f"),
    ("one_hot", "none"): "num_classes should be positive",
    ("softmax", "integers"): "\"host_softmax\" not implemented for 'Long'",
    ("softmax", "into"): "\"host_softmax\" not implemented for 'Long'",
    ("log_softmax", "integers"): "\"host_softmax\" not implemented for 'Long'",
    ("log_softmax", "into"): "\"host_softmax\" not implemented for 'Long'",
}
"""What CUDA's own code says instead, from its sources (`kernels/attention_checks`, native/Onehot.cpp)."""


OF_DEVICES = {
    "_weight_norm", "block_diag", "cholesky_solve", "gradient", "linalg_multi_dot", "masked_fill",
    "meshgrid", "nanquantile", "quantile", "tensor_split", "weight_norm_differentiable_backward",
}  # fmt: skip
"""Replaced for the text of tensors on two devices alone, which `test_refusals.py` compares."""


def outcome(case: Case, device: str) -> tuple[str, str]:
    """The class and the first line of what is raised, or nothing."""

    def make(*shape: int | tuple[int, ...], dtype: torch.dtype = SINGLE) -> torch.Tensor:
        return torch.ones(*shape, dtype=dtype, device=device)

    torch.manual_seed(0)
    try:
        case(make)
    except (RuntimeError, ValueError, IndexError, TypeError, AssertionError) as error:
        return type(error).__name__, str(error).partition("\n")[0]
    return "", ""


def outcomes(device: str) -> dict[str, dict[str, tuple[str, str]]]:
    """Of all cases, by composite."""
    return {name: {case: outcome(cases[case], device) for case in cases} for name, cases in CASES.items()}


@pytest.fixture(scope="module")
def on_both() -> tuple[dict[str, dict[str, tuple[str, str]]], ...]:
    """What the CPU says, and what an emulated device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        on_cpu = outcomes("cpu")
        with windtunnel.emulate("A100"):
            return on_cpu, outcomes("cuda")


@pytest.mark.parametrize("composite", CASES)
def test_refusals_are_pytorchs(on_both: tuple[dict[str, dict[str, tuple[str, str]]], ...], composite: str) -> None:
    expected, found = (dict(outcomes[composite]) for outcomes in on_both)
    assert any(kind for kind, _ in expected.values())
    for case in expected:
        text = ON_CUDA.get((composite, case))
        if text is not None:
            kind, said = found[case]
            assert kind in ("RuntimeError", "NotImplementedError"), case
            expected[case], found[case] = (kind, text), (kind, said[: len(text)])
    assert found == expected


def test_every_composite_has_cases() -> None:
    assert {func._opname for func in COMPOSITES} <= CASES.keys() | OF_DEVICES


def test_attention_names_the_devices() -> None:
    with windtunnel.emulate("A100"):
        x = torch.ones(1, 2, 4, 8, device="cuda")
        text = "got query.device: cuda:0 key.device: cpu and value.device: cuda:0 instead."
        with pytest.raises(RuntimeError, match=text):
            F.scaled_dot_product_attention(x, x.cpu(), x)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.filterwarnings("ignore")
def test_cudnns_layers_take_one_type(kind: type[nn.RNNBase]) -> None:
    """cuDNN's own check (`check_attributes` of native/RNN.h): the CPU's layers have other texts."""
    with windtunnel.emulate("A100"):
        made, x, hidden = kind(4, 6).cuda(), torch.ones(3, 2, 4, device="cuda"), torch.ones(1, 2, 6, device="cuda")
        halves = (hidden.half(),) * 2 if kind is nn.LSTM else hidden.half()
        with pytest.raises(RuntimeError, match="Input and hidden tensors are not the same dtype, found input"):
            made(x, halves)
        made.weight_hh_l0 = nn.Parameter(made.weight_hh_l0.half())
        with pytest.raises(RuntimeError, match="Input and parameter tensors are not the same dtype, found input"):
            made(x)
