"""Zero tensors, which forward differentiation makes without memory, in operators that are made of other operators.

A product with a number asks C++'s dispatcher for the product of two tensors, whose kernel of the key ZeroTensor answers
(aten/src/ATen/ZeroTensorFallback.cpp, aten/src/ATen/native/BinaryOps.cpp). Below a dispatch mode that key is passed by.
"""

from __future__ import annotations

import torch

from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.dispatch.parts import restore_dispatch_keys
from windtunnel.seam.torch.plans.call import Call


def scaled(dispatch: Dispatch, call: Call) -> object:
    """A product or quotient of a tensor and a number."""
    tensor = call.args[0]
    if isinstance(tensor, torch.Tensor) and tensor._is_zerotensor():
        with restore_dispatch_keys(dispatch.state):
            return dispatch.general(call)
    return dispatch.general(call)


HANDLERS = dict.fromkeys(("aten::mul.Scalar", "aten::div.Scalar"), scaled)
"""Operators with handlers of their own."""
