"""Conversions to integers in a replay and in compiled graphs; those that run at once are in `dispatch.moves`."""

from __future__ import annotations

from windtunnel.seam.torch.dispatch.conversions import saturate
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.arguments import Result
from windtunnel.seam.torch.plans.call import Call


def converted(dispatch: Dispatch, call: Call) -> Result:
    """aten::_to_copy."""
    out = dispatch.compute(call)
    saturate(call.args[0], out)
    return out


def copied(dispatch: Dispatch, call: Call) -> Result:
    """aten::copy_."""
    out = dispatch.compute(call)
    destination, source = call.args[:2]
    saturate(source, destination)
    return out


VALUES = {"aten::_to_copy": converted, "aten::copy_": copied}
"""What computes them in a replay."""
