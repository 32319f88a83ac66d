"""Functions of C++ that compute otherwise, or wrong, while a Python dispatch mode is there: a CUDA program has none.

- PyTorch calls a mode with the keys above it excluded, those of conjugate and negative views among them
  (`pythonFallback` of aten/src/ATen/core/PythonFallbackKernel.cpp). A kernel that is itself written in other operators,
  and makes such views for them, has their bits ignored: the `mH` in `linalg_pinv`, in `linalg_lstsq`
  (native/LinearAlgebra.cpp, BatchLinearAlgebra.cpp). These get the keys back.
- `isTensorSubclassLike` is true of every tensor under a mode. `linalg_matrix_rank` then makes a new tensor and leaves
  `out` unwritten (`matrix_rank_impl` of native/LinearAlgebra.cpp): here its result is copied there. `linalg_svdvals`,
  `linalg_eigvalsh` and `linalg_eigvals` then compute the vectors too (`_may_require_fw_or_bw_grad` of
  native/BatchLinearAlgebra.cpp), which takes longer and rounds otherwise: here only where a gradient needs them.
- `linalg_matrix_rank`, `linalg_cond` and `linalg_matrix_norm` of a matrix without elements, and `trapz` and `trapezoid`
  of no points (native/Integration.cpp), make their zeros where C++ believes the input to be: on the host. Here they lie
  where it does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._prims_common.wrappers import _maybe_resize_out
from torch.autograd.forward_ad import unpack_dual

from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.dispatch.parts import COMPOSITE, restore_dispatch_keys
from windtunnel.seam.torch.kernels.composite_checks import beside
from windtunnel.seam.torch.plans.arguments import OpOverload
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.messages import two_devices
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import FLOATING, device_of

aten = torch.ops.aten
Tensor = torch.Tensor

MAKING_VIEWS = ("aten::linalg_pinv", "aten::linalg_lstsq")
"""Operators whose kernels are written in others and make conjugate views for them."""
TOLERANCES = {"rcond", "atol", "rtol"}
RANK = aten.linalg_matrix_rank


def with_views(dispatch: Dispatch, call: Call) -> object:
    """Run an operator of `MAKING_VIEWS` as it runs where there is no mode."""
    given = call.named()
    out = call.kwargs.get("out")
    if isinstance(out, Tensor) and isinstance(call.args[0], Tensor):
        beside("linalg_pinv", out, call.args[0])
    for name in TOLERANCES & given.keys():
        _beside_input(call.args[0], given[name])
    with restore_dispatch_keys(dispatch.state):
        return dispatch.general(call)


def _beside_input(input: object, tolerance: object) -> None:
    """Raises where a tolerance lies elsewhere than its matrix: multiplied by singular values it has a dimension."""
    if not (isinstance(input, Tensor) and isinstance(tolerance, Tensor)) or not input.numel():
        return
    pair = device_of(tolerance), device_of(input)
    if pair[0] != pair[1] and FLOATING not in pair:
        raise two_devices(*(pair if pair[0] >= 0 else reversed(pair)))


def placed(state: State, func: OpOverload, input: Tensor, *args: object, **kwargs: object) -> object:
    """A function whose result lies where its input does, also when C++ makes it of nothing."""
    result = func._op_dk(COMPOSITE, input, *args, **kwargs)
    state.settle(result, device_of(input))
    return result


def _rank_into(functional: OpOverload) -> Callable[..., object]:
    def written(state: State, func: OpOverload, input: Tensor, *args: object, out: Tensor, **kwargs: object) -> object:
        """torch.linalg.matrix_rank with `out`; raises as `checkLinalgCompatibleDtype` and `checkSameDevice` do."""
        beside("torch.linalg.matrix_rank", out, input)
        if not torch.can_cast(torch.int64, out.dtype):
            raise RuntimeError(
                "torch.linalg.matrix_rank: Expected result to be safely castable from Long dtype, but got result with "
                f"dtype {str(out.dtype)[6:].capitalize()}"
            )
        result = functional(input, *args, **kwargs)
        return _maybe_resize_out(out, result.shape).copy_(result)

    return written


def differentiated(input: Tensor) -> bool:
    """Whether a gradient of a function of `input` may be asked for."""
    return (torch.is_grad_enabled() and input.requires_grad) or unpack_dual(input).tangent is not None


def svdvals(state: State, func: OpOverload, input: Tensor, *, driver: str | None = None) -> object:
    """torch.linalg.svdvals."""
    return aten._linalg_svd.default(input, False, differentiated(input), driver=driver)[1]


def eigvalsh(state: State, func: OpOverload, input: Tensor, uplo: str = "L") -> object:
    """torch.linalg.eigvalsh."""
    return aten._linalg_eigh.default(input, uplo, differentiated(input))[0]


def eigvals(state: State, func: OpOverload, input: Tensor) -> object:
    """torch.linalg.eigvals."""
    return aten.linalg_eig.default(input)[0] if differentiated(input) else aten._linalg_eigvals.default(input)


COMPOSITES = {
    **dict.fromkeys((RANK.default, RANK.tol_tensor, RANK.atol_rtol_tensor, RANK.atol_rtol_float), placed),
    **dict.fromkeys((aten.linalg_cond.default, aten.linalg_cond.p_str), placed),
    **dict.fromkeys((aten.linalg_matrix_norm.default, aten.linalg_matrix_norm.str_ord), placed),
    **dict.fromkeys((aten.trapz.x, aten.trapz.dx, aten.trapezoid.x, aten.trapezoid.dx), placed),
    aten.linalg_svdvals.default: svdvals,
    aten.linalg_eigvalsh.default: eigvalsh,
    aten.linalg_eigvals.default: eigvals,
    RANK.out: _rank_into(RANK.default),
    RANK.out_tol_tensor: _rank_into(RANK.tol_tensor),
    RANK.atol_rtol_tensor_out: _rank_into(RANK.atol_rtol_tensor),
    RANK.atol_rtol_float_out: _rank_into(RANK.atol_rtol_float),
}
"""By operator, for `composites.Composites`."""
HANDLERS = dict.fromkeys(MAKING_VIEWS, with_views)
"""Operators with handlers of their own."""
