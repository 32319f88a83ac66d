"""Decompositions of linear algebra, of which cuSOLVER has drivers to choose from.

Sources: TORCH_META_FUNC(_linalg_svd) in aten/src/ATen/native/BatchLinearAlgebra.cpp, and the drivers that
aten/src/ATen/native/cuda/linalg/BatchLinearAlgebraLib.cpp knows.
"""

from __future__ import annotations

import torch

from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.tags import device_of

DRIVERS = ("gesvd", "gesvdj", "gesvda")


def svd(dispatch: Dispatch, call: Call) -> object:
    """A singular value decomposition; the CPU's has one driver, whose values serve for all."""
    kwargs = call.kwargs
    driver, tensor = kwargs.get("driver"), call.args[0]
    if driver is not None and isinstance(tensor, torch.Tensor) and device_of(tensor) >= 0:
        if driver not in DRIVERS:
            raise RuntimeError(
                f"torch.linalg.svd: unknown svd driver {driver} in svd_cusolver computation. Available drivers: "
                f"{', '.join(DRIVERS)}"
            )
        kwargs = {**kwargs, "driver": None}
    return dispatch.general(call.but(kwargs=kwargs))


HANDLERS = {"aten::_linalg_svd": svd}
"""Operators with handlers of their own."""
