"""What L2 holds of tensors, as PyTorch's operators launch: loops, chains, and what was cleared between."""

import pytest
import torch

import windtunnel
from windtunnel.analysis.retime import retime
from windtunnel.gpus import find
from windtunnel.trace.operation import Kind

MIB = 1 << 20


def kernels(trace, name):
    """Microseconds of each kernel of an operator."""
    return [
        (one.end_ns - one.start_ns) / 1e3 for one in trace if one.kind == Kind.KERNEL and name in one.signature.name
    ]


def loop(session, clear=False):
    """A ReLU of 16 MiB on both sides, four times."""
    x = torch.zeros(4 * MIB, device="cuda")
    for _ in range(4):
        if clear:
            torch.empty(256 * MIB, dtype=torch.uint8, device="cuda").fill_(1)
        torch.relu(x)
    torch.cuda.synchronize()
    return kernels(session.trace, "relu")


@pytest.mark.parametrize("no_data", [False, True])
def test_a_repeated_kernel_finds_its_operands_in_l2(no_data):
    """# issue 40: LeetCUDA's README prints 8.4 us for a ReLU that reads and writes 16 MiB on an L20."""
    with windtunnel.emulate("L20", no_data=no_data) as session:
        spent = loop(session)
    assert spent[-1] == pytest.approx(8.4, rel=0.25)


def test_what_was_cleared_comes_from_memory():
    with windtunnel.emulate("L20", no_data=True) as session:
        spent = loop(session, clear=True)
    assert min(spent) > 35.0


def test_a_trace_on_another_gpu_asks_its_l2():
    """The distances are part of the trace: a V100's 6 MB hold nothing of it."""
    with windtunnel.emulate("L20", no_data=True) as session:
        spent = loop(session)
    with windtunnel.emulate("V100", no_data=True) as other:
        there = loop(other)
    assert kernels(retime(session.trace, [find("V100")]), "relu") == pytest.approx(there, rel=0.02)
    assert kernels(retime(other.trace, [find("L20")]), "relu") == pytest.approx(spent, rel=0.02)


def test_a_dot_product_of_halves_is_a_reduction():
    """LeetCUDA's README: 24.5 us for 16 million halves, in L2; as a product of one row it took milliseconds here."""
    with windtunnel.emulate("L20", no_data=True) as session:
        x, y = (torch.zeros(16 * MIB, dtype=torch.float16, device="cuda") for _ in range(2))
        for _ in range(3):
            torch.dot(x, y)
    assert kernels(session.trace, "dot")[-1] == pytest.approx(24.5, rel=0.35)
