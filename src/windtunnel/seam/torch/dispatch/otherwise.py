"""What the CPU's kernels refuse and CUDA's compute, found out by the error: no other call pays for it."""

from __future__ import annotations

from windtunnel.seam.torch.dispatch import bits, scalars
from windtunnel.seam.torch.plans import messages
from windtunnel.seam.torch.plans.arguments import Result
from windtunnel.seam.torch.plans.call import Call


def computed(call: Call, error: RuntimeError) -> Result:
    """The result of a call on a device that ended with `error`; raises CUDA's where its kernel refuses it as well."""
    if bits.moves(call, error):
        return bits.moved(call)
    if scalars.overflows(call, error):
        bounded = scalars.bounded(call, error)
        return bounded.func(*bounded.args, **bounded.kwargs)
    if (other := messages.of_cuda(error, call.plan.name, call.args)) is not None:
        raise other from None
    raise error
